"""The benchmark of `headrace tune`: its cases, its grid, and one case in short."""

from __future__ import annotations

import json

import pytest
from helpers.benchmark import ran

from benchmarks.speed import tuning as benchmark
from headrace.training.config import TrainConfig
from headrace.tuning.candidates import Candidate


def test_cases_are_the_same_every_time_and_grids_have_what_can_be_chosen(monkeypatch):
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
    ran("speed.tuning", tmp_path, "--only", "0", "--seconds", "5", "--cell", "0.1")
    (row,) = json.loads((tmp_path / "tuning.jsonl").read_text())["rows"]
    assert row["case"] == 0 and row["within"] == (row["ratio"] >= 0.9) and row["cells"] > 10
    report = ran("speed.tuning", tmp_path, "--report").stdout
    assert f"cases; median ratio {row['ratio']:.3f}" in report
