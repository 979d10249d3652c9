"""Plots learning curves of runs against environment steps and wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.free_name import free
from headrace.core.packages import require
from headrace.core.text import did_you_mean
from headrace.evaluation.history import Array, History, differing, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 100  # episodes of a running mean
GRID = 200  # points of a curve of several runs
MAX_POINTS = 3000  # single episodes that are plotted, at most
# safe for colour blindness (Okabe & Ito 2008)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot(runs: Sequence[str | Path], output: str | Path | None = None, by: Sequence[str] | None = None) -> Path:
    """Plot the learning curves of run folders, and return the path of the image: a PNG, SVG or PDF, by its suffix.

    output: None stands for curves.png, or the first free name of curves_2.png ...
    by: settings by which the runs of an algorithm are grouped, ("learning_rate",); None for all that differ between
    them and concern learning, () for none.

    Each environment has a row: the return of training episodes against environment steps and against wall time. A
    single run is plotted as its running mean over 100 episodes, with a dot for each episode. Several runs of one
    group are treated as seeds: the interquartile mean of their running means, with a 95 % bootstrap confidence band
    (Agarwal et al. 2021, arXiv:2108.13264). A run that ended before others keeps its last value.
    Damaged rows of a run's logs are left out, with a warning for each.
    Raises FileNotFoundError, ValueError for a folder that is no run or has no episodes, or a name in `by` that is no
    setting of theirs; ImportError without matplotlib.
    """
    if not runs:
        raise ValueError("name at least one run folder to plot")
    for package in ("matplotlib", "scipy"):
        require(package, "plots need matplotlib and scipy: pip install 'headrace[plot]'")
    from matplotlib.figure import Figure  # needs no screen

    histories = [read(run) for run in dict.fromkeys(map(Path, runs))]
    _check_settings(by or (), histories)
    envs = list(dict.fromkeys(history.env for history in histories))
    figure = Figure(figsize=(10.5, 0.6 + 3.6 * len(envs)), dpi=150, layout="constrained")
    grid = figure.subplots(len(envs), 2, squeeze=False, sharey="row")
    for row, env in zip(grid, envs, strict=True):
        _plot_env(row, env, grouped([history for history in histories if history.env == env], by))
    target = free("curves.png") if output is None else Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return target


def _check_settings(names: Sequence[str], histories: Sequence[History]) -> None:
    known = {name for history in histories for name in history.settings}
    for name in names:
        if name not in known:
            raise ValueError(f"no run has a setting {name!r}{did_you_mean(name, known)}")


def grouped(histories: Sequence[History], by: Sequence[str] | None = None) -> dict[str, list[History]]:
    """Runs of one environment by algorithm and the values of some settings: see plot()."""
    groups: dict[str, list[History]] = {}
    for history in histories:
        alike = [other.settings for other in histories if other.algorithm == history.algorithm]
        names = differing(alike) if by is None else by
        values = [f"{name} {history.settings.get(name, 'none')}" for name in names if name in history.settings]
        groups.setdefault(", ".join([history.algorithm.upper(), *values]), []).append(history)
    return groups


def running_mean(value: Array, window: int = WINDOW) -> Array:
    """Mean of each entry and the window - 1 before it, [E]; of fewer at the start."""
    total = np.concatenate([[0.0], np.cumsum(value)])
    stop = np.arange(1, len(value) + 1)
    start = np.maximum(stop - window, 0)
    return (total[stop] - total[start]) / (stop - start)


def interquartile_mean(value: Array, axis: int = 0) -> Array:
    """Mean of the middle half along an axis; of everything where there are fewer than four."""
    from scipy.stats import trim_mean

    return trim_mean(value, 0.25, axis=axis)


def join(histories: Sequence[History], axis: str) -> tuple[Array, Array, Array, Array]:
    """x, interquartile mean over runs, and lower and upper bound of its 95 % confidence interval, [200] each."""
    from scipy.stats import bootstrap

    start = max(history.axis(axis)[0] for history in histories)
    x = np.linspace(start, max(history.axis(axis)[-1] for history in histories), GRID)
    curves = np.stack([np.interp(x, h.axis(axis), running_mean(h.episode_return)) for h in histories])
    with np.errstate(invalid="ignore"):
        band = bootstrap(
            (curves,), interquartile_mean, axis=0, n_resamples=1000, method="percentile", rng=0
        ).confidence_interval
    return x, interquartile_mean(curves), band.low, band.high


def _plot_env(row: Sequence[Axes], env: str, groups: Mapping[str, Sequence[History]]) -> None:
    """The two panels of one environment: against steps, against time."""
    for panel, axis in zip(row, ("steps", "seconds"), strict=True):
        for colour, (name, members) in zip(cycle(COLOURS), groups.items(), strict=False):
            _plot_group(panel, axis, colour, name, members)
        _style(panel, axis)
    first = row[0]
    first.set_title(env, loc="left", fontweight="bold")
    first.set_ylabel("episode return")
    first.legend(loc="best", frameon=False, fontsize=9)


def _plot_group(panel: Axes, axis: str, colour: str, name: str, members: Sequence[History]) -> None:
    if len(members) > 1:
        x, middle, low, high = join(members, axis)
        panel.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        mean = "mean" if len(members) < 4 else "interquartile mean"
        label = f"{name}, {mean} of {len(members)} runs, 95 % band"
        panel.plot(x, middle, color=colour, linewidth=2, label=label)
        return
    (only,) = members
    chosen = np.unique(np.linspace(0, len(only.steps) - 1, MAX_POINTS).astype(int))
    x, y = only.axis(axis), only.episode_return
    alpha = min(0.6, max(0.15, 100 / len(chosen)))  # fewer dots are darker
    panel.plot(x[chosen], y[chosen], ".", color=colour, alpha=alpha, markersize=4, markeredgewidth=0)
    panel.plot(x, running_mean(y), color=colour, linewidth=2, label=f"{name}, mean of {WINDOW} episodes")


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
