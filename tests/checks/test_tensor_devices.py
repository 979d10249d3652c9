"""CheckDevice names the tensor that is on the wrong device, and otherwise changes nothing."""

from __future__ import annotations

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from helpers.strict_device import strict_device

from headrace import CheckDevice, DeviceEnv
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.data.rollout import Group, Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs import make
from headrace.parallel.collector import InlineCollector
from headrace.policies.actor_critic import ActorCritic

SPACE = Dict({"position": Box(-1, 1, (3,)), "kind": Discrete(4)})


def observation(device="cpu"):
    return Group({"position": torch.zeros(5, 3, device=device), "kind": torch.zeros(5, dtype=torch.int32)})


def dict_policy():
    return CheckDevice(ActorCritic(SPACE, Discrete(2), hidden=(8,)))


def cartpole(device="cpu"):
    env = make("CartPole-v1", 2)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    return CheckDevice(env), Rollout(3, 2, columns, device)


def test_a_nested_argument_is_named_with_its_device_and_the_one_expected():
    policy = dict_policy()
    with pytest.raises(
        RuntimeError, match=r"ActorCritic.act\(\): observation.position is on meta, expected on cpu. Cr"
    ):
        policy.act(observation("meta"), None, torch.zeros(5, policy.num_draws))
    with pytest.raises(RuntimeError, match=r"act\(\): random is on meta"):
        policy.act(observation(), None, random=torch.zeros(5, policy.num_draws, device="meta"))
    with pytest.raises(RuntimeError, match=r"act\(\): rnn_state\[1\].cell is on meta"):
        policy.act(observation(), (None, {"cell": torch.zeros(1, device="meta")}), None)


def test_a_result_is_named():
    class Lost(ActorCritic):
        def act(self, observation, rnn_state, random):
            return super().act(observation, rnn_state, random)._replace(value=torch.zeros(5, device="meta"))

    with pytest.raises(RuntimeError, match=r"Lost.act\(\): result.value is on meta, expected on cpu"):
        CheckDevice(Lost(SPACE, Discrete(2), hidden=(8,))).act(observation(), None, None)


def test_a_column_of_a_rollout_is_named():
    env, rollout = cartpole()
    env.reset(rollout, seed=1)
    rollout.reward = rollout.reward.to("meta")
    with pytest.raises(RuntimeError, match=r"CompiledEnv.step\(\): rollout.reward is on meta, expected on cpu"):
        env.step(rollout, 0)
    with pytest.raises(RuntimeError, match=r"CompiledEnv.reset\(\): rollout.observation is on meta"):
        env.reset(cartpole("meta")[1], 0)


def test_a_parameter_or_buffer_on_another_device_is_named_in_the_constructor():
    policy = ActorCritic(SPACE, Discrete(2), hidden=(8,), normalize_observation=True)
    policy.actor_out.to("meta")
    with pytest.raises(RuntimeError, match=r"ActorCritic: parameter.actor_out.weight is on meta, expected on cpu"):
        CheckDevice(policy)
    with pytest.raises(RuntimeError, match="is on cpu, expected on meta"):
        CheckDevice(ActorCritic(SPACE, Discrete(2), hidden=(8,)), "meta")


def test_everything_is_forwarded():
    env, rollout = cartpole()
    plain, expected = make("CartPole-v1", 2), cartpole()[1]
    for each, row in ((env, rollout), (plain, expected)):
        each.reset(row, seed=9)
        each.step(row, 0)
    assert torch.equal(rollout.observation, expected.observation) and rollout.observation[1].any()
    assert env.num_envs == 2 and env.state_dict().keys() == plain.state_dict().keys()
    policy = dict_policy()
    policy.train(False)
    assert not policy.training and policy.predict({"position": [0.0] * 3, "kind": 1})[0] in (0, 1)
    policy.exploration = torch.ones(1)
    assert policy._inside.exploration is policy.exploration and "CheckDevice(ActorCritic(" in repr(policy)
    with pytest.raises(AttributeError, match="nothing"):
        env.nothing  # noqa: B018  (that it raises is the point)


def test_collecting_and_learning_give_the_same_results_with_it():
    assert torch.equal(trained(CheckDevice), trained(lambda inside: inside))


def trained(wrap):
    """Weights after two iterations of PPO, as one vector."""
    env = make("CartPole-v1", 4)
    policy = wrap(ActorCritic(env.observation_space, env.action_space, hidden=(8,), seed=1))
    learner = PPO(policy, PPOConfig(num_steps=8, minibatch_size=16, epochs=1))
    collector = InlineCollector(wrap(env), policy, 8, learner.columns(), 0)
    with fused.plain_only():
        for _ in range(2):
            learner.update(collector.collect(), 0.0)
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def test_on_a_strict_device_it_passes_and_names_a_wrong_tensor():
    with strict_device() as device:
        env = CheckDevice(DeviceEnv(make("CartPole-v1", 2), device))
        rollout = Rollout(3, 2, cartpole()[1].columns, device)
        env.reset(rollout, 0)
        env.step(rollout, 0)
        with pytest.raises(RuntimeError, match=r"DeviceEnv.step\(\): rollout.\w+ is on cpu, expected on meta"):
            env.step(cartpole()[1], 0)
