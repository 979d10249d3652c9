"""Simulators on a device: rows as everybody's, and nothing that would wait for the device or mix two of them."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import closing
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import headrace as hr
from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns

STEPS, NUM_ENVS = 24, 3


class Ramp:
    """Environments that count steps; environment n ends after 3 + n of them, truncated in episodes of odd length, else
    terminated.

    It is strict: whatever comes from another device is an error. hand_over: what becomes of the tensors it gives.
    """

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-1, 1, (1,))
    max_steps = None

    def __init__(self, num_envs=NUM_ENVS, device="cpu", autoreset="NextStep", hand_over=lambda x: x):
        self.num_envs, self.device, self.autoreset, self.hand_over = (
            num_envs,
            torch.device(device),
            autoreset,
            hand_over,
        )
        self.length = torch.arange(num_envs, device=device) + 3
        self.over = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.age = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def reset(self, seed):
        self.age, self.over = torch.zeros_like(self.age), torch.zeros_like(self.over)
        return self._seen()

    def step(self, action):
        assert (action.device, action.dtype, action.shape) == (self.device, torch.float32, (self.num_envs, 1))
        assert action.is_contiguous()
        asleep = self.over if self.autoreset == "NextStep" else torch.zeros_like(self.over)
        self.age = torch.where(asleep, 0, self.age + 1)
        ended = self.age >= self.length
        truncated = ended & (self.length % 2 == 1)
        final = self._seen()
        if self.autoreset == "SameStep":
            self.age = torch.where(ended, 0, self.age)
        self.over = ended
        reward = torch.where(asleep, 0.0, action[:, 0])
        outcome = (self._seen(), *map(self.hand_over, (reward, ended & ~truncated, truncated)))
        return (*outcome, final) if self.autoreset == "SameStep" else outcome

    def reset_some(self, mask):
        assert (mask.device, mask.dtype, mask.shape) == (self.device, torch.bool, (self.num_envs,))
        self.age, self.over = torch.where(mask, 0, self.age), self.over & ~mask
        return self._seen()

    def _seen(self):
        return self.hand_over(torch.stack([self.age, self.length], 1).float())


class DlPack:
    """An array of a library that torch does not know."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def run(simulator, steps=STEPS, first=0):
    env = envs.adapted(simulator)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(steps, env.num_envs, columns, simulator.device)
    rollout.action.fill_(2.0)
    env.reset(rollout, 0)
    for t in range(first, steps):
        env.step(rollout, t)
    return rollout


