"""The charts of a report, as SVG that stretches to its container. Text is in the HTML, so it does not stretch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headrace.diagnose.profile.formatting import percent
from headrace.diagnose.profile.profile import Lane, Role, Series
from headrace.diagnose.report.table import Row
from headrace.diagnose.verdict.profile_facts import binned, overlaps

COLUMNS = 300  # of a timeline: each is a stacked bar of the roles in its part of the time
LABELLED = 0.12  # a part of a bar is labelled if it takes at least this share
HEIGHT = 100  # of a chart, in SVG units


def strip(lane: Lane, start: float, end: float, columns: int = COLUMNS) -> str:
    """A thread's roles between two times: a stacked bar for each column."""
    paths: dict[Role, list[str]] = {}
    for column, shares in enumerate(binned(lane.spans, start, end, columns)):
        top = float(HEIGHT)
        for role in Role:
            height = HEIGHT * shares.get(role, 0.0)
            if height > 0.3:
                top -= height
                paths.setdefault(role, []).append(f"M{column} {top:.1f}h1v{height:.1f}h-1z")
    drawn = "".join(_path("".join(parts), role.colour, role.label) for role, parts in paths.items())
    return _svg(columns, drawn, f"activity of {lane.name} over time")


def effort(lane: Lane, start: float, end: float, columns: int = COLUMNS) -> str:
    """A chart of how much of a core a native thread used over time; its roles are not known."""
    width = max(end - start, 1e-9) / columns
    used = [0.0] * columns
    for span in lane.spans:
        for column, inside in overlaps((span.start - start) / width, (span.end - start) / width, columns):
            used[column] += span.on_cpu * inside
    parts = [
        f"M{column} {HEIGHT * (1 - min(share, 1)):.1f}h1V{HEIGHT}h-1z" for column, share in enumerate(used) if share > 0
    ]
    return _svg(columns, _path("".join(parts), Role.OTHER.colour, "on a core"), f"use of a core by {lane.name}")


def area(series: Sequence[Series], seconds: float, top: float) -> str:
    """Values over time, summed over the series; the chart's height is `top`."""
    values = summed(series, seconds, COLUMNS)
    points = "".join(f"V{HEIGHT * (1 - min(value / top, 1.0)):.1f}h1" for value in values)
    drawn = f'<path d="M0 {HEIGHT}{points}V{HEIGHT}z" fill="#3b7dd8"/>'
    return _svg(COLUMNS, drawn, " and ".join({one.name for one in series}) + " over time", "tall")


def level(series: Series, start: float, end: float, columns: int = COLUMNS) -> str:
    """A quantity in % between two times, as bars of its height."""
    width, parts = max(end - start, 1e-9) / columns, []
    values = [0.0] * columns
    for begin, finish, value in zip(series.times, [*series.times[1:], end], series.values, strict=True):
        for column, inside in overlaps((begin - start) / width, (finish - start) / width, columns):
            values[column] += value * inside / 100
    parts = [f"M{column} {HEIGHT * (1 - min(value, 1)):.1f}h1V{HEIGHT}h-1z" for column, value in enumerate(values)]
    return _svg(columns, _path("".join(parts), "#3b7dd8", series.name), f"{series.name} over time")


def summed(series: Sequence[Series], seconds: float, columns: int) -> list[float]:
    """The mean value of each series in each of `columns` equal parts of the time, summed over the series."""
    total = [0.0] * columns
    for one in series:
        sums, lengths = [0.0] * columns, [0.0] * columns
        ends = [*one.times[1:], seconds]
        for start, end, value in zip(one.times, ends, one.values, strict=True):
            first, last = (columns * moment / max(seconds, 1e-9) for moment in (start, end))
            for column, inside in overlaps(first, last, columns):
                sums[column] += value * inside
                lengths[column] += inside
        for column, length in enumerate(lengths):
            total[column] += sums[column] / length if length else 0.0
    return total


def bar(rows: Sequence[Row]) -> str:
    """A stacked bar in HTML, in the order of the roles."""
    parts = [
        f'<i style="flex:{row.share:.4f} 0 0;background:{row.colour};color:{_ink(row.colour)}" '
        f'title="{escape(row.title)} {percent(row.share)}">{escape(row.title) if row.share >= LABELLED else ""}</i>'
        for row in sorted(rows, key=lambda row: list(Role).index(row.role))
    ]
    label = ", ".join(f"{row.title} {percent(row.share)}" for row in rows)
    return f'<div class="bar" role="img" aria-label="{escape(label)}">{"".join(parts)}</div>'


def _ink(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#14181f" if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "#ffffff"


def _path(data: str, colour: str, title: str) -> str:
    return f'<path d="{data}" fill="{colour}" shape-rendering="crispEdges"><title>{escape(title)}</title></path>'


def _svg(columns: int, drawn: str, label: str, kind: str = "") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {columns} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{drawn}</svg>'
    )
