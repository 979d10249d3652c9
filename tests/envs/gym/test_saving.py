"""Gymnasium environments that can be saved go on bit for bit, with their wrappers and random numbers."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TransformReward
from helpers.saved import Drifting, limited

from headrace import envs
from headrace.core import fused
from headrace.data.rollout import named_tensors
from headrace.envs.gym.inline import InlineEnv
from headrace.envs.gym.saving import savable, state_of
from headrace.runs import checkpoint
from headrace.training.trainer import Trainer

SETTINGS = {"num_envs": 4, "num_steps": 8, "minibatch_size": 16, "epochs": 1, "hidden": (4,), "progress": "none"}


@pytest.fixture(autouse=True)
def without_kernels():
    """Run plain functions: kernels would be compiled for these tests alone."""
    with fused.plain_only():
        yield


def through_a_checkpoint(state, tmp_path):
    checkpoint.save(tmp_path / "saved", {"training": state})
    return checkpoint.load(tmp_path / "saved", "training")


def same(a, b):
    """Check that two rollouts have the same bits, except episodes' returns and lengths where none has ended."""
    for (name, mine), (_, its) in zip(named_tensors(a), named_tensors(b), strict=True):
        if name.startswith("episode"):
            mine, its = mine[~a.valid[:-1]], its[~b.valid[:-1]]
        assert torch.equal(mine, its), name


def of_frames():
    return FlattenObservation(FrameStackObservation(limited(Drifting), 3))


@pytest.mark.parametrize("make", [Drifting, partial(limited, Drifting), of_frames])
def test_a_training_goes_on_bit_for_bit(make, tmp_path):
    whole, other = Trainer("ppo", make, **SETTINGS), Trainer("ppo", make, **SETTINGS)
    for _ in range(3):
        whole.iterate()
    other.load_state_dict(through_a_checkpoint(whole.state_dict(), tmp_path))
    for _ in range(3):
        assert whole.iterate() == other.iterate()
        same(whole.collector.rollout, other.collector.rollout)
    assert whole.episodes.count >= 4


def test_the_wrappers_of_settings_are_saved(tmp_path):
    def rollout(env, steps):
        made = env.rollout(steps, env.columns())
        made.action.copy_(torch.arange(steps).view(-1, 1) % 2)
        return made

    def new():
        return envs.make(Drifting, 2, backend="inline", frame_stack=2, time_limit=5, reward_scale=0.5)

    whole, other = new(), new()
    first, second, third = (rollout(whole, 9) for _ in range(3))
    whole.reset(first, 3)
    other.reset(third, 4)
    for t in range(9):
        whole.step(first, t)
    other.load_state_dict(through_a_checkpoint(whole.state_dict(), tmp_path))
    for after in (second, third):
        after.observation[0], after.valid[0] = first.observation[-1], first.valid[-1]
    for t in range(9):
        whole.step(second, t)
        other.step(third, t)
    same(second, third)
    assert second.episode_length.max() == 5


def test_a_state_is_a_copy():
    env = Drifting()
    env.reset(seed=0)
    before = state_of(env)
    kept = before["layers"][0]["place"].copy()
    env.step(0)
    assert np.array_equal(before["layers"][0]["place"], kept)
    assert type(before["layers"][0]["pull"]) is np.float32


def test_what_cannot_be_saved_begins_again():
    class WithoutMethods(gymnasium.Wrapper):
        """Wrapper that may have a state which cannot be saved."""

    assert not savable(WithoutMethods(Drifting())) and not savable(TransformReward(Drifting(), lambda x: x))
    assert not savable(gymnasium.make("CartPole-v1")) and savable(limited(Drifting))
    env = InlineEnv(lambda: WithoutMethods(Drifting()), 2, "unknown")
    env.reset(env.rollout(2, env.columns()), 0)
    assert env.state_dict() == {}


def test_wrong_states_are_named():
    class Odd(Drifting):
        def state_dict(self):
            return {"place": [1.0, {"deep": {1, 2}}]}

    env = InlineEnv(Odd, 1, "odd")
    env.reset(env.rollout(2, env.columns()), 0)
    with pytest.raises(TypeError, match=r"the state of Odd, 'place', 1, 'deep', is a set: state_dict\(\) may return"):
        env.state_dict()
    plain, wrapped = InlineEnv(Drifting, 1, "plain"), InlineEnv(partial(limited, Drifting), 1, "wrapped")
    for made in (plain, wrapped):
        made.reset(made.rollout(2, made.columns()), 0)
    with pytest.raises(ValueError, match="is made of TimeLimit, OrderEnforcing, Drifting"):
        wrapped.load_state_dict(plain.state_dict())
