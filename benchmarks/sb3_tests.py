"""Stable-Baselines3's own tests with headrace.sb3 in the place of its models, counted by file.

    python benchmarks/sb3_tests.py FOLDER/stable_baselines3-2.9.2 [--only test_run.py] [--write]

FOLDER: where its source distribution was unpacked (pip download --no-deps --no-binary :all: stable-baselines3==2.9.2).
Needs Stable-Baselines3, pytest and pytest-timeout in this Python. A file that is not done in 280 s is counted without
the tests that were left. `theirs`: of parts that headrace.sb3 does not replace; `not offered`: of what it refuses by
name; both as tests/sb3/upstream/exclusions.toml has them. --write makes the table of docs/from_sb3.md of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common import Neighbours, Row, finish, last_rows, parser, table

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "tests/sb3/upstream"
PAGE = ROOT / "docs/from_sb3.md"
LIMIT = 280  # s of a file
COLUMNS = ("file", "tests", "passed", "failed", "not offered", "theirs", "skipped", "unfinished")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("sources", type=Path)
    flags.add_argument("--only", nargs="+", metavar="FILE", help="names of files; without it, all")
    flags.add_argument("--write", action="store_true", help="write the table of docs/from_sb3.md, and run nothing")
    options = flags.parse_args()
    if options.write:
        write_table("sb3_tests", last_rows(options.results / "sb3_tests.jsonl", "file"), COLUMNS[:6])
        return
    files = options.only or sorted(path.name for path in (options.sources / "tests").glob("test_*.py"))
    for name in files[:1] if options.quick else files:
        neighbours = Neighbours()
        row = counted(options.sources, name)
        print(table([row], COLUMNS), *row["failures"], sep="\n", flush=True)
        finish("sb3_tests", [row], options, neighbours)


def counted(sources: Path, name: str) -> Row:
    """Run a file, and count what became of its tests."""
    with tempfile.TemporaryDirectory() as folder:
        report, said = Path(folder) / "left_out.json", Path(folder) / "log"
        settings = {**os.environ, "REPLACE": "models", "SITE_PACKAGES": "", "LEFT_OUT": str(report)}
        settings |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(PLUGIN))), "OMP_NUM_THREADS": "1"}
        options = ["-p", "facade", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "--timeout", "120"]
        command = [sys.executable, "-W", "ignore", "-m", "pytest", *options, "-v", "--tb=line", "--color=no", name]
        with open(said, "w") as log:
            try:
                subprocess.run(
                    command, cwd=sources / "tests", env=settings, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT
                )
            except subprocess.TimeoutExpired:
                print(f"{name}: not done in {LIMIT} s", file=sys.stderr)
        out, reasons = said.read_text(), json.loads(report.read_text())
    ran = [line for line in out.splitlines() if line.startswith(f"{name}::")]
    outcomes = Counter(
        word for line in ran for word in line.split() if word in ("PASSED", "FAILED", "ERROR", "SKIPPED")
    )
    theirs = sum(number for reason, number in reasons["left_out"].items() if "does not replace" in reason)
    offered = sum(reasons["left_out"].values()) - theirs
    failed = outcomes["FAILED"] + outcomes["ERROR"]
    done = outcomes["PASSED"] + failed + outcomes["SKIPPED"]
    row = {
        "file": name,
        "tests": reasons["selected"] + offered + theirs,
        "passed": outcomes["PASSED"],
        "failed": failed,
    }
    row |= {"not offered": offered, "theirs": theirs, "skipped": outcomes["SKIPPED"]}
    row |= {"unfinished": reasons["selected"] - done}
    return row | {"failures": [line.split(" ")[0] for line in ran if " FAILED" in line or " ERROR" in line]}


def write_table(program: str, rows: dict[str, Row], columns: Sequence[str]) -> None:
    """Put the table of the last row of each file into the page, between the marks of a program."""
    lines = [f"| {' | '.join(columns)} |", f"|---|{'--:|' * (len(columns) - 1)}"]
    total = {column: sum(row[column] for row in rows.values()) for column in columns[1:]}
    for row in (*(rows[name] for name in sorted(rows)), {columns[0]: "all", **total}):
        lines.append(f"| {' | '.join(str(row[column]).removesuffix('.py') for column in columns)} |")
    begin, end = f"<!-- table: benchmarks/{program}.py -->", f"<!-- end of {program}.py -->"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text("".join((before, begin, "\n\n", "\n".join(lines), "\n\n", end, rest.split(end)[1])))


if __name__ == "__main__":
    main()
