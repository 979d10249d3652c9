"""PPO by programs made of its loss: equal to the plain one, whatever the threads, the network and what is replaced."""

import copy
import dataclasses

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.algorithms import ppo
from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, action_column, env_columns
from headrace.policies.networks import ACTIVATIONS

VECTOR = Box(-3, 3, (5,))
RAW = {"normalize_observation": False, "normalize_return": False}
BASE = PPOConfig(num_steps=24, epochs=3, minibatch_size=70, hidden=(20, 13), entropy_coef=0.01, **RAW)
CASES = {
    "discrete": (VECTOR, Discrete(3), {}),
    "counted from 2, shared": (VECTOR, Discrete(4, start=2), {"shared": True, "activation": "relu"}),
    "multi-discrete": (VECTOR, MultiDiscrete([3, 2, 5], start=[0, 1, 0]), {"activation": "silu", "value_clip": 0.1}),
    "counted from 2^24 + 1": (VECTOR, Discrete(4, start=2**24 + 1), {}),
    "counted from far below 0": (VECTOR, MultiDiscrete([3, 4], start=[-(2**30) - 1, 2**31 - 4]), {}),
    "multi-binary": (VECTOR, MultiBinary(3), {"entropy_coef": 0.3}),
    "gaussian": (VECTOR, Box(-2, 4, (3,)), {"activation": "elu", "hidden": (70,)}),
    "normalised": (
        VECTOR,
        Box(-1, 1, (1,)),
        {"normalize_observation": True, "normalize_return": True, "value_clip": 0.2, "activation": "gelu"},
    ),
    "stopped by KL": (VECTOR, Discrete(2), {"target_kl": 0.035, "learning_rate": 3e-3, "epochs": 6}),
    "raw advantages": (VECTOR, Discrete(2), {"normalize_advantage": False, "activation": "leaky_relu"}),
    "another beta2": (VECTOR, Discrete(2), {"adam_beta2": 0.9}),
    "mish": (VECTOR, Discrete(2), {"activation": "mish"}),
    "squashed": (VECTOR, Box(-2, 4, (3,)), {"distribution": "squashed", "activation": "relu", "hidden": (30,)}),
    "squashed, shared": (VECTOR, Box(-1, 1, (1,)), {"distribution": "squashed", "shared": True, "value_clip": 0.3}),
    "layer norm": (VECTOR, Discrete(3), {"layer_norm": True}),
    "layer norm, shared": (VECTOR, Box(-1, 1, (2,)), {"layer_norm": True, "shared": True, "activation": "silu"}),
    "no hidden layers": (VECTOR, Discrete(2), {"hidden": ()}),
    "choices seen": (MultiDiscrete([4, 3]), Discrete(2), {}),
    "several things seen": (Dict({"a": VECTOR, "b": Discrete(3)}), Discrete(2), {}),
}


def plain_learn(*arguments):
    """ppo.learn in plain PyTorch."""
    with fused.plain_only():
        return ppo.learn(*arguments)


def prepared(observation_space, action_space, options, envs=12, seed=0):
    """PPO, and a rollout that it collected of random observations, with endings and masked steps."""
    learner = PPO.build(dataclasses.replace(BASE, **options), observation_space, action_space, seed, "cpu")
    policy = learner.policy
    columns = env_columns(observation_space) | {"action": action_column(action_space)} | learner.columns()
    rollout = Rollout(BASE.num_steps, envs, columns)
    generator = torch.Generator().manual_seed(seed)
    fill(rollout.observation, generator)
    rollout.reward.copy_(torch.randn(rollout.reward.shape, generator=generator))
    rollout.valid.copy_(torch.rand(rollout.valid.shape, generator=generator) > 0.1)
    rollout.terminated[5, ::3], rollout.truncated[9, 1::3] = True, True
    with torch.no_grad():
        policy.actor_out.weight.mul_(50)
        for t in range(BASE.num_steps):
            random = torch.rand(envs, policy.num_draws, generator=generator)
            decision = policy.act(rollout.observation[t], None, random)
            rollout.action[t], rollout.log_prob[t], rollout.value[t] = decision[:3]
        # as if collected by a policy a little different, so that ratios leave the clip's range
        rollout.log_prob += 0.3 * torch.randn(rollout.log_prob.shape, generator=generator)
        rollout.value += 0.3 * torch.randn(rollout.value.shape, generator=generator)
    return learner, rollout


