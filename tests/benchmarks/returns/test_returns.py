"""The benchmarks of returns run, quickly, and keep what they promise: so they never rot."""

from __future__ import annotations

import pytest
from helpers.benchmark import last, ran, run


@pytest.mark.slow
def test_algorithms(tmp_path):
    printed, result = run("returns.algorithms", tmp_path, "--only", "sac", "--env", "Pendulum-v1")
    (row,) = result["rows"]
    assert (row["algorithm"], row["env"], row["threshold"]) == ("sac", "Pendulum-v1", -200.0)
    assert row["seeds"] == len(row["runs"]) == 1 and -2000 < row["return"] < 0 and row["seconds"] > 0
    assert "reached" in printed


@pytest.mark.slow
def test_intrinsic(tmp_path):
    printed, result = run("returns.intrinsic", tmp_path)
    assert len(result["rows"]) == 6 and "steps_to" in printed
    assert all(row["return"] <= row["best"] for row in result["rows"])


@pytest.mark.slow
def test_skills(tmp_path):
    _, result = run("returns.skills", tmp_path)
    (row,) = result["rows"]
    assert 0 <= row["worst"] <= row["accuracy"] <= 1 and (tmp_path / "skills.png").stat().st_size > 1000


@pytest.mark.slow
def test_recorded_data(tmp_path):
    _, result = run("returns.recorded_data", tmp_path)
    assert [row["data"] for row in result["rows"]] == ["none", "2 episodes"]
    assert all(-2000 < row["return"] < 0 for row in result["rows"])


@pytest.mark.slow
def test_modes(tmp_path):
    done = ran("returns.collection_modes", tmp_path, "--quick", "--only", "sac")
    rows = last(done)["rows"]
    assert [row["mode"] for row in rows] == ["inline", "sync", "overlapped", "async"]
    assert rows[1]["lag_max"] == 0 and rows[2]["lag_max"] == 1 >= rows[2]["lag"] > 0
    assert len((tmp_path / "modes.jsonl").read_text().splitlines()) == 4 and "relative" in done.stdout
