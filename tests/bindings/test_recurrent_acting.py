"""Policies with a state act, evaluate and are collected by programs: as in plain PyTorch, and with the same bits in all
ways to collect."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Tuple

from headrace import envs
from headrace.bindings.collecting import acting, compiled_collecting
from headrace.core import fused
from headrace.core.fused import kernel_of, plain_only
from headrace.data.flat_action import flat_action
from headrace.data.rollout import Column
from headrace.parallel.collector import InlineCollector, mask_state, steps
from headrace.policies.actor_q import ActorQ
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ
from headrace.policies.discrete.hybrid_actor_q import HybridActorQ
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic

SEEN, FORCES, CHOICES = Box(-3, 3, (5,)), Box(np.float32([-2, 0, 1]), np.float32([4, 1, 3])), Discrete(4, start=-1)
HYBRID = flat_action(Tuple((Discrete(3), Box(-1, 1, (2,)))))
LSTM = {"recurrent": "lstm", "rnn_size": 12}
GRU = {"recurrent": "gru", "rnn_size": 16}
CASES = {
    "actor-critic GRU": lambda: RecurrentActorCritic(SEEN, CHOICES, "gru", 16, normalize_observation=True),
    "actor-critic LSTM": lambda: RecurrentActorCritic(SEEN, FORCES, "lstm", 13, hidden=(24, 8), normalize_return=True),
    "shared": lambda: RecurrentActorCritic(SEEN, FORCES, "gru", 9, shared=True, distribution="squashed"),
    "hybrid actions": lambda: RecurrentActorCritic(SEEN, HYBRID, "gru", 16),
    "DQN": lambda: QNetwork(SEEN, CHOICES, (16,), **GRU, dueling=True),
    "SAC": lambda: ActorQ(SEEN, FORCES, (16,), **LSTM),
    "TD3 with noise": lambda: ActorQ(SEEN, FORCES, (16,), **LSTM, deterministic=True, noise_autocorrelation=0.7),
    "correlated noise": lambda: ActorQ(SEEN, FORCES, (16,), noise_autocorrelation=0.5),
    "noise of an episode": lambda: ActorQ(SEEN, FORCES, (16,), deterministic=True, exploration_per_episode=True),
    "discrete SAC": lambda: DiscreteActorQ(SEEN, CHOICES, (16,), **GRU),
    "hybrid SAC": lambda: HybridActorQ(SEEN, HYBRID, (16,), **GRU),
}


@torch.no_grad()
def prepared(name):
    """A policy with varied outputs, which explores."""
    policy, generator = CASES[name](), torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    if getattr(policy, "exploration", None) is not None:
        policy.exploration.fill_(0.3)
    return policy


def alike(one, other):
    """Outputs are equal within rounding, in rows where choices are; these are nearly all."""
    same = torch.ones(len(one.action), dtype=torch.bool)
    if not one.action.is_floating_point():
        same = (one.action == other.action).view(len(same), -1).all(1)
    assert same.float().mean() > 0.98
    for name, mine, theirs in zip(one._fields, one, other, strict=True):
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            torch.testing.assert_close(mine[same], theirs[same], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_steps_are_those_of_plain_torch(name):
    policy, generator = prepared(name), torch.Generator().manual_seed(2)
    for drawn in (True, False):
        state = policy.initial_state(70)
        for _ in range(4):
            seen = torch.randn(70, 5, generator=generator)
            random = torch.rand(70, policy.num_draws, generator=generator) if drawn else None
            assert kernel_of(type(policy).act, policy, seen, state, random) is acting.act
            found = policy.act(seen, state, random)
            value = policy.value(seen, state)
            with plain_only():
                alike(found, policy.act(seen, state, random))
                torch.testing.assert_close(value, policy.value(seen, state), rtol=1e-4, atol=1e-5)
            if found.value is not None and not drawn:
                assert torch.equal(value, found.value)
            part = policy.act(seen[3:20], state[3:20], None if random is None else random[3:20])
            for whole, few in zip(found, part, strict=True):
                assert whole is few or torch.equal(whole[3:20], few)
            valid = torch.rand(70, generator=generator) > 0.2
            state = mask_state(found.rnn_state, valid)
    if policy.recurrent != "none":
        assert torch.equal(policy.act(seen, None, random).action, policy.act(seen, policy.initial_state(70), random)[0])


def first(actions):
    """The first of a batch of actions."""
    return tuple(part[0] for part in actions) if isinstance(actions, tuple) else actions[0]


def equal(one, other):
    """Two actions, of which hybrid ones are tuples, are equal."""
    for mine, theirs in zip(
        *(action if isinstance(action, tuple) else (action,) for action in (one, other)), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", CASES)
def test_one_observation_gets_the_bits_of_a_batch(name):
    policy = prepared(name)
    seen = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    for deterministic in (True, False):
        state = None
        for row in seen:
            draws = [torch.Generator().manual_seed(5) for _ in range(2)]
            one = policy.act_on_one(row, state, deterministic, draws[0])
            batch, after = policy.predict(row[None], state, None, deterministic, draws[1])
            if one is None:  # a state that predict() does not begin with, or draws that act() does not take as they are
                assert name == "discrete SAC" and not deterministic
                one = policy.predict(row, state, None, deterministic, draws[0])
            equal(one[0], first(batch))
            assert (one[1] is None) == (after is None) and (after is None or np.array_equal(one[1], after))
            assert torch.equal(*(generator.get_state() for generator in draws))
            state = after
        if state is not None:
            begun = policy.predict(row, state, np.array([True]), deterministic, draws[0].manual_seed(5))
            fresh = policy.predict(row, None, None, deterministic, draws[0].manual_seed(5))
            equal(begun[0], fresh[0])
            assert policy.act_on_one(row, state.astype(np.float64), deterministic, None) is None


class ByHalves(InlineCollector):
    """Acts for some environments and then for the others, as when collecting is double-buffered or asynchronous."""

    def act(self, t, random):
        whole = torch.zeros(self.rollout.num_steps, *random.shape)
        whole[t] = random
        rows, envs = torch.full((13,), t), torch.arange(7, 20)
        self.act_for(t, slice(0, 7), whole)
        self.act_for(rows, envs, whole)


def collector(kind, name, cell):
    """Make a collector of 20 environments. In CartPole episodes end within a rollout."""
    env = envs.make(name, 20, backend="cpu", threads=1)
    policy = RecurrentActorCritic(env.observation_space, env.action_space, cell, 10, hidden=(12,), seed=3)
    with torch.no_grad():
        policy.actor_out.weight.mul_(100)
    columns = {"log_prob": Column(), "value": Column(bootstrap=True)}
    return kind(env, policy, 30, columns | policy.columns(), seed=5)


def collected(source, together=True):
    """The columns of the next rollout, and the state after it. together: by one call, where one serves."""
    kernels = fused._kernels["collector.steps"]
    taken = kernels[:]
    if not together:
        kernels.clear()
    try:
        rollout = source.collect()
    finally:
        kernels[:] = taken
    return {name: getattr(rollout, name).clone() for name in rollout.columns} | {"state": source.rnn_state.clone()}


@pytest.mark.parametrize(("name", "cell"), [("CartPole-v1", "gru"), ("Pendulum-v1", "lstm")])
def test_ways_to_collect_have_the_same_bits(name, cell):
    sources = [collector(kind, name, cell) for kind in (InlineCollector, InlineCollector, ByHalves)]
    with torch.no_grad():
        assert kernel_of(steps, sources[0], 0) is compiled_collecting.steps
    ended = False
    for _ in range(3):
        first, *others = (
            collected(source, together) for source, together in zip(sources, (True, False, True), strict=True)
        )
        for other in others:
            for column in first:
                assert torch.equal(first[column], other[column]), column
        ended |= not first["valid"].all()
    assert first["state"].any() and (ended or name == "Pendulum-v1")


@torch.no_grad()
def test_what_was_changed_acts_in_plain_torch_or_takes_effect(monkeypatch, capsys):
    monkeypatch.setattr(fused, "_said", set())
    policy = prepared("actor-critic GRU")
    seen, state = torch.randn(8, 5), torch.randn(8, policy.state_width)
    before = policy.act(seen, state, None)
    hook = policy.rnn.register_forward_hook(lambda module, inputs, outputs: (outputs[0] + 1, outputs[1]))
    assert (policy.act(seen, state, None).value - before.value).abs().max() > 1e-3
    assert "recurrent_actor_critic.act runs in plain PyTorch: rnn has a hook" in capsys.readouterr().err
    hook.remove()
    policy.rnn.weight_hidden.mul_(0.5)
    changed = policy.act(seen, state, None)
    with plain_only():
        alike(changed, policy.act(seen, state, None))
    assert not torch.equal(changed.value, before.value)
    double = policy.double()
    assert kernel_of(RecurrentActorCritic.act, double, seen.double(), state.double(), None) is None
    assert double.act(seen.double(), state.double(), None).value.dtype == torch.float64


def test_noise_matrices_are_drawn_in_plain_torch():
    policy = ActorQ(SEEN, FORCES, (8,), use_sde=True)
    seen, random = torch.randn(4, 5), torch.rand(4, policy.num_draws)
    with torch.no_grad():
        assert kernel_of(ActorQ.act, policy, seen, policy.initial_state(4), random) is None
        assert kernel_of(ActorQ.act, policy, seen, policy.initial_state(4), None) is acting.act


def test_gradients_are_left_to_torch():
    policy = prepared("actor-critic LSTM")
    state = policy.initial_state(4)
    assert kernel_of(RecurrentActorCritic.act, policy, torch.randn(4, 5), state, None) is None
    policy.act(torch.randn(4, 5), state, None).value.sum().backward()
    assert policy.rnn.weight_hidden.grad is not None
