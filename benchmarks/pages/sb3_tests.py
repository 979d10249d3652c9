"""Stable-Baselines3's own tests with headrace.sb3 in the place of its models, counted by file.

    python -m benchmarks.pages.sb3_tests FOLDER/stable_baselines3-2.9.2 [--only test_run.py] [--write]

FOLDER: where its source distribution was unpacked (pip download --no-deps --no-binary :all: stable-baselines3==2.9.2).
Needs Stable-Baselines3, pytest and pytest-timeout in this Python. A file that is not done in 280 s is counted without
the tests that were left. `theirs`: of parts that headrace.sb3 does not replace; `not offered`: of what it refuses by
name; both as tests/sb3/upstream/exclusions.toml has them. --write makes the table of docs/from_sb3.md of all rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.common import ROOT, Row
from benchmarks.pages import counted_files

PLUGIN = ROOT / "tests/sb3/upstream"
LIMIT = 280  # s of a file
COLUMNS = ("file", "tests", "passed", "failed", "not offered", "theirs", "skipped", "unfinished")


def files(sources: Path) -> list[str]:
    return sorted(path.name for path in (sources / "tests").glob("test_*.py"))


def counted(sources: Path, name: str) -> tuple[Row, list[str]]:
    """Run a file, and count what became of its tests. Also returns those that failed."""
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
    failures = [line.split(" ")[0] for line in ran if " FAILED" in line or " ERROR" in line]
    return row | {"failures": failures}, failures


if __name__ == "__main__":
    counted_files.main("sb3_tests", __doc__ or "", COLUMNS, files, counted)
