"""The report for a terminal: with colours, or plain text where the output is piped."""

from __future__ import annotations

import sys
import textwrap
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TextIO

from headrace.core.terminal import LINES
from headrace.core.text import printable
from headrace.diagnose.profile.formatting import count, percent, place
from headrace.diagnose.profile.profile import Profile, Role
from headrace.diagnose.report.answer import Answer, command_line
from headrace.diagnose.verdict import loop_lines
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedy import Remedy
from headrace.diagnose.verdict.verdict import Verdict, ending, gain_text

BAR = 30  # characters for the longest bar
ELSEWHERE, FRAGMENTS, ELSEWHERE_COLOUR = "waiting for environments", "waiting for fragments", "#f3bf96"
SMALLEST = 0.005  # share of the time below which a role has no row
Line = list[tuple[str, str]]  # (text, style of rich), side by side


def print_report(facts: Facts, verdict: Verdict, stream: TextIO | None = None, *, found: Answer | None = None) -> None:
    """Write the report to a stream, standard output where none is given."""
    stream = stream or sys.stdout
    if stream.isatty() and find_spec("rich"):
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream, highlight=False)
        for line in lines(facts, verdict, min(console.width, 100), found):
            console.print(Text.assemble(*((printable(part), style) for part, style in line)), soft_wrap=True)
    else:
        print(printable(text(facts, verdict, found=found), LINES), file=stream)


def text(facts: Facts, verdict: Verdict, width: int = 100, found: Answer | None = None) -> str:
    """The report without colours."""
    return "\n".join("".join(part for part, _ in line).rstrip() for line in lines(facts, verdict, width, found))


def lines(facts: Facts, verdict: Verdict, width: int, found: Answer | None = None) -> list[Line]:
    """The report, line by line, with the answer first."""
    blocks = _answer(found, width) if found else [_paragraph(verdict.headline, width, "bold")]
    blocks += [_loop(facts, width), _paragraph(scene(facts.profile), width, "dim")]
    if facts.profile.lanes:
        blocks.append(_parts(facts, min(BAR, width - 47)) + _workers(facts))
    blocks += [_paragraph(paragraph, width) for paragraph in (verdict.where, verdict.bounds, *verdict.notes)]
    blocks += [_remedy(number, remedy, width) for number, remedy in enumerate(verdict.remedies, 1)]
    limitations = [line for note in verdict.limitations for line in _paragraph(note, width, "dim", "- ")]
    blocks.append([[("Accuracy and limitations", "bold")], *limitations])
    return [line for block in blocks if block for line in ([("", "")], *block)]


def _answer(found: Answer, width: int) -> list[list[Line]]:
    speed = f" {found.speed}." if found.speed else ""
    blocks = [_paragraph(found.sentence + speed, width, "bold")]
    if found.title:
        code: list[Line] = [[(f"     {line}", "cyan")] for line in found.command.splitlines()]
        blocks.append([[(found.title, "bold"), (f"   {found.gain}", "green")], *code])
    return blocks


def _loop(facts: Facts, width: int) -> list[Line]:
    """The statements of the training loop that take the most time."""
    found: list[Line] = []
    for share, where, what in loop_lines.rows(facts) if facts.profile.lanes else ():
        found += [[(f"{share:>6}  ", "bold"), (where[: width - 8], "")], [("", ""), (f"        {what}", "dim")]]
    return found


def scene(profile: Profile) -> str:
    """The command, how it ended, the machine and the versions."""
    machine = profile.machine
    versions = ", ".join(f"{name} {version}".strip() for name, version in machine.versions.items())
    where = ", ".join(part for part in (machine.cpu, count(machine.cores, "core"), machine.gpu or "no GPU") if part)
    python = ", ".join(part for part in (f"Python {machine.python}" if machine.python else "", versions) if part)
    skipped = f" The first {profile.skipped:.1f} s were skipped." if profile.skipped >= 0.05 else ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(profile.started))
    return f"{command_line(profile)}, {when}. {ending(profile)}{skipped} {where}. {python}."


@dataclass(frozen=True)
class Row:
    """One activity of the training thread."""

    title: str
    role: Role
    colour: str
    seconds: float
    share: float


def rows(facts: Facts) -> list[Row]:
    """The activities, the most first, without the smallest."""
    parts = [(facts.title(role), role, role.colour, seconds) for role, seconds in facts.seconds.items()]
    if facts.env_wait > 0:
        waiting = facts.spent(Role.WAIT) - facts.env_wait
        parts = [part for part in parts if part[1] is not Role.WAIT]
        parts.append((FRAGMENTS if facts.actors else ELSEWHERE, Role.WAIT, ELSEWHERE_COLOUR, facts.env_wait))
        parts.append(("other waiting", Role.WAIT, Role.WAIT.colour, waiting))
    found = [Row(*part, part[3] / facts.total) for part in parts if part[3] >= SMALLEST * facts.total]
    return sorted(found, key=lambda row: -row.seconds)


def mostly(facts: Facts, role: Role) -> str:
    """The line where most of a role's time is spent; "" where it is not known."""
    sites = [site for site in facts.profile.training_thread.sites if site.role is role]
    site = max(sites, key=lambda site: site.seconds, default=None)
    return f"{place(site)} {site.text or site.function}" if site else ""


def _parts(facts: Facts, bar_width: int) -> list[Line]:
    found: list[Line] = [[(f"{'activity':<25}{'seconds':>9}{'share':>11}", "bold")]]
    shown = rows(facts)
    for row in shown:
        bar = "█" * max(1, round(bar_width * row.share / shown[0].share))
        found.append([(f"{row.title:<25}{row.seconds:>9.1f}{percent(row.share):>11}  ", ""), (bar, row.colour)])
    if facts.start_up >= 0.05:
        found.append([(f"{Role.START_UP.label:<25}{facts.start_up:>9.1f}{'not counted':>13}", "dim")])
    return found


def _workers(facts: Facts) -> list[Line]:
    if not facts.env_workers:
        return []
    found: list[Line] = [[("", "")], [(f"{'process':<25}{'seconds':>9}{'busy':>11}", "bold")]]
    for lane, work in zip(facts.env_workers, facts.env_worker_seconds, strict=True):
        found.append([(f"{lane.name:<25}{work:>9.1f}{percent(work / facts.total):>11}", "")])
    return found


def _remedy(number: int, remedy: Remedy, width: int) -> list[Line]:
    found: list[Line] = [
        [
            (f"{number}. {remedy.title}", "bold" if remedy.gain else ""),
            (f"   speedup {gain_text(remedy)}; effort: {remedy.effort}", "green"),
        ],
        *_paragraph(remedy.why, width, indent="   "),
    ]
    return found + [[(f"     {line}", "cyan")] for line in remedy.change.splitlines()]


def _paragraph(text: str, width: int, style: str = "", indent: str = "") -> list[Line]:
    following = " " * len(indent)
    text = text.replace(" %", "\N{NO-BREAK SPACE}%")  # a number and its unit stay on one line
    wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=following, break_long_words=False)
    return [[(line.replace("\N{NO-BREAK SPACE}", " "), style)] for line in wrapped]
