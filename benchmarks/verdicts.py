"""Whether `headrace diagnose` is right: 40 scripts of planted truth, half of them in an archive of known SHA-256.

Each script is diagnosed for a few seconds, and its headline and first remedy compared with what was planted. With
--gains the planted remedies are applied instead, and their gain is measured by the scripts' own steps per second, in
turns.
The scripts need the libraries that `verdicts/*/truth.toml` names; --python names the interpreter that has them.
"""

from __future__ import annotations

import hashlib
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
from pathlib import Path

from common import HERE, Neighbours, Row, finish, parser, table

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.record import run_script
from headrace.diagnose.verdict import cold_start, round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import Verdict, judge

FOLDER = HERE / "verdicts"
SEALED = FOLDER / "sealed.tar.gz"
SHA256 = "df9840f0ee84be739dd8ee935042ff2da825a20dd1bbdf25a38d76f380ab8c01"  # of SEALED
SKIP, WINDOW = 5.0, 7.0  # s
HEADLINES = {  # what a headline says -> the kind of verdict
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
}
HONEST, UNSURE = ("unknown", "few"), 0.2  # kinds that claim nothing, and the share of the time that is no claim
COLUMNS = (
    "script",
    "library",
    "seen",
    "kind",
    "right",
    "wrong_and_sure",
    "unknown",
    "first",
    "first_right",
    "predicted",
    "bound",
)
GAINS = ("script", "gained", "low", "high")
SLOW_STARTS = {"SBX": 5.0, "Tianshou": 8.0, "RLlib": 5.0}  # s that a library takes to compile or start, beyond SKIP
# s for which a script runs longer at most, where training begins late; 0 where it was planted not to begin in time
START_UP, START_UPS = 15.0, {"RLlib": 60.0}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--half", choices=("open", "sealed"), default="open")
    flags.add_argument("--scripts", nargs="+", help="some of the half's scripts")
    flags.add_argument("--python", default=sys.executable, help="an interpreter that has the libraries")
    flags.add_argument("--gains", type=int, default=0, metavar="TURNS", help="measure what the planted remedies gain")
    flags.add_argument("--label", default="", help="a word kept with the result, such as a commit")
    options = flags.parse_args()
    if options.quick:
        options.scripts = ["cleanrl_reinforce"]
    neighbours, rows = Neighbours(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = FOLDER / "open" if options.half == "open" else unpack(Path(temporary))
        truth = tomllib.loads((folder / "truth.toml").read_text())
        for name in options.scripts or truth:
            if not options.gains:
                rows.append(examine(name, truth[name], folder, options.python))
            elif "change" in truth[name]:
                rows.append(gain(name, truth[name]["change"], folder, options.python, options.gains))
            print(table(rows[-1:], GAINS if options.gains else COLUMNS), flush=True)
    print(table(rows, GAINS if options.gains else COLUMNS))
    measured = "gains" if options.gains else "verdicts"
    more = {"half": options.half, "label": options.label, "measured": measured, "skip": SKIP, "window": WINDOW}
    finish("verdicts", rows, options, neighbours, **more)


def unpack(folder: Path) -> Path:
    """The sealed half, unpacked into a folder. Raises ValueError if the archive is not the one that was committed."""
    found = hashlib.sha256(SEALED.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{SEALED} has SHA-256 {found}, not {SHA256}: it is not the archive that was committed")
    with tarfile.open(SEALED) as archive:
        # Python 3.11.3 and earlier have no filters; the archive is the one that was committed
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def examine(name: str, truth: Row, folder: Path, python: str) -> Row:
    """Diagnose a script, and compare the verdict with the truth."""
    os.environ.update(PYTHONPATH=str(FOLDER), RAY_ADDRESS="local")  # no other program's cluster
    skip = truth.get("skip", SKIP)
    seconds = SKIP + WINDOW + SLOW_STARTS.get(truth["library"], 0.0) - skip
    words = [str(folder / f"{name}.py")]
    late = 0.0 if truth["kinds"] == ["start-up"] else START_UPS.get(truth["library"], START_UP)
    profile = run_script.measure(words, python=python, seconds=seconds, skip=skip, start_up=late)
    facts = Facts(profile, round_trip.measure(), cold_start.measure())
    verdict = judge(facts)
    seen, first = kind(verdict), verdict.remedies[0] if verdict.remedies else None
    predicted = [remedy for remedy in verdict.remedies if remedy.gain]
    matches = re.fullmatch(truth["first"], first.title if first and first.gain else "") is not None
    return {
        "script": name,
        "library": truth["library"],
        "kind": " or ".join(truth["kinds"]),
        "seen": seen,
        "right": seen in truth["kinds"],
        # a wrong kind that is said without a reserve, apart from "not known": an honest unknown misleads nobody
        "wrong_and_sure": seen not in (*truth["kinds"], *HONEST) and facts.unsure < UNSURE if profile.lanes else False,
        "unknown": facts.share(Role.OTHER) if profile.lanes else 1.0,
        "first": first.title if first else "",
        "first_right": matches,
        "predicted": first.gain if first else None,
        "bound": first.bound if first else None,
        "any_predicted": [remedy.title for remedy in predicted],
        "headline": verdict.headline,
        "where": verdict.where,
        "limitations": verdict.limitations,
    }


def kind(verdict: Verdict) -> str:
    """The kind of a verdict, from its headline."""
    for pattern, name in HEADLINES.items():
        if found := re.search(pattern, verdict.headline):
            return found.expand(name).strip()
    return verdict.headline


def gain(name: str, changes: list[list[str]], folder: Path, python: str, turns: int) -> Row:
    """Steps per second with the planted remedy divided by those without: median, lowest and highest of the turns."""
    environment = dict(os.environ) | {"PYTHONPATH": str(FOLDER), "SECONDS": "3"}
    script = folder / f"{name}.py"
    text = script.read_text()
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{name} does not contain {old!r}")
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as temporary:
        mended = Path(temporary, f"{name}.py")
        mended.write_text(text)
        ratios = [1 / rate(script, python, environment) * rate(mended, python, environment) for _ in range(turns)]
    return {"script": name, "gained": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def rate(script: Path, python: str, environment: dict[str, str]) -> float:
    """Steps per second that a script prints at its end."""
    done = subprocess.run([python, str(script)], env=environment, capture_output=True, text=True, timeout=90)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"rate"')]
    if not lines:
        raise RuntimeError(f"{script} printed no rate:\n{done.stderr[-1000:]}")
    time.sleep(0.2)
    return float(json.JSONDecoder().raw_decode(lines[0])[0]["rate"])  # another process may have written behind it


if __name__ == "__main__":
    main()
