"""Simulators on a device: rows as everybody's, and nothing that would wait for the device or mix two of them."""

from __future__ import annotations

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
    """Worlds that count steps; world n ends after 3 + n of them, truncated in episodes of odd length, else terminated.

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


def run(simulator, steps=STEPS):
    env = envs.adapted(simulator)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(steps, env.num_envs, columns, simulator.device)
    rollout.action.fill_(2.0)
    env.reset(rollout, 0)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


@pytest.mark.parametrize("autoreset", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("hand_over", [lambda x: x, DlPack, lambda x: x.numpy()], ids=["torch", "dlpack", "numpy"])
def test_rows(autoreset, hand_over):
    rollout = run(Ramp(autoreset=autoreset, hand_over=hand_over))
    for world in range(NUM_ENVS):
        length = 3 + world
        period = [*range(length), length]
        assert rollout.observation[:, world, 0].tolist() == (period * 9)[: STEPS + 1]
        assert rollout.valid[:, world].tolist() == ([*[True] * length, False] * 9)[: STEPS + 1]
        ends, others = (rollout.truncated, rollout.terminated)[:: 1 if length % 2 else -1]
        assert ends[:, world].nonzero().flatten().tolist() == list(range(length - 1, STEPS, length + 1))
        assert not others[:, world].any()
        dead = ~rollout.valid[:STEPS, world]
        assert set(rollout.episode_length[dead, world].tolist()) == {length}
        assert set(rollout.episode_return[dead, world].tolist()) == {length}, "actions are clipped"
        assert rollout.reward[:, world].tolist() == rollout.valid[:STEPS, world].float().tolist()


@pytest.mark.parametrize("autoreset", ["NextStep", "SameStep", "Disabled"])
def test_nothing_waits_for_the_device(autoreset):
    """Tensors without contents: whoever looks into one, or mixes it with one of the CPU, is found out."""
    rollout = run(Ramp(device="meta", autoreset=autoreset))
    assert rollout.reward.device.type == "meta"


def test_a_tensor_on_another_device_is_named():
    class Astray(Ramp):
        def step(self, action):
            observation, _, *ends = super().step(action)
            return observation, torch.zeros(self.num_envs), *ends

    with pytest.raises(ValueError, match="the reward of Astray is on cpu, but its environments are on meta"):
        run(Astray(device="meta"))


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
