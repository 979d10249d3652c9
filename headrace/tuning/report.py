"""Describe the result of tune(): a table, a sentence with the reason, and a file of settings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch

from headrace.core.text import plain_table
from headrace.parallel.placement import crossover
from headrace.tuning.candidates import Task
from headrace.tuning.measure import Row

HEADINGS = ("settings", "steps/s", "lowest .. highest", "to the return", "")
SAME = 0.97  # ratio of speeds that are called about the same


def table(rows: Sequence[Row], chosen: Row) -> str:
    """A table of all candidates, the fastest first and failed ones last."""
    ordered = sorted(rows, key=lambda row: -row.rate)
    cells = [
        (str(row.candidate), *_speed(row), _seconds(row), "chosen" if row is chosen else row.reason or row.behind)
        for row in ordered
    ]
    return plain_table([HEADINGS, *cells])


def _speed(row: Row) -> tuple[str, str]:
    if not row.rates:
        return "", ""
    return f"{row.rate:,.0f}", f"{min(row.rates):,.0f} .. {max(row.rates):,.0f}"


def _seconds(row: Row) -> str:
    times = row.seconds_to_return
    if not times:
        return ""
    spread = f" ({min(times):.2f} .. {max(times):.2f})" if len(times) > 1 else ""
    return f"{median(times):.2f} s{spread}"


def reason(rows: Sequence[Row], chosen: Row, task: Task, target: float | None) -> str:
    """The reason for the choice, in a sentence with figures. target: return for which times were compared, if any."""
    others = sorted((row for row in rows if row.rates and row is not chosen), key=lambda row: -row.rate)
    parts = [f"{chosen.candidate}: {chosen.rate:,.0f} steps/s"]
    base = next((row for row in rows if row.candidate == task.base and row.rates), None)
    elsewhere = [
        row for row in others if row.candidate.processes and row.candidate["num_envs"] == chosen.candidate["num_envs"]
    ]
    if base is not None and base is not chosen:
        parts[0] += f" against {base.rate:,.0f} with {base.candidate}"
    if chosen.candidate.processes == 0 and elsewhere and elsewhere[0].rate * SAME < chosen.rate:
        best = elsewhere[0]
        parts.append(f"processes do not pay here: {best.candidate.placed()} gave {best.rate:,.0f} at best")
    if task.step is not None:
        kind = "waiting" if task.waits else "computing"
        ratio = None if base is None else base.ratio
        against = "" if ratio is None else f", and collecting {ratio:.2g} times as long as learning (R)"
        parts.append(f"a step of one environment takes {task.step.seconds * 1e3:.3g} ms, {kind}{against}")
    if target is not None:
        times = [f"{row.candidate} {_seconds(row)}" for row in others if row.seconds_to_return]
        late = [f"{row.candidate} did not" for row in others if row.behind and not row.seconds_to_return]
        compared = ", ".join(times + late)
        parts.append(f"it reached a return of {target:.4g} after {_seconds(chosen)} ({compared})")
    return "; ".join([*parts, *_devices(rows, chosen)])


def _devices(rows: Sequence[Row], chosen: Row) -> list[str]:
    """Describe the result with the other device."""
    device = chosen.candidate["device"]
    others = [row for row in rows if row.rates and row.candidate["device"] != device]
    if not others:
        return []
    best = max(others, key=lambda row: row.rate)
    if device != "cpu":
        return [f"the CPU gives {best.rate:,.0f}"]
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    weights = crossover(name)
    pays = f"; it pays from {weights:,} weights on" if weights else ""
    return [f"stay on the CPU: the GPU gives {best.rate:,.0f}{pays}"]
