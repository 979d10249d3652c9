"""What was found of an environment, on the screen and as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from headrace.checks.environment import Report
from headrace.checks.random_rollout import Times

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "wrong": ("WRONG", "bold red")}
WIDTH = 120  # of what does not go to a terminal
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def passed(report: Report) -> bool:
    """Whether nothing is wrong."""
    return all(finding.outcome != "wrong" for finding in report.findings)


def show(report: Report, options: Any) -> None:
    """Print what was found, and write it where asked. options: output and json of `headrace check`."""
    text = json.dumps(as_json(report), indent=1)
    if options.output is not None:
        options.output.write_text(text + "\n")
    if options.json:
        print(text)
    else:
        _print(report)


def as_json(report: Report) -> dict[str, Any]:
    """In JSON's types."""
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

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(Text(report.name, style="bold"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for finding in report.findings:
        mark, style = MARKS[finding.outcome]
        words = Text(finding.found)
        if finding.advice and finding.outcome != "ok":
            words.append(f"\n-> {finding.advice}", style="dim")
        table.add_row(Text(mark, style=style), finding.check, words)
    console.print(table)
    if report.times is not None:
        console.print(f"\n{_said(report.times)}")
    if report.costs:
        costs = Table("backend", "a step of one", "steps/s", "", box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for column in costs.columns[1:3]:
            column.justify = "right"
        for cost in report.costs:
            numbers = ("-", "-") if cost.seconds is None else (duration(cost.seconds), f"{1 / cost.seconds:,.0f}")
            costs.add_row(cost.backend, *numbers, Text(cost.note, style="dim"))
        console.print()
        console.print(costs)
    console.print(f"\n{_sum(report)}", style="green" if passed(report) else "bold red")


def _said(times: Times) -> str:
    steps = f"{duration(times.median)} (median), {duration(times.p99)} (p99), {duration(times.slowest)} (slowest"
    return f"a step of its world takes {steps} of {times.steps:,}); a reset {duration(times.reset)}"


def _sum(report: Report) -> str:
    count = Counter(finding.outcome for finding in report.findings)
    notes = f"{count['note']} note{'s' * (count['note'] != 1)}"
    if count["wrong"]:
        return f"{count['wrong']} wrong, {notes}"
    return "nothing wrong" + (f", {notes}" if count["note"] else "")


def duration(seconds: float) -> str:
    """A time in three digits: "12.5 us"."""
    size, unit = next((pair for pair in UNITS if seconds >= pair[0]), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"
