"""Whether `headrace diagnose` is right: 40 scripts of planted truth, and 20 whose main cost was measured by ablation.

Half of each set is in an archive of known SHA-256. Each script is diagnosed for a few seconds, and its headline
compared with the truth; the first remedy, too, where one was planted. With --gains the remedies are applied instead,
and their gain is measured by the scripts' own steps per second, in turns. With --ablations each part of an ablated
script is left out in turn, which gives its share of the time.
The scripts need the libraries that `verdicts/**/truth.toml` names; --python names the interpreter that has them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from argparse import Namespace
from pathlib import Path

from common import HERE, Neighbours, Row, finish, parser, table

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.record import run_script
from headrace.diagnose.verdict import cold_start, round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import Verdict, groups, judge

FOLDER = HERE / "verdicts"
SETS = {"planted": FOLDER, "ablated": FOLDER / "ablated"}  # each with a folder `open` and an archive
SHA256 = {  # of the archives
    "planted": "df9840f0ee84be739dd8ee935042ff2da825a20dd1bbdf25a38d76f380ab8c01",
    "ablated": "ed6ef70b57d6e502ba1dc8cec61049f3a8afb1d1fc040d109b7c0207b4034a34",
}
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
    r"go into ([a-z -]+), [^,]+, and ([a-z -]+)": r"\1 and \2",  # about as much of both
}
KINDS = {  # words of the ablated scripts' truth -> the kind of verdict
    "acting": "policy inference",
    "environment": "environments",
    "data": "data handling",
    "other:jit": "set-up made again",
    "other:opponents": "reading files",
}
HONEST, UNSURE = ("unknown", "few"), 0.2  # kinds that claim nothing, and the share of the time that is no claim
CLAIMED, HARDLY = 0.5, 0.2  # shares of the time: a claim of so much is a confident falsehood where so little is true
GREAT = 1.5  # times as fast, from which on a predicted gain is one
OUTCOMES = ("right", "unknown", "wrong, unsure", "wrong and sure")
COLUMNS = ("script", "library", "seen", "kind", "outcome", "unknown", "first", "predicted", "bound")
RATES = ('{"rate"', '{"steps_per_second"')  # the beginnings of the line that a script ends with
HALVES = ("open", "sealed")
GAINS, ABLATED = ("script", "gained", "low", "high"), ("script", "part", "share", "low", "high")
SLOW_STARTS = {"SBX": 5.0, "Tianshou": 8.0, "RLlib": 5.0}  # s that a library takes to compile or start, beyond SKIP
# s for which a script runs longer at most, where training begins late; 0 where it was planted not to begin in time
START_UP, START_UPS = 15.0, {"RLlib": 60.0}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--set", nargs="+", choices=tuple(SETS), default=tuple(SETS), help="planted, ablated, or both")
    flags.add_argument("--half", nargs="+", choices=HALVES, default=HALVES, help="open, sealed, or both")
    flags.add_argument("--scripts", nargs="+", help="some of them")
    flags.add_argument("--python", default=sys.executable, help="an interpreter that has the libraries")
    flags.add_argument("--gains", type=int, default=0, metavar="TURNS", help="measure what the remedies gain")
    flags.add_argument("--ablations", type=int, default=0, metavar="TURNS", help="measure what the parts take")
    flags.add_argument("--label", default="", help="a word kept with the result, such as a commit")
    options = flags.parse_args()
    if options.quick:
        options.scripts = ["cleanrl_reinforce"]
    measured = "gains" if options.gains else "ablations" if options.ablations else "verdicts"
    columns = {"gains": GAINS, "ablations": ABLATED, "verdicts": COLUMNS}[measured]
    neighbours, rows = Neighbours(), []
    with tempfile.TemporaryDirectory() as temporary:
        for which, half in itertools.product(options.set, options.half):
            folder = SETS[which] / "open" if half == "open" else unpack(which, Path(temporary, which))
            truth = tomllib.loads(next(folder.rglob("truth.toml")).read_text())
            for name in [name for name in truth if not options.scripts or name in options.scripts]:
                script = next(folder.rglob(f"{name}.py"))
                found = {"verdicts": examine, "gains": gains, "ablations": ablations}[measured](
                    script, truth[name], options
                )
                rows += [{"set": which, "half": half} | row for row in found]
                print(table(rows[-len(found) :], columns), flush=True)
    print(table(rows, columns))
    if measured == "verdicts":
        print(table(counts(rows), ("scripts", "half", "number", *OUTCOMES, "falsehoods")))
    finish("verdicts", rows, options, neighbours, label=options.label, measured=measured, skip=SKIP, window=WINDOWS)


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


def unpack(which: str, folder: Path) -> Path:
    """The sealed half of a set, unpacked into a folder.

    Raises ValueError if the archive is not the one that was committed.
    """
    archive = SETS[which] / "sealed.tar.gz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256[which]:
        raise ValueError(
            f"{archive} has SHA-256 {found}, not {SHA256[which]}: it is not the archive that was committed"
        )
    with tarfile.open(archive) as files:
        # Python 3.11.3 and earlier have no filters; the archive is the one that was committed
        files.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def kinds_of(truth: Row) -> list[str]:
    """The kinds of verdict that are right: those that were planted, or the main cost by ablation."""
    if "kinds" in truth:
        return list(truth["kinds"])
    words = [KINDS.get(truth["main_part"]) or KINDS.get(truth["kind"], truth["kind"]), *truth["also_right"]]
    return [KINDS.get(word, word) for word in words]


def examine(script: Path, truth: Row, options: Namespace) -> list[Row]:
    """Diagnose a script, and compare the verdict with the truth."""
    os.environ.update(PYTHONPATH=str(FOLDER), RAY_ADDRESS="local")  # no other program's cluster
    kinds, library = kinds_of(truth), truth["library"]
    skip, window = truth.get("skip", SKIP), WINDOWS["planted" if "kinds" in truth else "ablated"]
    seconds = SKIP + window + SLOW_STARTS.get(library, 0.0) - skip
    late = 0.0 if kinds == ["start-up"] else START_UPS.get(library, START_UP)
    profile = run_script.measure([str(script)], python=options.python, seconds=seconds, skip=skip, start_up=late)
    facts = Facts(profile, round_trip.measure(), cold_start.measure())
    verdict = judge(facts)
    seen, first = kind(verdict), verdict.remedies[0] if verdict.remedies else None
    predicted = [remedy for remedy in verdict.remedies if remedy.gain]
    row = {
        "script": script.stem,
        "library": library,
        "kind": " or ".join(kinds),
        "seen": seen,
        "right": not {seen, *seen.split(" and ")}.isdisjoint(kinds)
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
    return [row | outcome(row, truth)]


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
    """Whether a verdict says that nothing stands out: no part takes half of the time, and no great gain is promised."""
    promised = max((remedy.gain or 1.0 for remedy in verdict.remedies), default=1.0)
    return verdict.headline.startswith("The largest part") and promised < GREAT


def kind(verdict: Verdict) -> str:
    """The kind of a verdict, from its headline."""
    for pattern, name in HEADLINES.items():
        if found := re.search(pattern, verdict.headline):
            return found.expand(name).strip()
    return verdict.headline


def gains(script: Path, truth: Row, options: Namespace) -> list[Row]:
    """Steps per second with the remedy divided by those without: median, lowest and highest of the turns."""
    if "kinds" not in truth:
        return [_ratio(script, script, {"REMEDY": "1"}, options, options.gains)] if truth["parts"] else []
    if "change" not in truth:
        return []
    text = script.read_text()
    for old, new in truth["change"]:
        if old not in text:
            raise ValueError(f"{script.stem} does not contain {old!r}")
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as temporary:
        mended = Path(temporary, script.name)
        mended.write_text(text)
        return [_ratio(script, mended, {}, options, options.gains)]


def ablations(script: Path, truth: Row, options: Namespace) -> list[Row]:
    """The share of the time of each part of an ablated script, by its steps per second without it."""
    found = []
    for part in truth.get("parts", ()) if "kinds" not in truth else ():
        ratio = _ratio(script, script, {"ABLATE": part}, options, options.ablations)
        shares = {name: 1 - 1 / ratio[key] for name, key in (("share", "gained"), ("low", "low"), ("high", "high"))}
        found.append({"script": script.stem, "part": part} | shares)
    return found


def _ratio(script: Path, changed: Path, variables: dict[str, str], options: Namespace, turns: int) -> Row:
    environment = dict(os.environ) | {"PYTHONPATH": str(FOLDER), "SECONDS": "6" if variables else "3"}
    ratios = []
    for _ in range(turns):
        before = rate(script, options.python, environment)
        ratios.append(rate(changed, options.python, environment | variables) / before)
    return {"script": script.stem, "gained": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def rate(script: Path, python: str, environment: dict[str, str]) -> float:
    """Steps per second that a script prints at its end."""
    done = subprocess.run([python, str(script)], env=environment, capture_output=True, text=True, timeout=400)
    lines = [line for line in done.stdout.splitlines() if line.startswith(RATES)]
    if not lines:
        raise RuntimeError(f"{script} printed no rate:\n{done.stderr[-1000:]}")
    time.sleep(0.2)
    found = json.JSONDecoder().raw_decode(lines[0])[0]  # another process may have written behind it
    return float(found.get("whole_run_steps_per_second") or found.get("rate") or found["steps_per_second"])


if __name__ == "__main__":
    main()
