"""`--compare OLD NEW`: two diagnoses side by side."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import percent, times
from headrace.diagnose.profile.profile import Profile
from headrace.diagnose.report.answer import command_line, speed_text
from headrace.diagnose.report.table import rows
from headrace.diagnose.verdict.profile_facts import Facts


def text(old: Facts, new: Facts) -> str:
    """The speeds and shares of both diagnoses, and all other differences, as Markdown that reads well in a terminal."""
    before, after = ({row.title: row for row in rows(facts)} for facts in (old, new))
    lines = [speeds(old, new), "", f"| {'activity':<26} | {'old':>9} | {'new':>9} | {'change':>9} |"]
    lines.append(f"|{'-' * 28}|{'-' * 10}:|{'-' * 10}:|{'-' * 10}:|")
    titles = sorted(before | after, key=lambda title: -max(row.share for row in _found(title, before, after)))
    for title in titles:
        shares = [found[title].share if title in found else 0.0 for found in (before, after)]
        change = f"{100 * (shares[1] - shares[0]):+.0f} pp"
        lines.append(f"| {title:<26} | {percent(shares[0]):>9} | {percent(shares[1]):>9} | {change:>9} |")
    error = 100 * (old.margin**2 + new.margin**2) ** 0.5
    lines += ["", f"Differences below about {error:.1f} percentage points (pp) are within the sampling error."]
    return "\n".join([*lines, *differences(old.profile, new.profile)]) + "\n"


def speeds(old: Facts, new: Facts) -> str:
    """Steps per second of both diagnoses."""
    rates = [facts.profile.counters.get("env_rate") for facts in (old, new)]
    if not rates[0] or not rates[1]:
        return "Steps per second were not counted in both: only shares of the time are compared."
    return f"{speed_text(old)} before, {speed_text(new)} after: {times(rates[1] / rates[0])} as fast."


def differences(old: Profile, new: Profile) -> list[str]:
    """Other differences: commands, machines, versions."""
    notes = []
    if command_line(old) != command_line(new):
        notes.append(f"The commands differ: `{command_line(old)}` and `{command_line(new)}`.")
    for name in ("cpu", "cores", "gpu", "python"):
        one, other = getattr(old.machine, name), getattr(new.machine, name)
        if one != other:
            notes.append(f"The machines differ: {name} {one or 'none'} and {other or 'none'}.")
    for name in sorted(old.machine.versions.keys() | new.machine.versions.keys()):
        one, other = (machine.versions.get(name, "none") for machine in (old.machine, new.machine))
        if one != other:
            notes.append(f"The versions differ: {name} {one} and {other}.")
    return notes


def _found(title: str, *tables: dict) -> list:
    return [table[title] for table in tables if title in table]
