"""The benchmark of features: its tasks, its rows, and the table that is written of them."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest

from benchmarks.returns import feature_table, feature_tasks
from benchmarks.returns.feature_rows import MEASURED, PARTS, ROWS
from benchmarks.returns.feature_tasks import Bits, Doors, Matrix
from headrace.algorithms.base import ALGORITHMS, algorithm_classes
from headrace.training.config import TrainConfig


def test_the_partly_observed_task_is_cartpole_with_its_positions():
    env, whole = feature_tasks.without_velocities(), gymnasium.make("CartPole-v1")
    seen, _ = env.reset(seed=3)
    wanted, _ = whole.reset(seed=3)
    assert np.array_equal(seen, wanted[[0, 2]]) and env.observation_space.contains(seen)
    assert env.spec.max_episode_steps == 500


def played(env, policy):
    """The return of an episode, whose spaces are checked."""
    seen, infos = env.reset(seed=1)
    total, done = 0.0, False
    while not done:
        assert env.observation_space.contains(seen)
        action = policy(env, seen, infos)
        assert env.action_space.contains(action)
        seen, reward, terminated, truncated, infos = env.step(action)
        total, done = total + reward, terminated or truncated
    return total


def test_the_best_returns_of_the_other_tasks_are_those_that_they_name():
    assert played(Matrix(), lambda env, seen, infos: seen.reshape(2, 3)) == 0
    assert played(Matrix(), lambda env, seen, infos: np.zeros((2, 3), np.float32)) == pytest.approx(-6.7, abs=1)

    def door(env, seen, infos):
        values = np.where(infos["action_mask"] > 0, env.directions @ seen, -np.inf)
        return np.argmax(values)

    assert played(Doors(), door) == 20
    assert played(Doors(), lambda env, seen, infos: np.argmin(infos["action_mask"])) == 0

    def wrong_bit(env, seen, infos):
        return np.argmax(seen["observation"] != seen["desired_goal"])

    number = int((lambda seen: (seen["observation"] != seen["desired_goal"]).sum())(Bits().reset(seed=1)[0]))
    assert played(Bits(), wrong_bit) == 1 - number


def test_the_commands_of_the_rows_are_understood():
    known = TrainConfig.__dataclass_fields__.keys() | {"resume"}
    for command in [feature_table.command(row) for row in ROWS] + [row.command for row in MEASURED]:
        words = command.split()
        algorithm = words[2] if words[0] == "compare" else words[1]
        assert algorithm in ALGORITHMS or algorithm == "recurrent_ppo"
        config = algorithm_classes("ppo" if algorithm == "recurrent_ppo" else algorithm).config
        own = known | {*config.__dataclass_fields__}
        assert all(word[2:].replace("-", "_") in own for word in words if word.startswith("--")), command
    assert {row.part for row in (*ROWS, *MEASURED)} == {*PARTS}


def test_the_table_has_the_seeds_of_both_libraries_in_order(tmp_path, monkeypatch):
    rows = [
        {"what": "TRPO", "library": library, "seed": seed, "return": base + seed, "cpu_seconds": 2.0, "steps": 50_100}
        for seed in (1, 0)
        for library, base in (("sb3", 300), ("headrace", 400))
    ]
    lines = [{"when": "2026-01-02T03:04:05Z", "quick": quick, "rows": [row]} for row in rows for quick in (False, True)]
    (tmp_path / "asked_for.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = tmp_path / "page.md"
    mark, end = "<!-- table: benchmarks/returns/feature_returns.py -->", "<!-- end of the table -->"
    page.write_text(f"before {mark} old {end} after")
    monkeypatch.setattr(feature_table, "PAGE", page)
    feature_table.write(tmp_path)
    text = page.read_text()
    found = (
        "| `compare sb3 trpo CartPole-v1` | CartPole-v1, 50,100 | 400, 401 | TRPO | 300, 301 | 2.0 | 2.0 | 2026-01-02 |"
    )
    assert f"| TRPO {found}\n" in text and text.startswith("before <!--") and text.endswith(" after")
    assert "RecurrentPPO" not in text and "old" not in text and "[2026-11-28](dqn.md)" in text
