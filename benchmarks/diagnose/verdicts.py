"""Test of the verdicts of `headrace diagnose`: 40 scripts of planted truth, 56 whose main cost was measured by
ablation.

    python -m benchmarks.diagnose.verdicts --python PYTHON  # the verdicts: 25 minutes
    python -m benchmarks.diagnose.verdicts --python PYTHON --ablations 5  # what each part of a script takes
    python -m benchmarks.diagnose.verdicts --python PYTHON --gains 5  # what 20 first remedies gain
    python -m benchmarks.diagnose.verdicts --python PYTHON --overhead 3  # what being diagnosed costs
    python -m benchmarks.diagnose.verdicts ... --only sb3_ppo --label NAME  # what has no row of this label
    python -m benchmarks.diagnose.verdicts ... --label NAME --verdicts --gains 5 --overhead 1 --until 14:55  # all

Each script is diagnosed for a few seconds, and its headline compared with the truth; the first remedy, too, where one
was planted. The others compare the scripts' own steps per second, in turns. Each script appends a row of its own. Half
of each set is in an archive of known SHA-256. The scripts need the libraries that `verdicts/**/truth.toml` names;
--python names the interpreter that has them. Estimated, not measured, for two idle cores: --gains 5 takes 32 minutes,
--overhead about 27 minutes for each turn.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from benchmarks.common import Neighbours, Row, finish, parser, read_rows, table
from benchmarks.diagnose import verdicts_rates
from benchmarks.diagnose.verdicts_scripts import FOLDER, HALVES, SETS, kinds_of, scripts
from headrace.core.cores import leave_threads_alone
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.record import run_script
from headrace.diagnose.verdict import round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import Verdict, groups, judge

SKIP, WINDOWS = 5.0, {"planted": 7.0, "ablated": 10.0}  # s
HEADLINES = {  # what a headline says -> the kind of verdict
    r"an exception:": "exception",
    r"There are too few samples": "few",
    r"No samples": "few",
    r"There is little to gain": "nothing",
    r"role is not known|is not understood": "unknown",
    r"^Several processes train|take turns": "several",
    r"raining (had not begun|began only)": "start-up",
    r"The script sleeps": "sleeping",
    r"did not train": "start-up",
    r"waits for other processes": "waiting",
    r"goes into ([a-z -]+)": r"\1",
    r"go into ([a-z -]+), [^,]+, ([a-z -]+), [^,]+, and ([a-z -]+)": r"\1, \2 and \3",  # about as much of each
    r"go into ([a-z -]+), [^,]+, and ([a-z -]+)": r"\1 and \2",
}
HONEST, UNSURE = ("unknown", "few"), 0.2  # kinds that claim nothing, and the share of the time that is no claim
CLAIMED, HARDLY = 0.5, 0.2  # shares of the time: a claim of so much is a confident falsehood where so little is true
GREAT = 1.5  # times as fast, from which on a predicted gain is one
OUTCOMES = ("right", "unknown", "wrong, unsure", "wrong and sure")
COLUMNS = ("script", "library", "seen", "kind", "outcome", "unknown", "first", "predicted", "bound")
TABLES = {
    "verdicts": COLUMNS,
    "gains": verdicts_rates.GAINS,
    "ablations": verdicts_rates.ABLATED,
    "overhead": verdicts_rates.OVERHEAD,
}
EXPECTED = {  # s that a script takes at most, as far as none of the same run took longer
    "verdicts": lambda options: 60.0,
    "gains": lambda options: 60.0 + 25.0 * options.gains,
    "ablations": lambda options: 60.0 * options.ablations,
    "overhead": lambda options: 40.0 * options.overhead,
}
SLOW_STARTS = {"SBX": 5.0, "Tianshou": 8.0, "RLlib": 5.0}  # s that a library takes to compile or start, beyond SKIP
# s for which a script runs longer at most, where training begins late; 0 where it was planted not to begin in time
START_UP = 60.0


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--set", nargs="+", choices=tuple(SETS), default=tuple(SETS), help="some of the sets")
    flags.add_argument("--half", nargs="+", choices=HALVES, default=HALVES, help="open, sealed, or both")
    flags.add_argument("--only", nargs="+", metavar="SCRIPT", help="some of the scripts")
    flags.add_argument("--python", default=sys.executable, help="an interpreter that has the libraries")
    flags.add_argument("--gains", type=int, default=0, metavar="TURNS", help="measure what 20 first remedies gain")
    flags.add_argument("--ablations", type=int, default=0, metavar="TURNS", help="measure what the parts take")
    flags.add_argument("--overhead", type=int, default=0, metavar="TURNS", help="measure what being diagnosed costs")
    flags.add_argument("--seconds", type=float, default=5.0, help="of counted steps in a run of --overhead")
    flags.add_argument("--label", default="", help="a word kept with the rows; scripts that have one are not run again")
    flags.add_argument("--verdicts", action="store_true", help="the verdicts, too, before what else is measured")
    flags.add_argument("--until", type=_moment, metavar="HH:MM", help="begin no script that would end after that time")
    options = flags.parse_args()
    leave_threads_alone()  # scripts wait as they do without this program
    if options.quick:
        options.only = ["cleanrl_reinforce"]
    others = [name for name in ("gains", "ablations", "overhead") if getattr(options, name)]
    with tempfile.TemporaryDirectory() as temporary:
        for measured in ["verdicts"] * (options.verdicts or not others) + others:
            _report(measured, *_all_of(measured, Path(temporary), options))


def _all_of(measured: str, temporary: Path, options: Namespace) -> tuple[list[Row], dict[str, str]]:
    """The rows of all scripts, with those of an earlier run of the same label; and why scripts have none."""
    rows, missing, longest = _kept(options, measured), {}, EXPECTED[measured](options)
    done = {row["script"] for row in rows}
    for which, half in itertools.product(options.set, options.half):
        for script, truth in scripts(which, half, temporary / which):
            applied = measured != "gains" or script.stem in verdicts_rates.APPLIED
            if script.stem in done or not applied or (options.only and script.stem not in options.only):
                continue
            if options.until and time.time() + longest > options.until:
                missing[script.stem] = "no time was left"
                continue
            neighbours, began = Neighbours(), time.time()
            try:
                found = [{"set": which, "half": half} | row for row in _measure(measured, script, truth, options)]
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                missing[script.stem] = str(error)
                continue
            if found:
                more = {"label": options.label, "measured": measured, "skip": SKIP, "window": WINDOWS}
                finish("verdicts", found, options, neighbours, **more)
                print(table(found, TABLES[measured]), flush=True)
                longest = max(longest, time.time() - began)
            rows += found
    return rows, missing


def _report(measured: str, rows: list[Row], missing: dict[str, str]) -> None:
    print(table(rows, TABLES[measured]))
    if measured == "verdicts":
        print(table(counts(rows), ("scripts", "half", "number", *OUTCOMES, "falsehoods")))
    if measured == "overhead" and rows:
        worst = max(rows, key=lambda row: row["overhead"])
        median = statistics.median(row["overhead"] for row in rows)
        print(f"median of {len(rows)} scripts {median:.1%}, worst {worst['overhead']:.1%} ({worst['script']})")
    if missing:
        print(f"{measured} NOT MEASURED, of {len(missing)} scripts:")
        print("\n".join(f"    {script}: {why}" for script, why in missing.items()))


def _moment(text: str) -> float:
    """The next time of day HH:MM, in s since 1970."""
    now = datetime.now()
    found = datetime.combine(now.date(), datetime.strptime(text, "%H:%M").time())
    return (found if found > now else found + timedelta(days=1)).timestamp()


def _kept(options: Namespace, measured: str) -> list[Row]:
    """The rows that an earlier run of the same label wrote, before it was interrupted; [] without a label."""
    runs = read_rows(options.results / "verdicts.jsonl") if options.label else []
    runs = [run for run in runs if (run.get("label"), run["measured"]) == (options.label, measured)]
    return [row for run in runs for row in run["rows"]]


def _measure(measured: str, script: Path, truth: Row, options: Namespace) -> list[Row]:
    """The rows of one script; [] where there is nothing to measure."""
    if measured == "gains":
        return verdicts_rates.gains(script, truth, partial(examine, script, truth, options), options)
    if measured == "ablations":
        return verdicts_rates.ablations(script, truth, options)
    if measured == "overhead":
        return verdicts_rates.overhead(script, options)
    return [examine(script, truth, options)]


def counts(rows: list[Row]) -> list[Row]:
    """The number of verdicts of each outcome, of each half of each set and of all."""
    groups = {
        (which, half): [row for row in rows if (row["set"], row["half"]) == (which, half)]
        for which in SETS
        for half in HALVES
    }
    found = []
    for (which, half), some in (groups | {("all", ""): rows}).items():
        numbers = {outcome: sum(row["outcome"] == outcome for row in some) for outcome in OUTCOMES}
        falsehoods = sum(bool(row["falsehood"]) for row in some)
        found.append({"scripts": which, "half": half, "number": len(some), **numbers, "falsehoods": falsehoods})
    return [row for row in found if row["number"]]


def examine(script: Path, truth: Row, options: Namespace) -> Row:
    """Diagnose a script, and compare the verdict with the truth."""
    os.environ.update(PYTHONPATH=str(FOLDER), RAY_ADDRESS="local")  # no other program's cluster
    kinds, library = kinds_of(truth), truth["library"]
    skip, window = truth.get("skip", SKIP), WINDOWS["planted" if "first" in truth else "ablated"]
    seconds = SKIP + window + SLOW_STARTS.get(library, 0.0) - skip
    late = 0.0 if kinds == ["start-up"] else START_UP
    profile = run_script.measure([str(script)], python=options.python, seconds=seconds, skip=skip, start_up=late)
    facts = Facts(profile, round_trip.measure())
    verdict = judge(facts)
    seen, first = kind(verdict), verdict.remedies[0] if verdict.remedies else None
    predicted = [remedy for remedy in verdict.remedies if remedy.gain]
    row = {
        "script": script.stem,
        "library": library,
        "kind": " or ".join(kinds),
        "seen": seen,
        "right": not {seen, *re.split(r", | and ", seen)}.isdisjoint(kinds)
        or ("nothing" in kinds and _claims_nothing(verdict)),
        "unknown": facts.share(Role.OTHER) if profile.lanes else 1.0,
        "unsure": facts.unsure if profile.lanes else 1.0,
        "claimed": next((seconds / facts.total for name, seconds in groups(facts) if seen.startswith(name)), 0.0)
        if profile.lanes
        else 0.0,
        "first": first.title if first else "",
        "predicted": first.gain if first else None,
        "bound": first.bound if first else None,
        "any_predicted": [remedy.title for remedy in predicted],
        "headline": verdict.headline,
        "where": verdict.where,
        "limitations": verdict.limitations,
    }
    if "first" in truth:
        row["first_right"] = re.fullmatch(truth["first"], first.title if first and first.gain else "") is not None
    return row | outcome(row, truth)


def outcome(row: Row, truth: Row) -> Row:
    """The outcome of a verdict: a wrong one that claims nothing, or says that it is not sure, misleads nobody.

    falsehood: whether it claims most of the time for what hardly takes any, as far as that was measured.
    """
    sure = row["unsure"] < UNSURE
    name = (
        "right"
        if row["right"]
        else "unknown"
        if row["seen"] in HONEST
        else "wrong and sure"
        if sure
        else "wrong, unsure"
    )
    others = 1 - truth.get("main_share", 0.0)  # that all other parts take together
    return {"outcome": name, "falsehood": not row["right"] and row["claimed"] >= CLAIMED and others <= HARDLY}


def _claims_nothing(verdict: Verdict) -> bool:
    """Tell whether a verdict finds nothing: no part takes half of the time, and no great gain is promised."""
    promised = max((remedy.gain or 1.0 for remedy in verdict.remedies), default=1.0)
    return verdict.headline.startswith("The largest part") and promised < GREAT


def kind(verdict: Verdict) -> str:
    """The kind of a verdict, from its headline."""
    for pattern, name in HEADLINES.items():
        if found := re.search(pattern, verdict.headline):
            return found.expand(name).strip().replace(Role.WAIT.label, "waiting")
    return verdict.headline


if __name__ == "__main__":
    main()
