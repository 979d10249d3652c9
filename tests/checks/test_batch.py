"""Vector environments and environments of several agents are checked by the columns that they write."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers.three_moves import three_moves_aec

from headrace.checks import batch
from headrace.checks.batch import check
from headrace.checks.environment import check as check_environment
from headrace.envs import make
from headrace.envs.gym.inline import InlineEnv
from headrace.kernels.language.errors import EnvError


class Walk(gymnasium.Env):
    """Episodes of 5 steps."""

    observation_space, action_space = Box(-9, 9, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        return self.seen(), self.reward(), self.steps == 5, False, {}

    def seen(self):
        return self.np_random.normal(size=2).clip(-3, 3).astype(np.float32)

    def reward(self):
        return 1.0


class Far(Walk):
    def seen(self):
        return np.array([0, 10 if self.steps == 3 else 0], np.float32)


class NaN(Walk):
    def reward(self):
        return float("nan") if self.steps == 2 else 0.0


class Unseeded(Walk):
    def seen(self):
        return np.random.normal(size=2).clip(-3, 3).astype(np.float32)


def outcomes(build, steps=24):
    findings, times = check(build, steps, 60.0, seed=1)
    assert times.steps >= steps - 1 and times.median > 0
    return {one.check: (one.outcome, one.found) for one in findings}


@pytest.mark.parametrize(
    "build", [lambda: InlineEnv(Walk, 3, "test"), lambda: make("CartPole-v1", 2, backend="vector")]
)
def test_correct_environments_pass(build):
    found = outcomes(build, 64)
    assert {outcome for outcome, _ in found.values()} == {"ok"}
    assert list(found) == ["observations", "rewards", "endings", "seeding", "another seed"]


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (Far, "observations", "observation is 10 (row 3, column 0, at [1])"),
        (NaN, "rewards", "the reward is nan (row 1, column 0)"),
        (Unseeded, "seeding", "reset to the same seed, the environments differ"),
    ],
)
def test_an_error_is_named_with_its_position(kind, check, words):
    assert outcomes(lambda: InlineEnv(kind, 3, "test"))[check] == ("wrong", words)


def test_an_adapter_without_masked_steps_is_found():
    class Forgetful(InlineEnv):
        def step(self, rollout, t):
            super().step(rollout, t)
            rollout.valid[t + 1] = True

    assert outcomes(lambda: Forgetful(Walk, 3, "test"))["endings"][0] == "wrong"


def taking_turns(mover="1 - s.mover", read="s.mover", kind="i32"):
    """A game of two agents. mover: the agent to move next. read: the one whose action a step reads."""
    source = f"""
from typing import NamedTuple
from gymnasium.spaces import Box, Discrete
from headrace import KernelEnv
from headrace.kernels.language.ops import f32, i32

class Game(KernelEnv):
    observation_space, action_space, num_agents, max_steps = Box(-999.0, 999.0, (2,)), Discrete(4), 2, 6

    class State(NamedTuple):
        mover: {kind}
        sum: i32

    def reset(s, p, key):
        return Game.State(0, 0)

    def step(s, p, action, key):
        who = {read}
        chosen = action[0] if who == 0 else action[1]
        return Game.State({mover}, s.sum * 3 % 97 + chosen), (0.0, 0.0), False

    def observe(s, p, agent):
        return s.sum, agent
"""
    return source


@pytest.mark.parametrize(
    ("game", "outcome", "words"),
    [
        ({}, "ok", "each agent moves, and a step reads the action of the one that moves"),
        ({"read": "1 - s.mover"}, "wrong", "a step reads the action of an agent that does not move"),
        ({"read": "1 if s.sum > 5 else s.mover"}, "wrong", "a step reads the action of an agent that does not move"),
        ({"mover": "s.mover + 1", "read": "s.mover % 2"}, "wrong", "agent 2 moves, and agents are 0 to 1"),
        ({"mover": "-1"}, "wrong", "agent -1 moves, and agents are 0 to 1"),
        ({"mover": "0"}, "note", "agent_1 did not move in any step"),
    ],
)
@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_agents_that_take_turns(game, outcome, words, backend, tmp_path):
    file = tmp_path / "game.py"
    file.write_text(taking_turns(**game))
    found = outcomes(lambda: make(f"{file}:Game", 3, backend=backend), 48)
    assert found["turns"] == (outcome, words)
    assert {name: one for name, (one, _) in found.items() if name not in ("turns", "another seed", "observations")} == {
        "rewards": "ok",
        "endings": "ok",
        "seeding": "ok",
    }


def test_a_mover_that_is_no_integer_is_refused(tmp_path):
    (tmp_path / "game.py").write_text(taking_turns(kind="f32", mover="1.0 - s.mover", read="i32(s.mover)"))
    with pytest.raises(EnvError, match=r"State\.mover, the agent that moves next, is no i32"):
        make(f"{tmp_path / 'game.py'}:Game", 1, backend="torch")


def test_a_game_of_pettingzoo_takes_turns():
    pytest.importorskip("pettingzoo")
    assert outcomes(lambda: make(three_moves_aec, 3))["turns"][0] == "ok"


def test_pettingzoos_checkers_are_run_too():
    pytest.importorskip("pettingzoo")
    report = check_environment("Pursuit", 400, seconds=60.0, measure=0.0)
    assert {one.check: one.outcome for one in report.findings if one.check != "step time"} == {
        name: "ok"
        for name in (
            *("PettingZoo's API test", "PettingZoo's seed test", "observations", "rewards", "endings", "seeding"),
            "another seed",
            "kernel",
        )
    }


def test_a_vector_environment_is_checked_as_one():
    def many(num_envs):
        return gymnasium.make_vec("CartPole-v1", num_envs)

    report = check_environment(many, 64, seconds=60.0, measure=0.0)
    assert [one.outcome for one in report.findings if one.check != "step time"] == ["ok"] * 5


def test_compiling_is_not_part_of_a_resets_time(monkeypatch):
    now = [0.0]  # s
    monkeypatch.setattr(batch, "perf_counter", lambda: now[0])

    def build():
        env = make("CartPole-v1", 2, backend="torch")
        reset, costs = env.reset, iter([100.0])

        def slow_once(rollout, seed):
            now[0] += next(costs, 0.5)
            reset(rollout, seed)

        env.reset = slow_once
        return env

    _, times = check(build, 8, 1000.0, 0)
    assert times.reset == 0.5
