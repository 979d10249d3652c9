"""The benchmark of populations runs, and learns."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import forked

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "populations.py"


@pytest.mark.slow
def test_it_runs_quickly(tmp_path):
    program = [sys.executable, str(PROGRAM), "--quick", "--results", str(tmp_path)]
    done = forked.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.strip().splitlines()[-1])["rows"]
    assert [row["learning_rate"] for row in rows] == [0.001, 0.01, "population"]
    assert all(-20 < row["end"] <= 10 for row in rows)
