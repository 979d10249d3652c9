"""The report as Markdown, for a pull request or an issue."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import percent
from headrace.diagnose.report.answer import Answer
from headrace.diagnose.report.table import rows, scene
from headrace.diagnose.verdict import loop_lines
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedy import Remedy
from headrace.diagnose.verdict.verdict import Verdict, gain_text


def text(facts: Facts, verdict: Verdict, found: Answer) -> str:
    """The answer, the table of activities and the remedies."""
    parts = [f"### {found.sentence}", ", ".join(filter(None, (found.speed, scene(facts.profile))))]
    if found.title:
        parts += [f"**{found.title}** ({found.gain})", f"```\n{found.command}\n```"]
    if found_lines := loop_lines.rows(facts) if facts.profile.lanes else []:
        parts.append("\n".join(f"- {share} `{where}`: {what}" for share, where, what in found_lines))
    if facts.profile.lanes:
        lines = [f"| {row.title} | {row.seconds:.1f} | {percent(row.share)} |" for row in rows(facts)]
        parts.append("\n".join(["| activity | seconds | share |", "|---|---:|---:|", *lines]))
    if verdict.remedies:
        parts.append("\n".join(map(_line, verdict.remedies)))
    return "\n\n".join(parts) + "\n"


def _line(remedy: Remedy) -> str:
    return f"- {remedy.title}: speedup {gain_text(remedy)}; effort: {remedy.effort}"
