"""A profile as a trace for chrome://tracing and https://ui.perfetto.dev.

Source: the Trace Event Format (Google, 2016): complete events ("X") with times in microseconds, counters ("C") and
metadata ("M").
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from headrace.diagnose.profile.profile import Lane, Profile, Series

TRACE = "trace.json"
Json: TypeAlias = float | str | dict[str, "Json"] | list["Json"]
Event: TypeAlias = dict[str, Json]
MACHINE = 0  # pid of series that belong to no process


def save(profile: Profile, folder: Path) -> Path:
    """Write trace.json into a folder, and give its path."""
    path = folder / TRACE
    path.write_text(json.dumps(trace(profile)))
    return path


def trace(profile: Profile) -> Event:
    """The trace in JSON's types: a track for each thread, a counter for each series."""
    events: list[Json] = []
    named: set[int] = set()
    for place, lane in enumerate(profile.lanes):
        if lane.pid not in named:
            named.add(lane.pid)
            # a worker process is named after its main thread
            name = "script" if lane.pid == profile.training_thread.pid else lane.name
            events.append(_meta("process_name", lane.pid, lane.tid, {"name": f"{name} ({lane.pid})"}))
        events.append(_meta("thread_name", lane.pid, lane.tid, {"name": lane.name}))
        events.append(_meta("thread_sort_index", lane.pid, lane.tid, {"sort_index": place}))
        events += _spans(lane)
    for series in profile.series:
        events += _counter(series)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"command": " ".join(profile.command)}}


def _spans(lane: Lane) -> list[Event]:
    return [
        {
            "ph": "X",
            "name": span.role.label,
            "cat": str(span.role),
            "pid": lane.pid,
            "tid": lane.tid,
            "ts": _microseconds(span.start),
            "dur": _microseconds(span.end - span.start),
            "args": {"detail": span.detail, "on_cpu": round(span.on_cpu, 3)},
        }
        for span in lane.spans
    ]


def _counter(series: Series) -> list[Event]:
    name = f"{series.name} ({series.unit})"
    pairs = zip(series.times, series.values, strict=True)
    return [
        {"ph": "C", "name": name, "pid": series.pid or MACHINE, "ts": _microseconds(time), "args": {series.unit: value}}
        for time, value in pairs
    ]


def _meta(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 1)