@pytest.mark.parametrize("autoreset", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("hand_over", [lambda x: x, DlPack, lambda x: x.numpy()], ids=["torch", "dlpack", "numpy"])
def test_rows(autoreset, hand_over):
    rollout = run(Ramp(autoreset=autoreset, hand_over=hand_over))
    unseen = int(autoreset != "NextStep")  # the first step of an episode after another one, in its masked row
    for world in range(NUM_ENVS):
        length = 3 + world
        ages = [*range(length + 1), *[*range(unseen, length + 1)] * 9]
        valid = [*[True] * length, False, *[*[True] * (length - unseen), False] * 9]
        assert rollout.observation[:, world, 0].tolist() == ages[: STEPS + 1]
        assert rollout.valid[:, world].tolist() == valid[: STEPS + 1]
        ends, others = (rollout.truncated, rollout.terminated)[:: 1 if length % 2 else -1]
        assert ends[:, world].nonzero().flatten().tolist() == [
            t for t, age in enumerate(ages[1 : STEPS + 1]) if age == length
        ]
        assert not others[:, world].any()
        dead = ~rollout.valid[:STEPS, world]
        assert set(rollout.episode_length[dead, world].tolist()) == {length}
        assert set(rollout.episode_return[dead, world].tolist()) == {length}, "actions are clipped"
        assert rollout.reward[:, world].tolist() == rollout.valid[:STEPS, world].float().tolist()


@pytest.mark.parametrize("autoreset", ["NextStep", "SameStep"])
def test_nothing_waits_for_the_device_within_a_rollout(autoreset):
    """Tensors without contents: whoever looks into one, or mixes it with one of the CPU, is found out."""
    rollout = run(Ramp(device="meta", autoreset=autoreset), first=1)
    assert rollout.reward.device.type == "meta"


class Curriculum:
    """Episodes of 50 steps; each has a level, which goes up after a full episode and down after a short one.

    begun: the lengths of the episodes that were reset.
    """

    observation_space, action_space = Box(-1, 1, (2,)), Box(-1, 1, (1,))
    max_steps, device, final = 50, "cpu", True

    def __init__(self, num_envs, autoreset, together=True):
        self.num_envs, self.autoreset, self.begun, self.calls = num_envs, autoreset, Counter(), []
        self.first = torch.zeros(num_envs) if together else torch.arange(num_envs) * 3.0
        self.level = torch.full((num_envs,), 5)
        self.age = self.first.clone()

    def reset(self, seed):
        self.age = self.first.clone()
        return self._seen()

    def _reset(self, mask):
        self.begun.update(self.age[mask].tolist())
        self.level[mask] = torch.where(self.age[mask] >= 40, self.level[mask] + 1, self.level[mask] - 1).clamp(0, 99)
        self.age[mask] = 0

    def step(self, action):
        self.age += 1
        late, final = self.age >= 50, self._seen()
        if self.autoreset == "SameStep":
            self._reset(late)
        outcome = self._seen(), torch.ones(self.num_envs), torch.zeros_like(late), late
        return (*outcome, final) if self.autoreset == "SameStep" and self.final else outcome

    def _seen(self):
        return (self.age / 50).repeat(2, 1).T


class ByMask(Curriculum):
    def reset_some(self, mask):
        assert mask.any()
        self.calls.append(mask)
        self._reset(mask)
        return self._seen()


class ByIds(Curriculum):
    def reset_ids(self, ids):
        assert ids.dtype == torch.int64 and len(ids)
        self.calls.append(ids)
        self._reset(torch.zeros(self.num_envs, dtype=torch.bool).index_fill(0, ids, True))
        return self._seen()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", [ByMask, ByIds])
@pytest.mark.parametrize("autoreset", ["SameStep", "Disabled"])
def test_each_episode_is_reset_once(autoreset, kind, together):
    simulator = kind(8, autoreset, together)
    env = envs.adapted(simulator)
    rollout = env.rollout(64, env.columns())
    env.reset(rollout, 0)
    for _ in range(10):
        for t in range(64):
            env.step(rollout, t)
        rollout.continue_from(rollout)
    assert {*simulator.begun} == {50.0}
    assert simulator.begun[50.0] in ([96] if together else range(96, 105))
    assert (simulator.level >= 5 + 12).all()
    assert len(simulator.calls) == {"SameStep": 0, "Disabled": 12 if together else len(simulator.calls)}[autoreset]


@pytest.mark.parametrize("actors", [None, 1, 2])
@pytest.mark.parametrize("autoreset", ["finals", "SameStep", "Disabled"])
def test_time_limits_do_not_lower_values(autoreset, actors):
    """Reward 1 for ever, cut off after 50 steps, with a discount of 0.9: the value is 10 in every state."""
    settings = {"gamma": 0.9, "learning_rate": 3e-3, "minibatch_size": 256, "hidden": (16,), "actors": actors}
    trainer = hr.Trainer("ppo", partial(_ageless, autoreset=autoreset), num_envs=32, num_steps=32, **settings)
    with closing(trainer), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(25):
            trainer.iterate()
        value = float(trainer.policy.value(torch.zeros(1, 2)))
    assert value == pytest.approx(10, rel=0.01)


def _ageless(num_envs, autoreset):
    simulator = Ageless(num_envs, "Disabled" if autoreset == "Disabled" else "SameStep", together=False)
    simulator.final = autoreset == "finals"
    return simulator


class Ageless(ByMask):
    """Simulator whose observations do not tell how much time is left."""

    def _seen(self):
        return torch.zeros(self.num_envs, 2)


def test_a_tensor_on_another_device_is_named():
    class Astray(Ramp):
        def step(self, action):
            observation, _, *ends = super().step(action)
            return observation, torch.zeros(self.num_envs), *ends

    with pytest.raises(ValueError, match="the reward of Astray is on cpu, but its environments are on meta"):
        run(Astray(device="meta"), first=1)


def test_a_dict_of_tensors():
    class Both(Ramp):
        observation_space = Dict(age=Box(0, 9, (1,)), length=Discrete(9))

        def _seen(self):
            return {"age": self.age[:, None].float(), "length": self.length}

    rollout = run(Both())
    assert rollout.observation.age[:5, 0, 0].tolist() == [0, 1, 2, 3, 0]
    assert rollout.observation.length[3].tolist() == [3, 4, 5]


def test_a_simulator_that_cannot_reset_is_refused():
    class Once(Ramp):
        reset_some = property()  # hasattr() says no

    with pytest.raises(TypeError, match="Once never resets its environments itself"):
        envs.adapted(Once(autoreset="Disabled"))


def test_training_and_evaluation():
    trainer = hr.Trainer("ppo", lambda num_envs: Ramp(num_envs), num_envs=4, num_steps=16, epochs=1)
    trainer.iterate()
    assert trainer.episodes.count > 4
    evaluation = hr.evaluate(trainer.policy, lambda num_envs: Ramp(num_envs), episodes=3)
    assert evaluation.lengths == (3, 4, 5)
