"""The benchmarks of worker processes run, quickly, and keep what they promise: so they never rot."""

from __future__ import annotations

import pytest
from helpers.benchmark import run


@pytest.mark.slow
def test_workers(tmp_path):
    flags = ("--libraries", "headrace", "gymnasium", "--parts", "stepping", "cartpole")
    printed, result = run("speed.workers", tmp_path, *flags)
    rows = {(row["library"], row["task"]): row for row in result["rows"]}
    assert set(rows) == {(name, "timed") for name in ("alone", "headrace", "gymnasium")} | {
        (name, "CartPole-v1") for name in ("headrace", "gymnasium")
    }
    ours = rows["headrace", "timed"]
    assert ours["us"] == 0 and ours["workers"] >= 1 and 0 < ours["of_ideal"] < 1 and "times_sb3" in printed
    assert 0 < ours["sps_min"] <= ours["sps"] <= ours["sps_max"] < rows["alone", "timed"]["sps"]


@pytest.mark.slow
def test_worker_sync(tmp_path):
    printed, result = run("speed.worker_sync", tmp_path)
    assert len(result["rows"]) == 2 * 2 * 3 * 2 * 6 and "word, spinning" in printed
    assert all(row["rounds_per_second"] > 0 for row in result["rows"])
