"""The benchmark of `headrace tune`: its cases, its grid, and one case in short."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import forked

from headrace.training.config import TrainConfig
from headrace.tuning.candidates import Candidate

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_cases_are_the_same_every_time_and_grids_have_what_can_be_chosen(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tuning as benchmark

    monkeypatch.setattr(benchmark, "cores", lambda: 2)
    found = benchmark.cases()
    assert found == benchmark.cases() and len(found) == 20
    assert sum(case.sleeps for case in found) == 10 and any(case.heavy for case in found)
    for case in found:
        cells = benchmark.grid(case, Candidate.of(TrainConfig(device="cpu")))
        assert 20 <= len(cells) == len(set(cells)) <= benchmark.CELLS
        assert {cell["collection"] for cell in cells} == {"sync", "overlapped", "async"}
        assert {64, 256, 1024} <= {cell["num_envs"] for cell in cells}


@pytest.mark.slow
def test_a_case_is_measured_and_reported(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "tuning.py"), "--results", str(tmp_path)]
    short = ["--only", "0", "--seconds", "5", "--cell", "0.1"]
    done = forked.run([*command, *short], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "tuning.jsonl").read_text())["rows"]
    assert row["case"] == 0 and row["within"] == (row["ratio"] >= 0.9) and row["cells"] > 10
    report = forked.run([*command, "--report"], capture_output=True, text=True, check=True).stdout
    assert f"cases; median ratio {row['ratio']:.3f}" in report
