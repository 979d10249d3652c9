"""`headrace diagnose SCRIPT`: find where the wall time of a training script goes, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.cli import pairs
from headrace.core.cores import leave_threads_alone
from headrace.diagnose.profile.profile import PROFILE, Ending, Profile, Role
from headrace.diagnose.record import attach, run_script, trials
from headrace.diagnose.record.command import resolve, title
from headrace.diagnose.record.trials import Trials
from headrace.diagnose.report import before_after, conditions, files
from headrace.diagnose.report.answer import summary
from headrace.diagnose.report.files import STANDARD_OUTPUT, next_folder
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge

DESCRIPTION = """Where the wall time of a training script goes, and what to do about it:
headrace diagnose --seconds 30 train.py --lr 0.001
headrace diagnose torchrun --nproc-per-node 2 train.py

The script runs unmodified, for a limited time. Flags before it are the diagnosis's, arguments after it the script's.
`-m MODULE` runs a module, and any other word a program, such as python, torchrun or accelerate. Ctrl-C ends it early,
and the report is still written. The exit code is the script's; 0 if it was stopped at the end of the time."""
UNLIMITED = 1e9  # s: longer than any training
SWITCHES = ("--try", "--traceback", "-h", "--help")  # flags without a value
PAIRS = ("--compare",)  # flags with two values
FAILED = 1  # exit code if a condition of --fail-if holds
NAMES = {*map(str, Role), "learning", conditions.SPEED}  # of figures in --fail-if


@dataclass(frozen=True)
class Diagnose:
    """Flags of `headrace diagnose`."""

    # SCRIPT, -m MODULE or a program, and its arguments; or the folder of an earlier diagnosis, to report again
    script: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT [ARGUMENTS]")] = ()
    seconds: float = 60.0  # of wall time to measure; the script is then stopped
    skip: float = 10.0  # seconds to wait before, while the script starts up
    # longest extension, s, if training begins late or other programs use the cores
    start_up: float = 60.0
    rate: float = run_script.RATE  # samples per second of the main thread
    grace: float = run_script.GRACE  # seconds that the script has to end after an interruption, as for a checkpoint
    output: Path | None = None  # folder for the report; by default a new one, diagnosis/SCRIPT_1, _2, ...
    python: str = sys.executable  # the interpreter that runs the script, such as that of another virtual environment
    hints: Path | None = None  # a TOML file with the roles of your functions: environment, learning, ...
    # then run the script again, several times, with fewer threads and other settings that need no edit, and measure
    try_: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="try")] = False
    pid: int | None = None  # measure this running process instead, from outside (needs py-spy); it is not stopped
    compare: Annotated[tuple[Path, Path] | None, tyro.conf.arg(metavar="OLD NEW")] = None  # folders of two diagnoses
    json: Path | None = None  # write the verdict and its figures to this file; - prints them instead of the report
    markdown: Path | None = None  # write the report as Markdown to this file; - prints it instead of the report
    fail_if: str = ""  # exit with code 1 if this holds: "evaluation>0.3" (a share), "steps_per_second<900", ...


def main(arguments: list[str]) -> None:
    """Run the script, print the report, and write its files. Raises SystemExit with the exit code, if it is not 0."""
    leave_threads_alone()
    flags, script = split(arguments)
    options = pairs.cli(Diagnose, "diagnose", DESCRIPTION, args=[*flags, "--", *script])
    _check(options)
    if options.compare:
        old, new = (Facts(_saved(folder)) for folder in options.compare)
        files.write_text(options.markdown or STANDARD_OUTPUT, before_after.text(old, new))
        return
    saved = _is_saved(options)
    folder = Path(options.script[0]) if saved and options.output is None else output_folder(options)
    profile = _saved(Path(options.script[0])) if saved else _profile(options)
    tried = _try(options, profile) if options.try_ else None
    facts = files.write(profile, folder, tried, json_file=options.json, markdown_file=options.markdown)
    code = 0 if saved else exit_code(profile)
    if options.fail_if:
        code = _fail_if(options.fail_if, facts, code)
    if code:
        raise SystemExit(code)


def training(arguments: list[str]) -> None:
    """Diagnose `headrace train ARGUMENTS` from start to end, without the final evaluation."""
    training_alone = [] if any(flag.startswith("--final-episodes") for flag in arguments) else ["--final-episodes", "0"]
    profile = run_script.measure(["-m", "headrace", "train", *arguments, *training_alone], seconds=UNLIMITED, skip=0.0)
    files.write(profile, next_folder("train"))
    if code := exit_code(profile):
        raise SystemExit(code)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags of the diagnosis, and the script with its arguments, which begin at -m or at the first non-flag."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "-m":
        flag = arguments[index]
        if flag == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        index += 1 if "=" in flag or flag in SWITCHES else 3 if flag in PAIRS else 2
    return list(arguments[:index]), list(arguments[index:])


