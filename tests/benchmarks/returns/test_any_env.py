"""The benchmark on environments of others: it runs, and its judge looks where it should."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from helpers import benchmark

from benchmarks.returns import any_env_tasks


@pytest.mark.slow
def test_it_runs_quickly(tmp_path):
    pytest.importorskip("Box2D")
    flags = ["--library", "headrace", "--env", "LunarLander-v3", "--set", "hidden=(8,)", "num_steps=16"]
    done = benchmark.ran("returns.any_env", tmp_path, "--quick", *flags)
    (row,) = benchmark.last(done)["rows"]
    assert (row["library"], row["env"], row["reached"]) == ("headrace", "LunarLander-v3", False)
    assert row["steps"] > 0 and row["mean"] < 200
    assert "given up at" in done.stdout


class Coin(gymnasium.Env):
    """One step: the reward is what the policy says."""

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), True, False, {}


def judge(**options):
    return any_env_tasks.Judge("LunarLander-v3", **{"seconds": 1e6, "throughput": False} | options)


def test_the_judge_looks_at_all_episodes_only_where_the_first_are_good():
    asked = []

    def act(observation, value=250.0):
        asked.append(len(observation))
        return np.full(len(observation), value)

    trial = judge(make_env=Coin)
    assert not trial.over(32_767, act) and not asked, "not yet"
    assert not trial.over(32_768, lambda observation: act(observation, 10.0))
    assert asked == [10] and trial.row["mean"] == 10
    assert not trial.over(40_000, act), "not again"
    assert trial.over(65_536, act)
    assert asked == [10, 10, 90] and trial.row["reached"] and trial.row["steps"] == 65_536


def test_a_run_is_given_up_when_its_time_is_up():
    trial = judge(make_env=Coin, seconds=0.0)
    assert trial.over(1, lambda observation: np.zeros(len(observation)))
    assert not trial.row["reached"] and trial.row["mean"] == 0


def test_throughput_counts_from_the_first_call():
    trial = judge(make_env=Coin, seconds=0.0, throughput=True)
    assert not trial.over(100, act=None)
    assert trial.over(300, act=None)
    assert trial.row["steps"] == 200 and not trial.row["reached"]
