"""The files of a diagnosis: its folder, and what is written there."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.core.writing import writing
from headrace.diagnose.profile.profile import Profile
from headrace.diagnose.record.trials import Trials
from headrace.diagnose.report import html, markdown, table, trace
from headrace.diagnose.report.answer import answer, summary
from headrace.diagnose.verdict import round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge

VERDICT = "verdict.json"
FOLDER = Path("diagnosis")  # of the folders of runs
STANDARD_OUTPUT = Path("-")


def next_folder(name: str) -> Path:
    """diagnosis/NAME_1, or NAME with the first number above those of all existing folders."""
    numbers = [path.name.removeprefix(f"{name}_") for path in FOLDER.glob(f"{name}_*")]
    return FOLDER / f"{name}_{max((int(number) for number in numbers if number.isdecimal()), default=0) + 1}"


def write(
    profile: Profile,
    folder: Path,
    tried: Trials | None = None,
    *,
    json_file: Path | None = None,
    markdown_file: Path | None = None,
) -> Facts:
    """Judge a profile, write all files of the diagnosis, and print the report and the paths of the files."""
    facts = Facts(profile, round_trip.measure())
    verdict = judge(facts)
    found = answer(facts, verdict, tried)
    printed = STANDARD_OUTPUT not in (json_file, markdown_file)
    if printed:
        table.print_report(facts, verdict, found=found)  # before the files, which may fail
    figures = json.dumps(summary(facts, verdict, tried), indent=1)
    with writing(folder, "the report"):
        folder.mkdir(parents=True, exist_ok=True)
        profile.save(folder)
        trace.save(profile, folder)
        path = html.save(facts, verdict, folder, found, tried)
        (folder / VERDICT).write_text(figures)
    for file, text in ((json_file, figures), (markdown_file, markdown.text(facts, verdict, found))):
        if file is not None:
            write_text(file, text)
    if printed:
        print(f"\nwrote {path}, and {folder / trace.TRACE} for https://ui.perfetto.dev")
    return facts


def write_text(file: Path, text: str) -> None:
    """Write a text to a file, or print it where that is STANDARD_OUTPUT."""
    if file == STANDARD_OUTPUT:
        print(text)
    else:
        file.write_text(text, encoding="utf-8")
