"""Test of the interval that `headrace diagnose --try` prints: the same change is measured again, later.

    python -m benchmarks.diagnose.try_intervals --python PYTHON                  # the scripts that have no row yet
    python -m benchmarks.diagnose.try_intervals --python PYTHON --only sb3_ppo   # one script
    python -m benchmarks.diagnose.try_intervals --report                         # how many intervals held

The scripts are those of `verdicts/open` that train with torch, without their own `set_num_threads`, so that the number
of threads is left to the environment. Each is run as `--try` runs it, three to six turns with OMP_NUM_THREADS=1 and as
many without; then three turns of both again. A script takes 2.5 to 4 minutes with the 7 s that are usual here, more
with --seconds 15, which is what --try uses: its intervals are narrower.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from benchmarks.common import Neighbours, Row, finish, last_rows, parser, table
from headrace.core.cores import leave_threads_alone
from headrace.diagnose.record import trials
from headrace.diagnose.record.command import resolve

FOLDER = Path(__file__).parent / "verdicts"
SCRIPTS = (
    "sb3_ppo",
    "sb3_dqn",
    "sb3_a2c",
    "skrl_ppo",
    "tianshou_dqn",
    "cleanrl_ppo",
    "torchrl_loop",
    "lightning_rl",
    "loads_first",
    "trainer_thread",
)
CHANGE = "OMP_NUM_THREADS=1"
SECONDS = 7.0  # of training in a run, so that ten scripts take 25 minutes
OWN_THREADS = r"(?m)^\s*torch\.set_num_threads\(.*\)\n"  # a line of a script
COLUMNS = ("script", "gain", "low", "high", "half_width", "later", "held", "narrow")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--only", nargs="+", choices=SCRIPTS, metavar="SCRIPT", help="some of the scripts")
    flags.add_argument("--python", default=sys.executable, help="an interpreter that has the libraries")
    flags.add_argument("--seconds", type=float, default=SECONDS, help="of training in a run")
    flags.add_argument("--report", action="store_true", help="print what was measured, and measure nothing")
    options = flags.parse_args()
    leave_threads_alone()  # scripts wait as they do without this program
    done = last_rows(options.results / "tries.jsonl", "script")
    if options.report:
        report([done[name] for name in SCRIPTS if name in done])
        return
    turns, most = trials.TURNS, trials.MOST_TURNS
    if options.quick:
        options.seconds, turns, most = 1.0, 1, 1
    names = options.only or [name for name in SCRIPTS if name not in done][: 1 if options.quick else None]
    for name in names:
        neighbours = Neighbours()
        rows = [measured(name, options, turns, most)]
        print(table(rows, COLUMNS), flush=True)
        finish("tries", rows, options, neighbours, seconds=options.seconds, turns=turns, change=CHANGE)


def measured(name: str, options: argparse.Namespace, turns: int, most: int) -> Row:
    """The interval of a script, and the gain that was measured after it."""
    before = Path.cwd()
    os.environ["PYTHONPATH"] = str(FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        text = re.sub(OWN_THREADS, "", (FOLDER / "open" / f"{name}.py").read_text())
        Path(folder, f"{name}.py").write_text(text)
        os.chdir(folder)
        try:
            command = resolve([f"{name}.py"], options.python)
            tries = {"tried": [CHANGE], "seconds": options.seconds, "turns": turns}
            first, later = trials.run(command, **tries, most=most), trials.run(command, **tries, most=turns)
        finally:
            os.chdir(before)
    if not first.found or not later.found:
        raise RuntimeError(f"{name} did not train with {CHANGE}: {first.notes or later.notes}")
    return row(name, first.found[0], later.found[0])


def row(name: str, first: trials.Trial, later: trials.Trial) -> Row:
    """Row of a script: whether a later gain lies in its interval, and whether the interval is narrow."""
    return {
        "script": name,
        "gain": first.gain,
        "low": first.low,
        "high": first.high,
        "half_width": first.half_width,
        "later": later.gain,
        "held": first.low <= later.gain <= first.high,
        "narrow": first.half_width <= trials.NARROW,
        "rates": [first.rates, later.rates],
    }


def report(rows: list[Row]) -> None:
    """All scripts in one table, and the counts."""
    print(table(rows, COLUMNS))
    held, narrow = (sum(each[what] for each in rows) for what in ("held", "narrow"))
    print(f"of {len(rows)} intervals {held} held, {narrow} were at most {trials.NARROW:.0%} wide to each side")


if __name__ == "__main__":
    main()
