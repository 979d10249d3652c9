"""`headrace diagnose SCRIPT`: where the wall time of a training script goes, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.diagnose.profile.profile import Profile
from headrace.diagnose.record import run_script
from headrace.diagnose.report import html, table, trace
from headrace.diagnose.verdict import cold_start, round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import Verdict, judge

DESCRIPTION = """Where the wall time of a training script goes, and what to do about it:
headrace diagnose --seconds 30 train.py --lr 0.001

The script runs unmodified, for a limited time. Flags before it are the diagnosis's, arguments after it the script's.
`-m MODULE` runs a module. Ctrl-C ends it early, and the report is still written."""
VERDICT = "verdict.json"
UNLIMITED = 1e9  # s: longer than any training
SWITCHES = ("--json",)  # flags without a value


@dataclass(frozen=True)
class Diagnose:
    """Flags of `headrace diagnose`."""

    # SCRIPT and its arguments, or -m MODULE and its arguments; or the folder of an earlier diagnosis, to report again
    script: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT [ARGUMENTS]")]
    seconds: float = 60.0  # of wall time to measure; the script is then stopped
    skip: float = 10.0  # seconds to wait before, while the script starts up
    rate: float = run_script.RATE  # samples per second of the main thread
    output: Path = Path("diagnosis")  # folder for report.html, trace.json, profile.json and verdict.json
    python: str = sys.executable  # the interpreter that runs the script, such as that of another virtual environment
    hints: Path | None = None  # a TOML file with the roles of your functions: environment, learning, ...
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print a JSON object instead of the report


def main(arguments: list[str]) -> None:
    """Run the script, print the report, and write its files."""
    flags, script = split(arguments)
    options = tyro.cli(Diagnose, prog="headrace diagnose", description=DESCRIPTION, args=[*flags, "--", *script])
    _check(options)
    report(_profile(options), options.output, as_json=options.json)


def training(arguments: list[str]) -> None:
    """Diagnose `headrace train ARGUMENTS` from start to end, without the final evaluation."""
    training_alone = [] if any(flag.startswith("--final-episodes") for flag in arguments) else ["--final-episodes", "0"]
    profile = run_script.measure(["-m", "headrace", "train", *arguments, *training_alone], seconds=UNLIMITED, skip=0.0)
    report(profile, Diagnose.output)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags of the diagnosis, and the script with its arguments, which begin at -m or at the first non-flag."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "-m":
        flag = arguments[index]
        if flag == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        index += 1 if "=" in flag or flag in (*SWITCHES, "-h", "--help") else 2
    return list(arguments[:index]), list(arguments[index:])


def _check(options: Diagnose) -> None:
    for name, least in (("seconds", 0.0), ("skip", -1e-9), ("rate", 0.0)):
        if not getattr(options, name) > least:
            raise ValueError(f"--{name} is {getattr(options, name)}: give a number above 0")
    if options.output.exists() and not options.output.is_dir():
        raise FileExistsError(f"--output {options.output} is a file: name a folder")


def _profile(options: Diagnose) -> Profile:
    """A new profile, or the saved one of an earlier diagnosis."""
    script = list(options.script)
    if len(script) == 1 and (Path(script[0]) / "profile.json").is_file():
        return Profile.load(Path(script[0]))
    return run_script.measure(
        script,
        python=options.python,
        seconds=options.seconds,
        skip=options.skip,
        rate=options.rate,
        hints=options.hints,
    )


def report(profile: Profile, folder: Path, *, as_json: bool = False) -> None:
    """Judge a profile, write all files of the diagnosis, and print the report and the paths of the files."""
    facts = Facts(profile, round_trip.measure(), cold_start.measure())
    verdict = judge(facts)
    folder.mkdir(parents=True, exist_ok=True)
    profile.save(folder)
    trace.save(profile, folder)
    path = html.save(facts, verdict, folder)
    (folder / VERDICT).write_text(json.dumps(summary(facts, verdict), indent=1))
    if as_json:
        print(json.dumps(summary(facts, verdict)))
        return
    table.print_report(facts, verdict)
    print(f"\nwrote {path}, and {folder / trace.TRACE} for https://ui.perfetto.dev")


def summary(facts: Facts, verdict: Verdict) -> dict[str, object]:
    """The verdict and its figures, for JSON."""
    shares = {str(role): seconds / facts.total for role, seconds in facts.seconds.items()}
    return {
        "command": facts.profile.command,
        "seconds": facts.total,
        "shares": shares,
        "ratio": facts.ratio,
        "round_trip": facts.round_trip,
        **asdict(verdict),
    }
