"""Whole rollouts by given or random actions: the same on every backend."""

from __future__ import annotations

import pytest
import torch

from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.compiled.env import CompiledEnv


def prepared(name, backend, num_steps=12, num_envs=20):
    env = envs.make(name, num_envs, backend=backend)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(num_steps, num_envs, columns)
    env.reset(rollout, 7)
    return env, rollout


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_random_runs_are_alike_on_every_backend(name):
    rollouts = []
    for backend in ("cpu", "torch"):
        env, rollout = prepared(name, backend)
        env.run_random(rollout, 5)
        rollouts.append(rollout)
    assert torch.equal(rollouts[0].action, rollouts[1].action)
    assert torch.equal(rollouts[0].valid, rollouts[1].valid)
    torch.testing.assert_close(rollouts[0].observation, rollouts[1].observation, rtol=1e-3, atol=1e-3)
    assert rollouts[0].action.float().std() > 0.1


def test_a_run_takes_the_actions_that_are_there():
    env, rollout = prepared("CartPole-v1", "cpu")
    other, stepped = prepared("CartPole-v1", "cpu")
    for columns in (rollout, stepped):
        columns.action.copy_((torch.arange(12).unsqueeze(1) + torch.arange(20)) % 2)
    env.run(rollout)
    for t in range(12):
        other.step(stepped, t)
    assert torch.equal(rollout.observation, stepped.observation) and torch.equal(rollout.reward, stepped.reward)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_two_parts_of_a_set_give_what_the_whole_gives(backend):
    def rollout(num_envs, first_env):
        env = CompiledEnv(CartPole, num_envs, backend, first_env=first_env)
        columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
        rollout = Rollout(40, num_envs, columns)
        env.reset(rollout, 7)
        env.run_random(rollout, 0)
        assert env.first_env == first_env
        return rollout

    whole, parts = rollout(8, 0), (rollout(4, 0), rollout(4, 4))
    for name in whole.columns:
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], 1), getattr(whole, name))
