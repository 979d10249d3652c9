"""The actor-critic: the same outputs for all callers, and predict() for users."""

import json

import numpy as np
import pytest
import torch

from headrace.core.fused import plain_only
from headrace.data.rollout import Column, Rollout
from headrace.data.spaces import Box, Dict, Discrete, MultiDiscrete, action_column, env_columns
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.q_network import QNetwork

VECTOR = Box(-1, 1, (3,))
FORCES = Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32))
ACTIONS = [(Discrete(3, start=2), "auto"), (MultiDiscrete([2, 3]), "auto"), (FORCES, "gaussian"), (FORCES, "squashed")]


def collected(policy, steps=5, envs=16):
    """A rollout of random observations and the policy's own decisions."""
    columns = env_columns(policy.observation_space) | {"action": action_column(policy.action_space)}
    rollout = Rollout(steps, envs, columns | {"log_prob": Column(), "value": Column(bootstrap=True)})
    generator = torch.Generator().manual_seed(0)
    rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=generator))
    rollout.valid.fill_(True)
    with torch.no_grad():
        for t in range(steps):
            random = torch.rand(envs, policy.num_draws, generator=generator)
            decision = policy.act(rollout.observation[t], None, random)
            rollout.action[t], rollout.log_prob[t], rollout.value[t] = decision[:3]
    return rollout


