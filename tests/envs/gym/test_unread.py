"""Infos that nothing reads are said: in training once, and by `headrace check`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from helpers import forked

import headrace as hr
from headrace.checks import environment
from headrace.envs.gym import unread

SEEN = Box(-1, 9, (1,))
WITH_TESTS = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[n]) for n in (3, 2))}


class Tells(gymnasium.Env):
    """Gives an info at each reset, and another one at the end of an episode of three steps."""

    observation_space, action_space = SEEN, Discrete(2)

    def __init__(self, first=None, last=None, truncated=False, action_space=None):
        self.first, self.last, self.truncated = first or {}, last or {}, truncated
        self.action_space = action_space or self.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), dict(self.first)

    def step(self, action):
        self.count += 1
        over = self.count == 3
        info = dict(self.last if over else self.first)
        seen = np.array([self.count], np.float32)
        return seen, 1.0, over and not self.truncated, over and self.truncated, info


MASK = {"action_mask": np.array([1, 1], np.int8)}
CASES = [
    (MASK, {}, False, "info has 'action_mask', which is not read: with info_mask=True"),
    ({}, {"is_success": True}, True, "info has 'is_success', which is not logged: log_info"),
    ({}, {"TimeLimit.truncated": True}, False, "and truncated=False: return truncated=True"),
    ({}, {"terminal_observation": np.zeros(1)}, True, "final observation is in info['terminal_observation']: return"),
]


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(unread, "_told", set())


def trained(source, tmp_path, **options):
    small = {"num_envs": 2, "num_steps": 8, "total_steps": 48, "hidden": (4,), "progress": "none"}
    return hr.train("ppo", source, log_folder=str(tmp_path), **small | options)


@pytest.mark.parametrize(("first", "last", "truncated", "says"), CASES)
def test_training_says_in_one_line_what_nobody_reads(first, last, truncated, says, tmp_path, capfd):
    run = trained(lambda: Tells(first, last, truncated), tmp_path)
    run.evaluate(2)
    assert capfd.readouterr().err.count(says) == 1


def test_a_worker_says_it_of_the_first_environment_alone(tmp_path):
    program = """
import headrace as hr
from tests.envs.gym.test_unread import MASK, Tells, trained

trained(lambda: Tells(MASK), ".", workers=2)
"""
    told = forked.run([sys.executable, "-c", program], cwd=tmp_path, env=WITH_TESTS, capture_output=True, text=True)
    assert told.stderr.count("info has 'action_mask'") == 1, told.stderr


@pytest.mark.parametrize(("first", "last", "truncated", "says"), CASES)
def test_the_check_says_it_too(first, last, truncated, says):
    found = environment.check(lambda: Tells(first, last, truncated), steps=20, measure=0).findings
    notes = [f"{one.found}: {one.advice}" for one in found if one.check == "info" and one.outcome == "note"]
    assert len(notes) == 1 and says in notes[0]


def test_what_is_read_is_not_said(tmp_path, capfd):
    trained(lambda: Tells(MASK, MASK | {"is_success": True}), tmp_path, info_mask=True, log_info=("is_success",))
    trained(lambda: Tells(MASK, {"TimeLimit.truncated": True}, True, Box(-1, 1, (2,))), tmp_path)
    env = hr.make(lambda: Tells(MASK, {"is_success": True}), 1)  # a loop of the user's own
    rollout = env.rollout(4, env.columns())
    env.reset(rollout, 0)
    for t in range(4):
        env.step(rollout, t)

    class Both(Tells):
        observation_space = Dict(observation=SEEN, action_mask=Box(0, 1, (2,), np.int8))

        def reset(self, **given):
            seen, info = super().reset(**given)
            return {"observation": seen, **MASK}, info

        def step(self, action):
            seen, *rest = super().step(action)
            return {"observation": seen, **MASK}, *rest

    trained(lambda: Both(MASK), tmp_path)
    assert "info" not in capfd.readouterr().err


def test_vectors_and_agents_are_told_to_give_masks_as_observations(tmp_path, capfd):
    def vector(num_envs):
        return gymnasium.vector.SyncVectorEnv([lambda: Tells(MASK, MASK | {"is_success": True})] * num_envs)

    trained(vector, tmp_path)
    told = capfd.readouterr().err
    assert told.count("info has 'action_mask', which is not read: give it as a member") == 1
    assert told.count("'is_success', which is not logged") == 1
    pytest.importorskip("pettingzoo")
    from helpers.relay import Relay

    class Masked(Relay):
        def reset(self, **given):
            seen, _ = super().reset(**given)
            return seen, {agent: {"action_mask": np.ones(2)} for agent in seen}

    trained(lambda: Masked({"a": 2, "b": 3}), tmp_path)
    assert "'action_mask', which is not read: give it as a member" in capfd.readouterr().err


class Later(Tells):
    """Environment with a mask in the infos of its steps, and none in those of its resets."""

    def __init__(self):
        super().__init__()

    def step(self, action):
        *outcome, _ = super().step(action)
        return *outcome, MASK


def test_masks_of_steps_alone_are_said_as_well(tmp_path, capfd):
    trained(Later, tmp_path)
    assert capfd.readouterr().err.count("info has 'action_mask', which is not read: with info_mask=True") == 1
    found = environment.check(Later, steps=20, measure=0).findings
    assert [one.advice for one in found if one.check == "info"] == [unread.INFO_MASK]

    found = environment.check(lambda num_envs: gymnasium.vector.SyncVectorEnv([Later] * num_envs), measure=0).findings
    assert [one.advice for one in found if one.check == "info"] == [unread.IN_OBSERVATIONS]
    pytest.importorskip("pettingzoo")
    from helpers.relay import Relay

    class Agents(Relay):
        def step(self, actions):
            *outcome, infos = super().step(actions)
            return *outcome, {agent: {**infos.get(agent, {}), **MASK} for agent in actions if agent != "a"}

    def agents():
        return Agents({"a": 2, "b": 3})

    capfd.readouterr()
    found = environment.check(agents, steps=20, measure=0).findings
    assert [one.advice for one in found if one.check == "info"] == [unread.IN_OBSERVATIONS]
    assert "action_mask" not in capfd.readouterr().err
    trained(agents, tmp_path)
    assert capfd.readouterr().err.count("'action_mask', which is not read: give it as a member") == 1
