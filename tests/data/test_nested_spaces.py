"""Observations of any supported space reach the network unchanged, and actions reach the environment."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from helpers.nested_spaces import action_spaces, observation_spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.device import torch_threads
from headrace.data.rollout import Group, Rollout
from headrace.data.spaces import (
    Discrete,
    MultiBinary,
    MultiDiscrete,
    action_column,
    env_columns,
    from_json,
    leaves,
    to_json,
)
from headrace.envs.gym.inline import InlineEnv
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.networks import make_encoder
from headrace.policies.numpy_io import to_batch

SEEDS = st.integers(0, 2**31 - 1)
STEPS, ENVS = 2, 3


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks are small here, and several threads would wait for each other."""
    with torch_threads(1):
        yield


class Showing(gymnasium.Env):
    """Shows samples of a space, and keeps them and its actions."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space, self.action_space = observation_space, action_space or Discrete(2)
        self.shown, self.told = [], []

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.look(), {}

    def step(self, action):
        self.told.append(action)
        return self.look(), 0.0, False, False, {}

    def look(self):
        self.shown.append(self.observation_space.sample())
        return self.shown[-1]


def filled(observation_space, action_space, actions=None):
    """Three such environments, and a rollout of two steps of them."""
    spaces = [from_json(to_json(observation_space)) for _ in range(ENVS)]  # each draws by itself
    env = InlineEnv(lambda: Showing(spaces.pop(), action_space), ENVS, "Showing")
    rollout = Rollout(STEPS, ENVS, env_columns(observation_space) | {"action": action_column(action_space)})
    env.reset(rollout, seed=0)
    for t in range(STEPS):
        if actions is not None:
            rollout.action[t] = torch.as_tensor(actions[t])
        env.step(rollout, t)
    return env, rollout


def at(observation, keys):
    for key in keys:
        observation = getattr(observation, str(key)) if isinstance(observation, Group) else observation[key]
    return observation


@settings(max_examples=60, derandomize=True)
@given(observation_spaces)
def test_observations_reach_the_column_and_the_network_as_they_are(space):
    env, rollout = filled(space, Discrete(2))
    for row in range(STEPS + 1):
        for index, world in enumerate(env.envs):
            for keys, _ in leaves(space):
                column = at(rollout.observation, keys)[row, index].numpy()
                np.testing.assert_array_equal(column, np.asarray(at(world.shown[row], keys)).astype(column.dtype))
    encoder = make_encoder(space, normalize=False, generator=torch.Generator().manual_seed(0))
    encoded = encoder(rollout.observation[1])
    assert encoded.shape == (ENVS, encoder.size) and encoded.dtype == torch.float32 and encoded.isfinite().all()
    batch, single = to_batch(space, env.envs[1].shown[1], torch.device("cpu"))
    assert single
    torch.testing.assert_close(encoder(batch)[0], encoded[1])


@settings(max_examples=60, derandomize=True)
@given(action_spaces, SEEDS)
def test_actions_reach_the_environment_as_they_are(space, seed):
    space.seed(seed)
    actions = [np.stack([space.sample() for _ in range(ENVS)]) for _ in range(STEPS)]
    env, _ = filled(Discrete(2), space, actions)
    for index, world in enumerate(env.envs):
        for told, step in zip(world.told, actions, strict=True):
            assert space.contains(told)
            kept = step[index].astype(np.float32) if step.dtype.kind == "f" else step[index]  # as the column has it
            np.testing.assert_array_equal(told, kept)


@settings(max_examples=20, derandomize=True)
@given(observation_spaces, action_spaces, SEEDS)
def test_a_policy_acts_inside_the_space_and_says_how_likely_that_was(observation_space, action_space, seed):
    policy = ActorCritic(observation_space, action_space, hidden=(4,), images="small")
    _, rollout = filled(observation_space, Discrete(2))
    random = torch.rand(ENVS, policy.num_draws, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        decision = policy.act(rollout.observation[0], None, random)
        evaluation = policy.log_prob_entropy_value(rollout.observation[0], decision.action)
    torch.testing.assert_close(evaluation.log_prob, decision.log_prob)
    column = action_column(action_space)
    assert decision.action.dtype == column.dtype and decision.action.shape == (ENVS, *column.shape)
    observation_space.seed(seed)
    assert action_space.contains(policy.predict(observation_space.sample(), deterministic=False)[0])
    again = ActorCritic.from_config(json.loads(json.dumps(policy.config())))
    assert again.observation_space == observation_space and again.action_space == action_space


@settings(max_examples=60, derandomize=True)
@given(observation_spaces)
def test_json_gives_an_equal_space(space):
    assert from_json(json.loads(json.dumps(to_json(space)))) == space


def test_switches_and_choices_are_whole_numbers_of_the_spaces_own_type():
    for space in (MultiBinary(3), MultiDiscrete([2, 3], start=[5, -1]), Discrete(3, start=2)):
        policy = ActorCritic(Discrete(2), space, hidden=())
        action = policy.predict(np.array([0, 1]))[0]
        assert action.dtype == space.dtype and all(space.contains(one) for one in action)