def exit_code(profile: Profile) -> int:
    """The script's exit code as a shell gives it; 0 if the diagnosis or the user stopped it."""
    if profile.exit.ending is Ending.SIGNAL:
        return 128 + profile.exit.code
    return profile.exit.code if profile.exit.ending in (Ending.EXIT, Ending.EXCEPTION) else 0


def output_folder(options: Diagnose) -> Path:
    """The folder for the report. Raises FileExistsError for one that holds an earlier report."""
    if options.output is None:
        return next_folder(f"pid{options.pid}" if options.pid else title(options.script))
    if options.output.exists() and not options.output.is_dir():
        raise FileExistsError(f"--output {options.output} is a file: name a folder")
    same = options.script and Path(options.script[0]).resolve() == options.output.resolve()
    if (options.output / PROFILE).exists() and not same:
        raise FileExistsError(
            f"--output {options.output} holds an earlier diagnosis: name another folder, or leave --output out"
        )
    return options.output


def _check(options: Diagnose) -> None:
    for name, least in (("seconds", 0.0), ("skip", -1e-9), ("start_up", -1e-9), ("rate", 0.0), ("grace", -1e-9)):
        if not getattr(options, name) > least:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}: give a number above 0")
    if options.fail_if:
        conditions.check(options.fail_if, NAMES)
    given = [bool(options.script), options.pid is not None, options.compare is not None]
    if sum(given) != 1:
        raise ValueError("name one thing to diagnose: a script, --pid PID, or --compare OLD NEW")
    if options.try_ and (options.pid is not None or options.compare or _is_saved(options)):
        raise ValueError("--try runs the script again: give the script, without --pid or --compare")
    if options.hints and _is_saved(options):
        raise ValueError(
            f"--hints {options.hints} would change nothing: {options.script[0]} is an earlier diagnosis, whose roles "
            "are settled. Diagnose the script again, with --hints"
        )


def _is_saved(options: Diagnose) -> bool:
    return len(options.script) == 1 and (Path(options.script[0]) / PROFILE).is_file()


def _saved(folder: Path) -> Profile:
    if not (folder / PROFILE).is_file():
        raise FileNotFoundError(f"{folder} is no folder of a diagnosis: there is no {PROFILE} in it")
    return Profile.load(folder)


def _profile(options: Diagnose) -> Profile:
    if options.pid is not None:
        return attach.measure(options.pid, seconds=options.seconds, hints=options.hints)
    return run_script.measure(
        list(options.script),
        python=options.python,
        seconds=options.seconds,
        skip=options.skip,
        start_up=options.start_up,
        rate=options.rate,
        hints=options.hints,
        grace=options.grace,
    )


def _try(options: Diagnose, profile: Profile) -> Trials:
    """Try settings that need no edit of the script, after a message about the further runs."""
    command = resolve(options.script, options.python)
    files = [Path(word) for word in command if word.endswith(".py") and Path(word).is_file()]
    found, notes = trials.changes(profile, files[0].read_text(errors="replace") if files else "")
    if "torch" not in profile.machine.versions:
        return Trials([], ["--try compares the steps of torch's optimizers, and the script did not import torch."])
    if not found:
        return Trials([], [*notes, "There is nothing to try on this machine."])
    least, most = (turns * (1 + len(found)) for turns in (trials.TURNS, trials.MOST_TURNS))
    print(
        f"headrace diagnose: --try runs the script {least} to {most} more times, each for {trials.SECONDS:g} s of "
        f"training after its start-up, in a copy of {Path.cwd()}: with {', '.join(found)}, and as it is. Its "
        "logs and what it sends to trackers repeat.",
        file=sys.stderr,
    )
    measured = trials.run(command, found)
    return Trials(measured.found, [*notes, *measured.notes], measured.runs)


def _fail_if(text: str, facts: Facts, code: int) -> int:
    """The exit code: the script's own if it failed, otherwise FAILED if a condition holds."""
    shares = summary(facts, judge(facts))["shares"]
    assert isinstance(shares, dict)
    held = conditions.holding(text, shares, facts.profile.counters.get("env_rate"), NAMES)
    for condition in held:
        print(f"headrace diagnose: --fail-if {condition}", file=sys.stderr)
    return code or (FAILED if held else 0)
