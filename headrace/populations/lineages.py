"""Plot a population: scores and settings of its members against steps, and which members copied which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.packages import require
from headrace.core.writing import free, replacing
from headrace.evaluation.curves import COLOURS, SUFFIXES
from headrace.populations.population_record import RECORD, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Point(NamedTuple):
    """A member in an interval."""

    steps: tuple[int, int]  # at which the interval begins and ends
    parent: int  # the member whose state it began with
    origin: int  # the member of the first interval that it descends from
    score: float | None  # None if it failed
    settings: dict[str, Any]


def is_population(folder: str | Path) -> bool:
    """True for the folder of a population."""
    return (Path(folder) / RECORD).is_file()


def history(folder: str | Path) -> list[list[Point]]:
    """The members of a population by interval, for intervals with all results.

    Raises FileNotFoundError for a folder that is not a population's, ValueError if no interval is complete.
    """
    if not is_population(folder):
        raise FileNotFoundError(f"{folder} is not a population: it has no {RECORD}")
    record = Record(Path(folder))
    every, total = record.about["interval"], record.about["total_steps"]
    intervals: list[list[Point]] = []
    for interval, decided in enumerate(record.decisions()[:-1], 1):
        results, before = record.results(interval), intervals[-1] if intervals else None
        steps = (interval - 1) * every, total if interval == total // every else interval * every
        intervals.append(
            [
                Point(
                    steps,
                    row["from"],
                    before[row["from"]].origin if before else row["member"],
                    results[row["member"]].get("score"),
                    row["settings"],
                )
                for row in decided
            ]
        )
    if not intervals:
        raise ValueError(f"{folder} has nothing to plot yet: its first interval is not over")
    return intervals


def ancestors(intervals: Sequence[Sequence[Point]]) -> list[int]:
    """The best member of the last interval and its ancestors, by interval."""
    last = intervals[-1]
    member = max(range(len(last)), key=lambda member: (last[member].score is not None, last[member].score, -member))
    found = [member]
    for points in reversed(intervals[1:]):
        found.append(points[found[-1]].parent)
    return found[::-1]


def plot(folder: str | Path, output: str | Path | None = None) -> Path:
    """Plot a population, and return the path of the image: a PNG, SVG or PDF, by its suffix.

    There is a panel for scores and one for each setting. Lines of one colour descend from one member. A line that
    begins at the end of another member's line is a copy of that member. The ancestors of the best member are drawn
    thick.
    output: None stands for population.png, or the first free name of population_2.png ...
    Raises FileNotFoundError, ValueError, see history(); ImportError without matplotlib.
    """
    target = free("population.png") if output is None else Path(output)
    if target.suffix not in SUFFIXES:
        raise ValueError(f"a plot is a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file, got {str(target)!r}")
    intervals = history(folder)
    require("matplotlib", "plots need matplotlib: pip install 'headrace[plot]'")
    from matplotlib.figure import Figure  # needs no screen

    names = [name for name, x in intervals[0][0].settings.items() if isinstance(x, int | float)]
    figure = Figure(figsize=(8, 0.6 + 2.6 * (1 + len(names))), dpi=150, layout="constrained")
    panels = figure.subplots(1 + len(names), 1, squeeze=False, sharex=True)[:, 0]
    _plot_members(panels[0], intervals, lambda point: point.score, steps=False)
    panels[0].set_title(Path(folder).resolve().name, loc="left", fontweight="bold")
    _style(panels[0], "score")
    for panel, name in zip(panels[1:], names, strict=True):
        _plot_members(panel, intervals, lambda point, name=name: point.settings[name], steps=True)  # type: ignore[misc]
        values = [point.settings[name] for points in intervals for point in points]
        if min(values) > 0 and max(values) >= 10 * min(values):
            panel.set_yscale("log")
        _style(panel, name)
    panels[-1].set_xlabel("environment steps of each member")
    with replacing(target, "the plot") as fresh:
        figure.savefig(fresh)
    return target


def _plot_members(
    panel: Axes, intervals: Sequence[Sequence[Point]], value: Callable[[Point], Any], steps: bool
) -> None:
    """Plot a line for each member in each interval. steps: whether the value holds during the interval, like a setting,
    rather than at its end."""
    colours, best = dict(zip(range(len(intervals[0])), cycle(COLOURS), strict=False)), ancestors(intervals)
    for number, points in enumerate(intervals):
        for member, point in enumerate(points):
            now, parent = value(point), intervals[number - 1][point.parent] if number else None
            before = now if steps or parent is None else value(parent)
            if now is None or before is None:
                continue
            thick = best[number] == member
            style: dict[str, Any] = {
                "color": colours[point.origin],
                "linewidth": 2.5 if thick else 0.9,
                "alpha": 1 if thick else 0.6,
            }
            if number or steps:
                panel.plot(point.steps, (before, now), zorder=3 if thick else 2, **style)
            if steps and parent is not None:
                panel.plot([point.steps[0]] * 2, (value(parent), now), zorder=3 if thick else 2, **style)
            elif not steps:
                panel.plot(point.steps[1], now, ".", markersize=4, zorder=3 if thick else 2, color=style["color"])


def _style(panel: Axes, name: str) -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_ylabel(name)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.grid(color="0.9", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
