"""The report for a terminal: plain text where it is piped, with colours where somebody looks."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from headrace.diagnose.profile.formatting import percent, place
from headrace.diagnose.profile.profile import Profile, Role
from headrace.diagnose.report.palette import COLOURS, STEPPED_ELSEWHERE
from headrace.diagnose.verdict.profile_facts import TITLES, Facts
from headrace.diagnose.verdict.remedy import Remedy
from headrace.diagnose.verdict.verdict import Verdict, ending, promise

BAR = 30  # characters for the longest bar
ELSEWHERE = "waiting for environments"
SMALLEST = 0.005  # share of the time below which a role has no row
Line = list[tuple[str, str]]  # (text, style of rich), side by side


def print_report(facts: Facts, verdict: Verdict, stream: TextIO | None = None) -> None:
    """Write the report to a stream, standard output where none is given."""
    stream = stream or sys.stdout
    if stream.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream, highlight=False)
        for line in lines(facts, verdict, min(console.width, 100)):
            console.print(Text.assemble(*line), soft_wrap=True)
    else:
        print(text(facts, verdict), file=stream)


def text(facts: Facts, verdict: Verdict, width: int = 100) -> str:
    """The report without colours."""
    return "\n".join("".join(part for part, _ in line).rstrip() for line in lines(facts, verdict, width))


def lines(facts: Facts, verdict: Verdict, width: int) -> list[Line]:
    """The report, line by line."""
    found: list[Line] = [[("", "")], *_paragraph(verdict.headline, width, "bold"), [("", "")]]
    found += [*_paragraph(scene(facts.profile), width, "dim"), [("", "")]]
    if facts.profile.lanes:
        found += [*_parts(facts, min(BAR, width - 47)), *_workers(facts), [("", "")]]
    for paragraph in (verdict.where, verdict.bounds, *verdict.notes):
        found += [*_paragraph(paragraph, width), [("", "")]]
    for number, remedy in enumerate(verdict.remedies, 1):
        found += [*_remedy(number, remedy, width), [("", "")]]
    found += [[("What this cannot tell", "bold")]]
    for sentence in verdict.blind:
        found += _paragraph(sentence, width, "dim", "- ")
    return found


def scene(profile: Profile) -> str:
    """What ran, where, and how it ended."""
    machine = profile.machine
    versions = ", ".join(f"{name} {version}".strip() for name, version in machine.versions.items())
    cores = f"{machine.cores} core" + ("" if machine.cores == 1 else "s")
    where = ", ".join(part for part in (machine.cpu, cores, machine.gpu or "no GPU") if part)
    python = ", ".join(part for part in (f"Python {machine.python}" if machine.python else "", versions) if part)
    skipped = f" The first {profile.skipped:.1f} s are left out." if profile.skipped >= 0.05 else ""
    return f"{command_line(profile)}. {ending(profile)}{skipped} {where}. {python}."


def command_line(profile: Profile) -> str:
    """What ran, with the interpreter's name instead of its whole path."""
    first, *rest = profile.command or [""]
    return " ".join([Path(first).name if "python" in Path(first).name else first, *rest])


@dataclass(frozen=True)
class Row:
    """One part of the driving thread's time."""

    title: str
    role: Role
    colour: str
    seconds: float
    share: float


def rows(facts: Facts) -> list[Row]:
    """The parts, the most first, without what is too little to see."""
    parts = [(facts.title(role), role, COLOURS[role], seconds) for role, seconds in facts.seconds.items()]
    if facts.covered > 0:
        waiting = facts.spent(Role.WAIT) - facts.covered
        parts = [part for part in parts if part[1] is not Role.WAIT]
        parts.append((ELSEWHERE, Role.WAIT, STEPPED_ELSEWHERE, facts.covered))
        parts.append(("other waiting", Role.WAIT, COLOURS[Role.WAIT], waiting))
    found = [Row(*part, part[3] / facts.base) for part in parts if part[3] >= SMALLEST * facts.base]
    return sorted(found, key=lambda row: -row.seconds)


def mostly(facts: Facts, role: Role) -> str:
    """The line where most of a role's time is spent, and how much of it; "" where it is not known."""
    sites = [site for site in facts.profile.driver.sites if site.role is role]
    site = max(sites, key=lambda site: site.seconds, default=None)
    return f"{place(site)} {site.text or site.function}" if site else ""


def _parts(facts: Facts, bar_width: int) -> list[Line]:
    found: list[Line] = [[(f"{'part':<25}{'seconds':>9}{'share':>11}", "bold")]]
    shown = rows(facts)
    for row in shown:
        bar = "█" * max(1, round(bar_width * row.share / shown[0].share))
        found.append([(f"{row.title:<25}{row.seconds:>9.1f}{percent(row.share):>11}  ", ""), (bar, row.colour)])
    if facts.start_up >= 0.05:
        found.append([(f"{TITLES[Role.START_UP]:<25}{facts.start_up:>9.1f}{'left out':>11}", "dim")])
    return found


def _workers(facts: Facts) -> list[Line]:
    if not facts.stepping:
        return []
    found: list[Line] = [[("", "")], [(f"{'process':<25}{'seconds':>9}{'busy':>11}", "bold")]]
    for lane, work in zip(facts.stepping, facts.work, strict=True):
        found.append([(f"{lane.name:<25}{work:>9.1f}{percent(work / facts.base):>11}", "")])
    return found


def _remedy(number: int, remedy: Remedy, width: int) -> list[Line]:
    found: list[Line] = [
        [(f"{number}. {remedy.title}", "bold"), (f"   {promise(remedy)}; costs {remedy.cost}", "green")],
        *_paragraph(remedy.why, width, indent="   "),
    ]
    return found + [[(f"     {line}", "cyan")] for line in remedy.change.splitlines()]


def _paragraph(words: str, width: int, style: str = "", indent: str = "") -> list[Line]:
    following = " " * len(indent)
    words = words.replace(" %", "\N{NO-BREAK SPACE}%")  # a number and its unit stay on one line
    wrapped = textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=following, break_long_words=False)
    return [[(line.replace("\N{NO-BREAK SPACE}", " "), style)] for line in wrapped]
