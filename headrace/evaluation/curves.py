"""Plots learning curves of runs, also of other libraries, against environment steps and wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.packages import require
from headrace.core.terminal import tell
from headrace.core.text import did_you_mean, printable, shortened
from headrace.core.writing import free, replacing
from headrace.evaluation.history import RATING, Array, History, differing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 100  # episodes of a running mean
MOST_LETTERS = 100  # longest name in a plot
RESAMPLES = 1000  # number of bootstrap samples
GRID = 200  # points of a curve of several runs
MAX_POINTS = 3000  # largest number of episodes plotted as dots
STYLES = ("-", "--", ":", "-.")  # line styles of the agents in a group of runs
# safe for colour blindness (Okabe & Ito 2008)
SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot(
    runs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    by: Sequence[str] | None = None,
    metric: str | None = None,
) -> Path:
    """Plot the learning curves of run folders, and return the path of the image: a PNG, SVG or PDF, by its suffix.

    runs: folders of runs of Headrace or of other libraries: with monitor files of Stable-Baselines3, of rl_zoo3, or
    with TensorBoard's events, such as those of CleanRL.

    output: None stands for curves.png, or the first free name of curves_2.png ...
    by: settings that group the runs of an algorithm, such as ("learning_rate",). None for all settings of learning that
    differ between them, () for none.
    metric: a column of monitor.csv or metrics.jsonl to plot in place of returns: a name of log_info, "value_loss" ...

    Each environment has a row: the return of training episodes against environment steps and against wall time. A
    single run is plotted as its running mean over 100 episodes, with a dot for each episode. Several runs of one group
    are treated as seeds. Their line is the mean of their running means, of four and more runs the interquartile mean,
    with a 95 % confidence band by stratified bootstrap (Agarwal et al. 2021, arXiv:2108.13264). If `by` puts runs with
    several settings into one group, the bootstrap draws runs among those with the same settings. A run that ended
    before others keeps its last value.
    With several agents there is a line for each agent, or for each group with its own policy: the mean return over the
    run's window of episodes. With self-play the learner's Elo rating is plotted in place of returns.
    Damaged rows of a run's logs are left out, with a warning for each.
    A folder that is not a run, or has no episodes, is left out, and a line reports it.
    Raises FileNotFoundError, ValueError if this is so for all folders, or if a name in `by` is not a setting of the
    runs; ImportError without matplotlib.
    """
    runs = [runs] if isinstance(runs, str | Path) else runs
    target = free("curves.png") if output is None else Path(output)
    if target.suffix not in SUFFIXES:
        raise ValueError(f"a plot is a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file, got {str(target)!r}")
    if not runs:
        raise ValueError("name at least one run folder to plot")
    for package in ("matplotlib", "scipy"):
        require(package, "plots need matplotlib and scipy: pip install 'headrace[plot]'")
    from matplotlib.figure import Figure  # needs no screen

    histories = _readable([*dict.fromkeys(map(Path, runs))], metric or "")
    _check_settings(by or (), histories)
    histories = _with_envs(histories)
    envs = list(dict.fromkeys(history.env for history in histories))
    groups = [grouped([history for history in histories if history.env == env], by) for env in envs]
    height = 0.6 + sum(3.6 + 0.2 * len(each) for each in groups)  # with a line of the legend for each group
    figure = Figure(figsize=(10.5, height), dpi=150, layout="constrained")
    grid = figure.subplots(len(envs), 2, squeeze=False, sharey="row")
    for row, env, each in zip(grid, envs, groups, strict=True):
        _plot_env(row, env, each)
    with replacing(target, "the plot") as fresh:
        figure.savefig(fresh)
    return target


def _readable(runs: Sequence[Path], metric: str) -> list[History]:
    """Read the histories of runs. A line says why a run cannot be read. If none can be read, raises the first error."""
    from headrace.evaluation import foreign_logs  # which `import headrace` does not need

    found, wrong = list[History](), list[Exception]()
    for run in runs:
        try:
            found.append(foreign_logs.read(run, metric))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            wrong.append(error)
    if not found:
        raise wrong[0]
    for reason in wrong:
        tell(f"left out: {shortened(str(reason))}")
    return found


def _with_envs(histories: Sequence[History]) -> list[History]:
    """Give each history the name of an environment. If a library's files do not name it, the other runs' environment is
    taken, if they all have the same."""
    named = {history.env for history in histories if history.env}
    env = named.pop() if len(named) == 1 else "environment unknown"
    return [history if history.env else replace(history, env=env) for history in histories]


def _label(name: str) -> str:
    """Escape a name for matplotlib, which hides names that begin with "_" and takes text between dollars for
    formulas."""
    text = shortened(printable(name), MOST_LETTERS).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _check_settings(names: Sequence[str], histories: Sequence[History]) -> None:
    known = {name for history in histories for name in history.settings}
    for name in names:
        if name not in known:
            raise ValueError(f"no run has a setting {name!r}{did_you_mean(name, known)}")


def grouped(histories: Sequence[History], by: Sequence[str] | None = None) -> dict[str, list[History]]:
    """Group the runs of one environment by algorithm and the values of some settings: see plot()."""
    groups: dict[str, list[History]] = {}
    for history in histories:
        alike = [other.settings for other in histories if other.name == history.name]
        names = differing(alike) if by is None else by
        values = [f"{name} {history.settings.get(name, 'none')}" for name in names if name in history.settings]
        groups.setdefault(", ".join([history.name, *values]), []).append(history)
    return groups


def running_mean(value: Array, window: int = WINDOW) -> Array:
    """Mean of each entry and the window - 1 entries before it, [E]; of fewer at the start."""
    total = np.concatenate([[0.0], np.cumsum(value)])
    stop = np.arange(1, len(value) + 1)
    start = np.maximum(stop - window, 0)
    return (total[stop] - total[start]) / (stop - start)


def smoothed(history: History) -> Array:
    """The running mean of a run's returns, or the returns themselves if they are means already."""
    return history.episode_return if history.averaged else running_mean(history.episode_return)


