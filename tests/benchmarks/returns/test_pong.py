"""The curve of Pong: means of episodes, and when they reach what was asked for."""

from __future__ import annotations

import pytest
from helpers import benchmark

from benchmarks.returns import pong


def run_folder(tmp_path, returns):
    lines = [f"{value},100,{60.0 * (i + 1)}" for i, value in enumerate(returns)]
    (tmp_path / "monitor.csv").write_text("\n".join(['#{"env_id": "ALE/Pong-v5"}', "r,l,t", *lines, ""]))
    (tmp_path / "config.toml").write_text('algorithm = "dqn"\nseed = 3\n')
    return tmp_path


def test_the_curve_is_of_the_last_twenty_episodes(tmp_path):
    row = pong.summary(run_folder(tmp_path, [-21.0] * 20 + [21.0] * 20))
    assert len(row["points"]) == 21
    assert row["points"][0] == {"steps": 2_000, "minutes": 20.0, "return": -21.0}
    assert row["points"][-1] == {"steps": 4_000, "minutes": 40.0, "return": 21.0}
    assert (row["reached_steps"], row["reached_minutes"]) == (3_800, 38.0), "18 of 20 won: 16.8"
    assert (row["seed"], row["best"], row["last"]) == (3, 21.0, 21.0)
    assert pong.draw(row["points"], tmp_path).stat().st_size > 10_000


def test_a_run_that_does_not_get_there_says_so(tmp_path):
    row = pong.summary(run_folder(tmp_path, [-21.0, -19.0]))
    assert (row["reached_steps"], row["reached_minutes"]) == (None, None)
    assert [point["return"] for point in row["points"]] == [-20.0]


@pytest.mark.slow
def test_it_runs_quickly(tmp_path):
    pytest.importorskip("ale_py")
    (row,) = benchmark.last(benchmark.ran("returns.pong", tmp_path, "--quick"))["rows"]
    assert row["steps"] > 0 and row["last"] < 0 and row["reached_steps"] is None
    assert "log_folder" not in row["settings"], "a path of this machine"