def fill(observation, generator):
    if isinstance(observation, torch.Tensor):
        random = torch.randn(observation.shape, generator=generator)
        observation.copy_(random if observation.is_floating_point() else random.abs().clamp(max=2))
    else:
        for _, member in observation:
            fill(member, generator)


def copied(learner):
    """The same learner once more, with a buffer of its own."""
    other = PPO(copy.deepcopy(learner.policy), learner.config, learner.seed)
    other.load_state_dict(learner.state_dict())
    return other


@pytest.mark.parametrize("name", CASES)
def test_ten_updates_equal_the_plain_ones(name, capsys):
    learner, rollout = prepared(*CASES[name])
    plain = copied(learner)
    for update in range(10):
        metrics = learner.update(rollout, update / 10)
        with fused.plain_only():
            expected = plain.update(rollout, update / 10)
        assert metrics.keys() == expected.keys()
        for key in metrics:
            assert metrics[key].sub(expected[key]).abs() <= 2e-6 + 1e-4 * expected[key].abs(), key
    assert learner.optimizer.steps == plain.optimizer.steps
    scale = plain.optimizer.flat.abs().max()
    assert (learner.optimizer.flat - plain.optimizer.flat).abs().max() < 1e-5 * scale
    assert (learner.optimizer.mean - plain.optimizer.mean).abs().max() < 1e-5 * plain.optimizer.mean.abs().max()
    assert learner.optimizer.steps > 0
    assert "runs in plain PyTorch" not in capsys.readouterr().err


@settings(max_examples=20)
@given(
    hidden=st.lists(st.integers(1, 130), max_size=4),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    layer_norm=st.booleans(),
    shared=st.booleans(),
    distribution=st.sampled_from(["categorical", "gaussian", "unit_gaussian", "squashed"]),
    envs=st.integers(1, 13),
    seed=st.integers(0, 2**20),
)
def test_one_step_of_any_architecture(hidden, activation, layer_norm, shared, distribution, envs, seed):
    """Parameters after one step are the plain one's within 1e-5 of their size, a thirtieth of the step."""
    # norms of so few numbers hardly depend on them, and Adam makes whole steps of the rounding in a gradient near 0
    assume(not (layer_norm and min(hidden, default=4) < 4))
    space = Discrete(3) if distribution == "categorical" else Box(-1, 2, (2,))
    options = {"hidden": tuple(hidden), "activation": activation, "layer_norm": layer_norm, "shared": shared}
    learner, rollout = prepared(VECTOR, space, options | {"distribution": distribution}, envs, seed)
    plain, rows = copied(learner), rollout.num_steps * rollout.num_envs
    config, before = dataclasses.replace(learner.config, minibatch_size=rows), learner.optimizer.flat.clone()
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).unsqueeze(0)
    made_up = torch.randn(2, *rollout.reward.shape, generator=torch.Generator().manual_seed(seed))
    targets = Targets(*made_up, rollout.valid[:-1])
    for each in (learner, plain):
        function = ppo.learn if each is learner else plain_learn
        function(each.policy, each.optimizer, rollout, targets, order, config)
    assert learner.optimizer.steps == plain.optimizer.steps == 1
    assert not torch.equal(plain.optimizer.flat, before)
    difference = (learner.optimizer.flat - plain.optimizer.flat).abs().max()
    assert difference <= 1e-5 * plain.optimizer.flat.abs().max()


def test_bits_do_not_depend_on_threads(monkeypatch):
    results = []
    for threads in (1, 2, 3):
        learner, rollout = prepared(VECTOR, Discrete(3), {"minibatch_size": 290}, envs=24)
        monkeypatch.setenv("HEADRACE_THREADS", str(threads))
        for _ in range(5):
            learner.update(rollout, 0.0)
        results.append(learner.optimizer.flat.clone())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("column", ["observation", "reward", "log_prob"])
