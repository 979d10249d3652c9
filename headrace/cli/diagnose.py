"""`headrace diagnose SCRIPT`: where the wall time of a training script goes, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.diagnose.profile.profile import Profile
from headrace.diagnose.record import run_script
from headrace.diagnose.report import html, table, trace
from headrace.diagnose.verdict import round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import Verdict, judge

DESCRIPTION = """Where the wall time of a training script goes, and what to do about it:
headrace diagnose --seconds 30 train.py --lr 0.001

The script is run as it is, for a bounded time. Flags before it are the diagnosis's, words after it the script's own.
`-m MODULE` runs a module. Ctrl-C ends it early, and the report is written all the same."""
VERDICT = "verdict.json"
WHOLE = 1e9  # s: longer than any training
SWITCHES = ("--json",)  # flags without a value


@dataclass(frozen=True)
class Diagnose:
    """How long, how often, and where the report goes."""

    # SCRIPT and its arguments, or -m MODULE and its arguments; or the folder of an earlier diagnosis
    script: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT [ARGUMENTS]")]
    seconds: float = 60.0  # of wall time to look at; the script is stopped then
    skip: float = 10.0  # seconds to let pass before, for the script to start up
    rate: float = run_script.RATE  # looks at each thread a second
    output: Path = Path("diagnosis")  # folder of report.html, trace.json, profile.json and verdict.json
    python: str = sys.executable  # the interpreter that runs the script, such as another virtual environment's
    hints: Path | None = None  # a TOML file that says which of your functions are environment, learning, ...
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print a JSON object instead of the report


def main(arguments: list[str]) -> None:
    """Run, judge, print, and write the report."""
    flags, script = split(arguments)
    options = tyro.cli(Diagnose, prog="headrace diagnose", description=DESCRIPTION, args=[*flags, "--", *script])
    _check(options)
    profile = _profile(options)
    facts = Facts(profile, round_trip.measure())
    report(facts, judge(facts), options.output, as_json=options.json)


def training(arguments: list[str]) -> None:
    """Diagnose `headrace train ARGUMENTS` from its start to its end, which leaves out the evaluation afterwards."""
    training_alone = [] if any(word.startswith("--final-episodes") for word in arguments) else ["--final-episodes", "0"]
    profile = run_script.measure(["-m", "headrace", "train", *arguments, *training_alone], seconds=WHOLE, skip=0.0)
    facts = Facts(profile, round_trip.measure())
    report(facts, judge(facts), Diagnose.output)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The diagnosis's own flags, and the script's words: those from the first that is no flag, or from -m, on."""
    place = 0
    while place < len(arguments) and arguments[place].startswith("-") and arguments[place] != "-m":
        word = arguments[place]
        if word == "--":
            return list(arguments[:place]), list(arguments[place + 1 :])
        place += 1 if "=" in word or word in (*SWITCHES, "-h", "--help") else 2
    return list(arguments[:place]), list(arguments[place:])


def _check(options: Diagnose) -> None:
    for name, least in (("seconds", 0.0), ("skip", -1e-9), ("rate", 0.0)):
        if not getattr(options, name) > least:
            raise ValueError(f"--{name} is {getattr(options, name)}: give a number above 0")
    if options.output.exists() and not options.output.is_dir():
        raise FileExistsError(f"--output {options.output} is a file: name a folder")


def _profile(options: Diagnose) -> Profile:
    """What is measured now, or what an earlier diagnosis has kept."""
    words = list(options.script)
    if len(words) == 1 and (Path(words[0]) / "profile.json").is_file():
        return Profile.load(Path(words[0]))
    return run_script.measure(
        words,
        python=options.python,
        seconds=options.seconds,
        skip=options.skip,
        rate=options.rate,
        hints=options.hints,
    )


def report(facts: Facts, verdict: Verdict, folder: Path, *, as_json: bool = False) -> None:
    """Write all files of a diagnosis, print the report, and say where the files lie."""
    folder.mkdir(parents=True, exist_ok=True)
    facts.profile.save(folder)
    trace.save(facts.profile, folder)
    path = html.save(facts, verdict, folder)
    (folder / VERDICT).write_text(json.dumps(summary(facts, verdict), indent=1))
    if as_json:
        print(json.dumps(summary(facts, verdict)))
        return
    table.print_report(facts, verdict)
    print(f"\nwrote {path}, and {folder / trace.TRACE} for https://ui.perfetto.dev")


def summary(facts: Facts, verdict: Verdict) -> dict[str, object]:
    """The verdict with the figures it rests on, in JSON's types."""
    shares = {str(role): seconds / facts.base for role, seconds in facts.seconds.items()}
    return {
        "command": facts.profile.command,
        "seconds": facts.base,
        "shares": shares,
        "ratio": facts.ratio,
        "round_trip": facts.round_trip,
        **verdict.to_json(),
    }