@pytest.mark.parametrize(("space", "distribution"), ACTIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_replay_equals_what_was_collected(space, distribution, shared):
    policy = ActorCritic(
        VECTOR,
        space,
        shared=shared,
        distribution=distribution,
        normalize_observation=True,
        normalize_return=True,
        seed=3,
    )
    for _ in range(3):
        rollout = collected(policy)
        replay = policy.evaluate_rollout(rollout)
        torch.testing.assert_close(replay.log_prob, rollout.log_prob, rtol=1e-6, atol=2e-6)
        torch.testing.assert_close(replay.value, rollout.value[:-1], rtol=1e-6, atol=2e-6)
        assert replay.entropy.shape == (5, 16)
        policy.update_statistics(rollout, torch.randn(5, 16, generator=torch.Generator().manual_seed(1)) * 10)


def test_decisions_do_not_depend_on_the_batch():
    policy = ActorCritic(VECTOR, Discrete(4), seed=1)
    generator = torch.Generator().manual_seed(0)
    observation, random = torch.randn(64, 3, generator=generator), torch.rand(64, 1, generator=generator)
    with torch.no_grad():
        whole, values = policy.act(observation, None, random), policy.value(observation)
        for count in (1, 2, 7, 8, 33, 63):
            part = policy.act(observation[:count], None, random[:count])
            assert torch.equal(part.log_prob, whole.log_prob[:count])
            assert torch.equal(part.value, whole.value[:count])
            assert torch.equal(policy.value(observation[:count]), values[:count])


def test_value_alone_is_the_value_decided_with():
    policy = ActorCritic(VECTOR, Discrete(2), normalize_observation=True, normalize_return=True)
    rollout = collected(policy)
    policy.update_statistics(rollout, torch.randn(5, 16) * 30 + 7)
    decision = policy.act(rollout.observation[0], None, None)
    assert torch.equal(policy.value(rollout.observation[0]), decision.value)


def test_weights_are_a_function_of_the_seed():
    weights = [ActorCritic(VECTOR, Discrete(2), seed=seed).state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["actor_out.weight"], weights[2]["actor_out.weight"])


@pytest.mark.parametrize(("space", "distribution"), ACTIONS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_act_gives_actions_of_the_space(space, distribution, deterministic):
    policy = ActorCritic(VECTOR, space, distribution=distribution)
    one = policy.predict(np.zeros(3), deterministic=deterministic)[0]
    assert space.contains(one)
    batch = policy.predict(np.random.default_rng(0).normal(size=(50, 3)), deterministic=deterministic)[0]
    assert batch.shape == (50, *space.shape) and batch.dtype == space.dtype
    assert all(space.contains(action) for action in batch)


def test_act_draws_with_the_generator_given():
    policy = ActorCritic(VECTOR, FORCES)
    observation = np.zeros((20, 3))
    first, again, other = (
        policy.predict(observation, None, None, False, torch.Generator().manual_seed(s))[0] for s in (1, 1, 2)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.array_equal(policy.predict(observation)[0], np.tile(policy.predict(observation[0])[0], (20, 1)))


@pytest.mark.parametrize("space", [VECTOR, Box(0, 255, (6, 6), np.uint8)], ids=["vectors", "images"])
@torch.no_grad()
def test_the_most_likely_action_has_the_bits_of_act(space):
    policy, calls = ActorCritic(space, FORCES), []
    torch.nn.init.normal_(policy.actor_out.weight)
    seen = torch.tensor(np.stack([space.sample() for _ in range(70)]))
    with plain_only():
        for rows in (1, 64, 70):
            assert torch.equal(policy.most_likely(seen[:rows], None)[0], policy.act(seen[:rows], None, None).action)
        policy.register_forward_hook(lambda *_: calls.append(1))
        policy.predict(seen[0].numpy())
    assert calls  # an altered policy is asked for everything


def test_act_takes_dicts_and_refuses_other_shapes():
    space = Dict({"place": VECTOR, "mode": Discrete(3)})
    policy = ActorCritic(space, Discrete(2))
    assert Discrete(2).contains(policy.predict({"place": np.zeros(3), "mode": 2})[0])
    assert policy.predict({"place": np.zeros((4, 3)), "mode": np.zeros(4, int)})[0].shape == (4,)
    with pytest.raises(ValueError, match="lacks mode"):
        policy.predict({"place": np.zeros(3)})[0]
    with pytest.raises(ValueError, match=r"different sizes: {'mode': 3, 'place': 4}"):
        policy.predict({"place": np.zeros((4, 3)), "mode": np.zeros(3, int)})[0]
    with pytest.raises(ValueError, match="expected a dict of mode, place, got ndarray"):
        policy.predict(np.zeros(4))[0]
    with pytest.raises(ValueError, match=r"shape \(3,\).*got \(4,\)"):
        ActorCritic(VECTOR, Discrete(2)).predict(np.zeros(4))[0]
    with pytest.raises(TypeError, match="it is empty"):
        ActorCritic(Box(-1, 1, (0,)), Discrete(2))


def test_act_takes_arrays_that_tensors_cannot_have():
    policy, seen = ActorCritic(VECTOR, Box(-1, 1, (2,))), np.random.default_rng(0).normal(size=(4, 3))
    expected = policy.predict(seen)[0]
    assert np.array_equal(policy.predict(seen[::-1])[0], expected[::-1])
    assert np.array_equal(policy.predict(seen.astype(">f8"))[0], expected)


def test_a_policy_is_rebuilt_from_its_config():
    policy = ActorCritic(
        Dict({"place": VECTOR, "mode": Discrete(3)}), FORCES, (8,), "relu", True, "squashed", True, True, seed=9,
        layer_norm=True,
    )  # fmt: skip
    config = json.loads(json.dumps(policy.config()))
    other = ActorCritic.from_config(config)
    other.load_state_dict(policy.state_dict())
    observation = {"place": np.random.default_rng(0).normal(size=(9, 3)), "mode": np.arange(9) % 3}
    assert np.array_equal(policy.predict(observation)[0], other.predict(observation)[0])
    assert other.config() == policy.config()
    assert ActorCritic.from_config({k: v for k, v in config.items() if k != "layer_norm"}).layer_norm is False


def test_bounded_actions_start_out_across_their_bounds():
    policy = ActorCritic(VECTOR, FORCES)
    middle = policy.predict(np.zeros(3))[0]
    np.testing.assert_allclose(middle, [0.5, 0.0], atol=0.05)
    distribution, _ = policy(torch.zeros(8, 3))
    torch.testing.assert_close(distribution.log_std.exp().flatten(), torch.tensor([0.5, 2.0]))


def test_distributions_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="needs bounds on every dimension"):
        ActorCritic(VECTOR, Box(-np.inf, np.inf, (2,)), distribution="squashed")
    with pytest.raises(TypeError, match="no gaussian distribution over actions of Discrete"):
        ActorCritic(VECTOR, Discrete(2), distribution="gaussian")
    with pytest.raises(ValueError, match="unknown distribution 'normal'"):
        ActorCritic(VECTOR, FORCES, distribution="normal")


@pytest.mark.parametrize("space", [Discrete(3, start=2**31 - 2), Discrete(2, start=-(2**31) - 1)])
def test_actions_that_do_not_fit_into_32_bits_are_refused(space):
    several = MultiDiscrete([2, 3], start=[0, space.start])
    for make in (
        lambda: ActorCritic(VECTOR, space),
        lambda: ActorCritic(VECTOR, several),
        lambda: QNetwork(VECTOR, space),
    ):
        with pytest.raises(TypeError, match="do not fit into 32 bits"):
            make()
