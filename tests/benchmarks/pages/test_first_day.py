"""The first-day script: 40 things that a user of Stable-Baselines3 does, each with the output that is expected."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.benchmark import ROOT


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_step_of_a_first_day_works(tmp_path):
    day = tmp_path / "day.md"
    command = [sys.executable, "-m", "benchmarks.pages.first_day", "--output", str(day)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" ok ") == 40 and day.read_text().count("\n## ") == 40