def test_nan_reaches_the_parameters_and_the_loss(column):
    learner, rollout = prepared(VECTOR, Discrete(3), {})
    rollout.valid.fill_(True)
    getattr(rollout, column)[3, 4] = torch.nan
    metrics = learner.update(rollout, 0.0)
    assert metrics["loss"].isnan()
    assert learner.optimizer.flat.isnan().any()


def test_dead_rows_weigh_nothing():
    learner, rollout = prepared(VECTOR, Discrete(3), {})
    other = copied(learner)
    learner.update(rollout, 0.0)
    dead = ~rollout.valid[:-1]
    rollout.log_prob[dead] += 0.5
    rollout.action[dead] = 2 - rollout.action[dead]
    other.update(rollout, 0.0)
    assert torch.equal(learner.optimizer.flat, other.optimizer.flat)


def test_an_edited_loss_is_what_runs(monkeypatch, capsys):
    learner, rollout = prepared(VECTOR, Discrete(3), {})
    edited, plain = copied(learner), copied(learner)
    learner.update(rollout, 0.0)

    def without_values(policy, batch, config):
        return original(policy, batch, dataclasses.replace(config, value_coef=0.0))

    original = ppo.ppo_loss
    monkeypatch.setattr(fused, "_said", set())
    monkeypatch.setattr(ppo, "ppo_loss", without_values)
    edited.update(rollout, 0.0)
    with fused.plain_only():
        plain.update(rollout, 0.0)
    torch.testing.assert_close(edited.optimizer.flat, plain.optimizer.flat, rtol=1e-4, atol=1e-6)  # it is compiled
    assert (edited.optimizer.flat - learner.optimizer.flat).abs().max() > 1e-4


class Slower(Adam):
    pass


def learn_more(learner):
    """An encoder with parameters, known to the optimizer."""
    learner.policy.encoder.more = torch.nn.Linear(5, 5)
    learner.optimizer = Adam(learner.policy.parameters(), 3e-4)


def own_images(learner):
    learner.policy.actor = torch.nn.Sequential(learner.policy.actor, torch.nn.Softplus())