def interquartile_mean(value: Array, axis: int = 0) -> Array:
    """Mean of the middle half along an axis; the mean of all if there are fewer than four."""
    from scipy.stats import trim_mean

    return trim_mean(value, 0.25, axis=axis)


def join(histories: Sequence[History], axis: str) -> tuple[Array, Array, Array, Array]:
    """x, interquartile mean over runs, and lower and upper bound of its 95 % confidence interval, [200] each."""
    known = [(history.axis(axis), smoothed(history)) for history in histories]
    return join_curves(known, strata(histories))


def strata(histories: Sequence[History]) -> list[str]:
    """Values of each run's settings of learning in which the runs differ, as text."""
    settings = [history.settings for history in histories]
    names = differing(settings)
    return [repr([own.get(name) for name in names]) for own in settings]


def join_curves(curves: Sequence[tuple[Array, Array]], stratum: Sequence[str]) -> tuple[Array, Array, Array, Array]:
    """Join curves given by their x and y, as join() does. stratum: for each curve, the name of the set that the
    bootstrap draws it from."""
    x = np.linspace(max(known[0] for known, _ in curves), max(known[-1] for known, _ in curves), GRID)
    y = np.stack([np.interp(x, *known) for known in curves])
    generator, members = (
        np.random.default_rng(0),
        [np.flatnonzero(np.array(stratum) == name) for name in dict.fromkeys(stratum)],
    )
    means = []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([generator.choice(own, len(own)) for own in members])
        means.append(interquartile_mean(y[drawn]))
    low, high = np.percentile(means, (2.5, 97.5), axis=0)
    return x, interquartile_mean(y), low, high


def _plot_env(row: Sequence[Axes], env: str, groups: Mapping[str, Sequence[History]]) -> None:
    """The two panels of one environment: against steps, against time."""
    for panel, axis in zip(row, ("steps", "seconds"), strict=True):
        for colour, (name, members) in zip(cycle(COLOURS), groups.items(), strict=False):
            _plot_group(panel, axis, colour, name, members)
        _style(panel, axis)
    first = row[0]
    first.set_title(_label(env), loc="left", fontweight="bold")
    rated = any(RATING in run.by_agent for members in groups.values() for run in members)
    metric = next(iter(groups.values()))[0].metric
    first.set_ylabel(_label(metric) if metric else RATING if rated else "episode return")
    first.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), frameon=False, fontsize=9)  # below: it hides no curve


def _plot_group(panel: Axes, axis: str, colour: str, name: str, members: Sequence[History]) -> None:
    if agents := [agent for agent in members[0].by_agent if all(agent in run.by_agent for run in members)]:
        for style, agent in zip(cycle(STYLES), agents, strict=False):
            _plot_agent(
                panel, axis, colour, style, f"{name}, {agent}", [run.by_agent[agent] for run in members], members
            )
        return
    if len(members) > 1:
        _plot_band(panel, colour, "-", name, len(members), join(members, axis))
        return
    (only,) = members
    if only.averaged:
        panel.plot(only.axis(axis), only.episode_return, color=colour, linewidth=2, label=_label(name))
        return
    chosen = np.unique(np.linspace(0, len(only.steps) - 1, MAX_POINTS).astype(int))
    x, y = only.axis(axis), only.episode_return
    alpha = min(0.6, max(0.15, 100 / len(chosen)))  # fewer dots are darker
    panel.plot(x[chosen], y[chosen], ".", color=colour, alpha=alpha, markersize=4, markeredgewidth=0)
    panel.plot(x, running_mean(y), color=colour, linewidth=2, label=f"{_label(name)}, mean of {WINDOW} episodes")


def _plot_agent(
    panel: Axes, axis: str, colour: str, style: str, name: str, rows: Sequence[Array], members: Sequence[History]
) -> None:
    """Plot the line of one agent. rows: for each run, see History.by_agent."""
    known = [(row[:, 0 if axis == "steps" else 1], row[:, 2]) for row in rows]
    if len(known) > 1:
        _plot_band(panel, colour, style, name, len(known), join_curves(known, strata(members)))
    else:
        panel.plot(*known[0], style, color=colour, linewidth=2, label=_label(name))


def _plot_band(panel: Axes, colour: str, style: str, name: str, runs: int, curve: tuple[Array, ...]) -> None:
    """Plot the mean of several runs, and its band."""
    x, middle, low, high = curve
    panel.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    mean = "mean" if runs < 4 else "interquartile mean"
    panel.plot(x, middle, style, color=colour, linewidth=2, label=f"{_label(name)}, {mean} of {runs} runs, 95 % band")


def _style(panel: Axes, axis: str) -> None:
    """Labels, units and grid."""
    from matplotlib.ticker import EngFormatter

    panel.set_xlim(left=0)
    panel.grid(color="0.9", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel("environment steps" if axis == "steps" else "wall time of training (s)")
    if axis == "steps":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
