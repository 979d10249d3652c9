"""A tenth of the faults of environments: all trainings end as they should, and nothing stays behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.benchmark import ROOT


@pytest.mark.slow
def test_trainings_with_faulty_environments_end_as_they_should(tmp_path):
    command = [sys.executable, "-m", "benchmarks.faults.env_faults", "--quick", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "faults.jsonl").read_text())
    assert result["faults"] > 200 and result["wrong"] == [] and len(result["rows"]) == 14