CHANGES = {
    "an optimizer of a subclass": lambda p: setattr(p, "optimizer", Slower(p.policy.parameters(), 3e-4)),
    "another beta1": lambda p: setattr(p.optimizer, "beta1", 0.5),
    "a policy of a subclass": lambda p: setattr(p.policy, "__class__", type("Mine", (type(p.policy),), {"scale": 1})),
    "another actor": own_images,
    "more parameters": learn_more,
    "a frozen parameter": lambda p: p.policy.critic_out.bias.requires_grad_(False),
    "a parameter that was replaced": lambda p: setattr(p.policy.actor_out.bias, "data", torch.zeros(3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_replaced_is_learned_as_by_the_plain_call(name):
    learner, rollout = prepared(VECTOR, Discrete(3), {})
    plain = copied(learner)
    learner.update(rollout, 0.0)
    with fused.plain_only():
        plain.update(rollout, 0.0)
    for each in (learner, plain):
        torch.manual_seed(0)
        CHANGES[name](each)
    for _ in range(2):
        learner.update(rollout, 0.0)
        with fused.plain_only():
            plain.update(rollout, 0.0)
    found, expected = (dict(each.policy.named_parameters()) for each in (learner, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_wide_layers_are_learned():
    learner, rollout = prepared(VECTOR, Discrete(3), {"hidden": (1500,), "epochs": 1})
    plain = copied(learner)
    learner.update(rollout, 0.0)
    with fused.plain_only():
        plain.update(rollout, 0.0)
    torch.testing.assert_close(learner.optimizer.flat, plain.optimizer.flat, rtol=0, atol=1e-5)


@pytest.mark.parametrize("change", [lambda x: x + 1, lambda x: x - 1, lambda x: x[:, :20], torch.Tensor.int])
def test_an_order_of_other_rows_than_there_are_is_an_error(change):
    learner, rollout = prepared(VECTOR, Discrete(3), {})
    targets = learner.process(rollout)
    order = change(learner.permutation(rollout, 2))
    config = dataclasses.replace(learner.config, minibatch_size=20)
    plain = copied(learner)
    arguments = rollout, targets, order, config
    try:
        expected = plain_learn(plain.policy, plain.optimizer, *arguments)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            ppo.learn(learner.policy, learner.optimizer, *arguments)
    else:
        found = ppo.learn(learner.policy, learner.optimizer, *arguments)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_another_column_of_observations_is_read_where_it_lies():
    learner, rollout = prepared(VECTOR, Discrete(3), {})
    other, _ = prepared(VECTOR, Discrete(3), {})
    for observation in (rollout.observation, rollout.observation.flip(0), rollout.observation.flip(1).contiguous()):
        rollout.observation = observation
        learner.update(rollout, 0.0)
        with fused.plain_only():
            other.update(rollout, 0.0)
        torch.testing.assert_close(learner.optimizer.flat, other.optimizer.flat, rtol=0, atol=1e-5)
        rollout.observation.mul_(0.5)
        learner.update(rollout, 0.0)
        with fused.plain_only():
            other.update(rollout, 0.0)
        torch.testing.assert_close(learner.optimizer.flat, other.optimizer.flat, rtol=0, atol=1e-5)


def test_a_moved_policy_is_learned_where_it_lies_now():
    learner, rollout = prepared(VECTOR, Discrete(3), {})
    learner.update(rollout, 0.0)
    learner.optimizer = Adam(learner.policy.parameters(), 3e-4)
    other = copied(learner)
    before = learner.optimizer.flat.clone()
    learner.update(rollout, 0.0)
    with fused.plain_only():
        other.update(rollout, 0.0)
    assert not torch.equal(learner.optimizer.flat, before)
    torch.testing.assert_close(learner.optimizer.flat, other.optimizer.flat, rtol=0, atol=1e-6)


def test_a_collected_value_that_is_nan_shows_in_the_loss():
    learner, rollout = prepared(VECTOR, Discrete(3), {"value_clip": 0.2, "epochs": 1, "minibatch_size": 10_000})
    plain, generator = copied(learner), torch.Generator().manual_seed(0)
    targets = Targets(*torch.randn(2, *rollout.reward.shape, generator=generator), rollout.valid[:-1])
    rollout.value[3, 4], rollout.valid[3, 4] = torch.nan, True
    order = torch.arange(rollout.reward.numel()).unsqueeze(0)
    for each, function in ((learner, ppo.learn), (plain, plain_learn)):
        metrics = function(each.policy, each.optimizer, rollout, targets, order, each.config)
        assert metrics["value_loss"].isnan() and not metrics["policy_gradient_loss"].isnan()
    torch.testing.assert_close(learner.optimizer.flat, plain.optimizer.flat, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("shift", [-87.0, -89.0, -200.0])
def test_a_ratio_beyond_float32_is_learned_as_by_the_plain_call(shift, valid):
    options = {"epochs": 1, "minibatch_size": 10_000, "normalize_advantage": False}
    learner, rollout = prepared(VECTOR, Discrete(3), options)
    plain, generator = copied(learner), torch.Generator().manual_seed(0)
    targets = Targets(*torch.randn(2, *rollout.reward.shape, generator=generator), rollout.valid[:-1])
    targets.advantage[3, 4], rollout.valid[3, 4] = 1.0, valid
    rollout.log_prob[3, 4] += shift
    order, before = torch.arange(rollout.reward.numel()).unsqueeze(0), learner.optimizer.flat.clone()
    for each, function in ((learner, ppo.learn), (plain, plain_learn)):
        metrics = function(each.policy, each.optimizer, rollout, targets, order, each.config)
        assert metrics["loss"].isfinite() and (each.optimizer.flat - before).abs().max() > 1e-4
    torch.testing.assert_close(learner.optimizer.flat, plain.optimizer.flat, rtol=0, atol=1e-6)
