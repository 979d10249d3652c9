"""benchmarks/sb3_returns.py: its partly observed task, and the share of a core that a training had."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def test_the_partly_observed_task_is_cartpole_with_its_positions():
    import gymnasium
    import sb3_returns

    env, whole = sb3_returns.without_velocities(), gymnasium.make("CartPole-v1")
    seen, _ = env.reset(seed=3)
    wanted, _ = whole.reset(seed=3)
    assert np.array_equal(seen, wanted[[0, 2]]) and env.observation_space.contains(seen)
    assert env.spec.max_episode_steps == 500


def test_what_waits_has_a_small_part_of_a_core(tmp_path):
    import sb3_returns

    given = []
    found, part = sb3_returns.measured(
        lambda *arguments: given.append(arguments) or time.sleep(0.2), "task", 7, tmp_path, 3
    )
    assert found is None and given == [("task", 7, tmp_path, 3)] and part < 0.5
