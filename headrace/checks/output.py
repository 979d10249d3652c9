"""Print the results of `headrace check`, or write them as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from headrace.checks.environment import Report
from headrace.checks.random_rollout import StepTimes
from headrace.core.terminal import LINES
from headrace.core.text import printable

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "wrong": ("WRONG", "bold red")}
WIDTH = 120  # characters, if the output is not a terminal
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def passed(report: Report) -> bool:
    """Tell whether no finding of a report is wrong."""
    return all(finding.outcome != "wrong" for finding in report.findings)


def show(report: Report, file: Path | None, as_json: bool) -> None:
    """Print the results, and write them to a JSON file unless that is None."""
    if not write_json(to_json(report), file, as_json):
        _print(report)


def write_json(results: Mapping[str, object], file: Path | None, printed: bool) -> bool:
    """Write results to a JSON file unless that is None, and print them where `printed` says so; returns `printed`."""
    text = json.dumps(results, indent=1)
    if file is not None:
        file.write_text(text + "\n")
    if printed:
        print(text)
    return printed


def to_json(report: Report) -> dict[str, object]:
    """Convert to JSON's types."""
    return {
        "env": report.name,
        "passed": passed(report),
        "findings": [finding._asdict() for finding in report.findings],
        "step_seconds": None if report.times is None else report.times._asdict(),
        "backends": [cost._asdict() for cost in report.costs],
    }


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    console.print(Text(printable(report.name), style="bold"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for finding in report.findings:
        mark, style = MARKS[finding.outcome]
        text = Text(printable(finding.found, LINES))
        if finding.advice and finding.outcome != "ok":
            text.append(f"\n-> {printable(finding.advice, LINES)}", style="dim")
        table.add_row(Text(mark, style=style), finding.check, text)
    console.print(table)
    if report.times is not None:
        console.print(f"\n{_times(report.times)}")
    if report.costs:
        costs = Table("backend", "time per step", "steps/s", "", box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for column in costs.columns[1:3]:
            column.justify = "right"
        for cost in report.costs:
            numbers = ("-", "-") if cost.seconds is None else (duration(cost.seconds), f"{1 / cost.seconds:,.0f}")
            costs.add_row(cost.backend, *numbers, Text(printable(cost.note), style="dim"))
        console.print()
        console.print(costs)
    console.print(f"\n{_summary(report)}", style="green" if passed(report) else "bold red")


def _times(times: StepTimes) -> str:
    steps = f"{duration(times.median)} (median), {duration(times.p99)} (p99), {duration(times.slowest)} (slowest"
    return f"a step of one environment takes {steps} of {times.steps:,}); a reset takes {duration(times.reset)}"


def _summary(report: Report) -> str:
    count = Counter(finding.outcome for finding in report.findings)
    wrong = f"{count['wrong']} wrong" if count["wrong"] else "nothing wrong"
    notes = f", {count['note']} note{'s' * (count['note'] != 1)}"
    return wrong + (notes if count["note"] or count["wrong"] else "")


def duration(seconds: float) -> str:
    """A time in three digits: "12.5 us"."""
    size, unit = next((pair for pair in UNITS if seconds >= pair[0]), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"
