"""The image of README.md from the rows of solve.py: seconds until CartPole is solved, by library.

    python -m benchmarks.returns.solve --library headrace sb3 cleanrl rejax --seeds 0-9
    python -m benchmarks.pages.solve_figure

The newest sitting in which one machine has measured all libraries counts.
"""

from __future__ import annotations

import statistics
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import HERE, ROOT, Row, read_rows
from benchmarks.figures import PAGE, STYLES, canvas, dress

FILE = HERE / "results" / "solve.jsonl"
IMAGE = ROOT / "docs" / "images" / "time_to_475.png"
PAUSE = timedelta(minutes=30)  # longer ones end a sitting
LIBRARIES = {
    "headrace": "Headrace",
    "sb3": "Stable-Baselines3",
    "cleanrl": "plain PyTorch,\nCleanRL's style",
    "rejax": "rejax (JAX)",
}


class Bar(NamedTuple):
    """One library with one choice of settings."""

    label: str
    config: str | None  # None: those that Headrace registers
    seconds: tuple[float, ...]  # of training until it held, of each seed that did
    seeds: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def newest(runs: list[Row]) -> dict[tuple[str, str | None], list[Row]]:
    """The rows of CartPole by library and settings, of the newest sitting with all libraries: runs on one machine, each
    begun within PAUSE of the one before. Raises ValueError without one."""
    sittings: list[dict[tuple[str, str | None], list[Row]]] = []
    machine, last = "", datetime.min
    for run in sorted(runs, key=lambda run: run["when"]):
        when = datetime.fromisoformat(run["when"].rstrip("Z"))
        if run["machine"]["cpu"] != machine or when - last > PAUSE:
            sittings.append({})
        machine, last = run["machine"]["cpu"], when
        rows = [row for row in run["rows"] if row["env"] == "CartPole-v1" and row["cache"] != "cold"]
        if not (run["settings"] or run["quick"]):
            sittings[-1] |= {key: list(of) for key, of in groupby(rows, lambda row: (row["library"], row["config"]))}
    for found in reversed(sittings):
        if {library for library, _ in found} >= LIBRARIES.keys():
            return found
    raise ValueError(f"there is no sitting with {', '.join(LIBRARIES)}: run solve.py with all of them")


def bars(found: dict[tuple[str, str | None], list[Row]]) -> list[Bar]:
    """A bar for each library: Headrace with its own settings, the others with those that solve it on most seeds, and
    of these the faster."""
    chosen = []
    for library, label in LIBRARIES.items():
        kinds = [key for key in found if key[0] == library and (library != "headrace" or key[1] is None)]
        held = {key: tuple(row["held_train_s"] for row in found[key] if row["held"]) for key in kinds}
        made = [Bar(label, key[1], held[key], len(found[key])) for key in kinds if held[key]]
        chosen.append(min(made, key=lambda bar: (-len(bar.seconds) / bar.seeds, bar.median)))
    return chosen


def draw(found: list[Bar], path: Path) -> None:
    """Write the image: a bar and a number for each median, a dot for each seed."""
    figure, panel = canvas(PAGE, 2.2)
    for place, bar in enumerate(found):
        ours = bar.label == LIBRARIES["headrace"]
        panel.barh(place, bar.median, 0.62, color=STYLES["kernel"][0] if ours else "0.75")
        panel.plot(bar.seconds, [place + 0.2] * len(bar.seconds), "o", color="0.25", markersize=2.2, markeredgewidth=0)
        solved = "" if len(bar.seconds) == bar.seeds else f" ({len(bar.seconds)} of {bar.seeds} seeds)"
        text = f"{bar.median:.2f} s{solved}" if bar.median < 1 else f"{bar.median:.1f} s{solved}"
        look = {"va": "center", "weight": "bold" if ours else "normal"}
        panel.text(bar.median + 0.08, place - 0.06, text, **look)
    panel.set_yticks(range(len(found)), [bar.label for bar in found])
    panel.invert_yaxis()
    panel.set_xlim(0, 1.12 * max(max(bar.seconds) for bar in found))
    panel.set_xlabel("seconds of training until CartPole-v1 is solved")
    dress(panel)
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    figure.savefig(path)


def main() -> None:
    found = bars(newest(read_rows(FILE)))
    for bar in found:
        name = f"{' '.join(bar.label.split())}, {bar.config or 'own'} settings"
        print(f"{name}: {bar.median:.3f} s, {len(bar.seconds)} of {bar.seeds} seeds")
    draw(found, IMAGE)


if __name__ == "__main__":
    main()
