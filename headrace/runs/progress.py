"""Display a running training: a live table on a terminal, single lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from headrace.core.terminal import LINES, say, saying, tell
from headrace.core.text import printable
from headrace.training.iteration import IterationResult

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

LIVE_AFTER = 1.0  # s: shorter runs end without a table, and without importing rich
LIVE_EVERY = 0.25  # s between two tables
LINE_AFTER, LINE_EVERY = 2.0, 5.0  # s until the first line, and between two
LOSSES = (  # metrics that are shown if an algorithm has them
    "policy_gradient_loss",
    "value_loss",
    "entropy_loss",
    "approx_kl",
    "actor_loss",
    "critic_loss",
    "ent_coef",
    "q_value",
    "exploration_rate",
    "explained_variance",
    "learning_rate",
    "n_updates",
)
OF_LEARNER = ("waiting for fragments", "gathering", "publishing", "learning")  # parts of its time, with actors


class Progress:
    """Shows the progress of a training. mode: "auto", "rich", "plain" or "none"; auto is rich on a terminal, else
    plain.

    unit: what the training counts: "steps", or "gradient steps" if it learns from recorded data alone."""

    def __init__(self, mode: str, title: str, unit: str = "steps") -> None:
        self.mode = ("rich" if sys.stdout.isatty() else "plain") if mode == "auto" else mode
        self.title, self.unit = title, unit
        self._live: Live | None = None
        self._next = time.monotonic() + (LIVE_AFTER if self.mode == "rich" else LINE_AFTER)

    def close(self) -> None:
        """Stop updating the table. Later messages are printed below it."""
        if self._live:
            with saying():
                self._live.stop()
            self._live = None

    def show(self, result: IterationResult) -> None:
        """Show the training's progress, if an update is due."""
        if self.mode == "none" or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (LINE_EVERY if self.mode == "plain" else LIVE_EVERY)
        with saying():
            self._show(result)

    def _show(self, result: IterationResult) -> None:
        if self.mode == "plain":
            print(line(result, self.unit), flush=True)
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        self._live.update(_table(self.title, result, self.unit), refresh=True)

    def evaluating(self, ended: int, episodes: int, steps: int) -> None:
        """Show an evaluation's progress, if an update is due."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY
            self.say(far(ended, episodes, steps))

    def say(self, text: str) -> None:
        """Print a line, above a table if there is one; nothing in mode "none"."""
        if self.mode == "none":
            return
        if self._live is None:
            return say(text)
        with saying():
            self._live.console.print(printable(text, LINES), highlight=False, markup=False)


def line(result: IterationResult, unit: str = "steps") -> str:
    """The training's progress in one line."""
    parts = [f"{result.steps:,} {unit}", f"{result.seconds:.1f} s", f"{_speed(result)} steps/s", _return(result)]
    return "  ".join([*parts, f"{_duration(result.seconds_left)} left", *_of_actors(result)])


def _of_actors(result: IterationResult) -> list[str]:
    """Describe the shares of the learner's time, and of the actors' time in which they wait. Empty without actors."""
    if "waiting for fragments" not in result.fractions:
        return []
    shares = [f"{part} {result.fractions.get(part, 0.0):.0%}" for part in OF_LEARNER]
    return [f"{', '.join(shares)}; actors: waiting for slots {result.fractions.get('waiting for slots', 0.0):.0%}"]


def summary(result: IterationResult, reason: str, unit: str = "steps") -> str:
    """The result of a training and the reason for its end, in one line. reason: "total_steps" ..., "SIGINT"."""
    trained = f"trained in {result.seconds:.2f} s, ended by {reason}: {result.steps:,} {unit}"
    speed = f"{_speed(result)} steps/s" if result.steps_per_second else "none of them now"
    returned = "" if unit != "steps" else f", {_return(result)} (last {result.window} episodes)"
    return f"{trained}, {speed}{returned}"


def far(ended: int, episodes: int, steps: int) -> str:
    """An evaluation's progress in one line."""
    played = f"{ended} of {episodes} episodes have ended after {steps:,} steps"
    return f"evaluating the policy, which learns nothing meanwhile: {played}"


class EvaluationLines:
    """A function for evaluate(watch=...) that reports the progress of a long evaluation on standard error."""

    def __init__(self, episodes: int) -> None:
        self.episodes, self._next = episodes, time.monotonic() + LINE_EVERY

    def __call__(self, ended: int, steps: int) -> bool:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY
            tell(far(ended, self.episodes, steps))
        return False


def _table(title: str, result: IterationResult, unit: str = "steps") -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=False, title=Text(printable(title)))
    for _ in range(3):
        table.add_column(style="dim")
        table.add_column(justify="right")
    counters = {
        unit: f"{result.steps:,}",
        "steps/s": _speed(result),
        "time": _duration(result.seconds),
        "left": _duration(result.seconds_left),
        "return": _return(result).removeprefix("return "),
        "length": "-" if result.mean_length is None else f"{result.mean_length:.1f}",
    }
    losses = {name: f"{result.metrics[name]:.4g}" for name in LOSSES if name in result.metrics}
    fractions = {name: f"{fraction:.0%}" for name, fraction in result.fractions.items()}
    columns = [list(part.items()) for part in (counters, losses, fractions)]
    for row in range(max(map(len, columns))):
        cells = [column[row] if row < len(column) else ("", "") for column in columns]
        table.add_row(*(text.replace("_", " ") for cell in cells for text in cell))
    return table


def _speed(result: IterationResult) -> str:
    speed = result.steps_per_second
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if speed >= size:
            return f"{speed / size:.3g}{unit}"
    return f"{speed:.3g}"


def _return(result: IterationResult) -> str:
    reached = "return -" if result.mean_return is None else f"return {result.mean_return:.4g}"
    success = result.details.get("success_rate")
    return reached if success is None else f"{reached}, success rate {success:.0%}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
