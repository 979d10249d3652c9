"""predict() of one observation without tensors: the bits that the way of tensors has, for every kind of policy."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from headrace.bindings.collecting import acting
from headrace.core.fused import kernel_of, plain_only
from headrace.data.flat_dict import FlatDict
from headrace.data.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic

VECTOR, FORCES = Box(-3, 3, (5,)), Box(np.float32([-2, 0, 1]), np.float32([4, 1, 3]))
MASKED = FlatDict({"observation": VECTOR, "action_mask": MultiBinary(5)})
GOALS = FlatDict({"observation": Box(-3, 3, (1,)), "desired_goal": VECTOR, "achieved_goal": VECTOR})
KINDS = {
    "discrete": lambda: ActorCritic(VECTOR, Discrete(3)),
    "counted from 2": lambda: ActorCritic(VECTOR, Discrete(7, start=2), shared=True, activation="elu"),
    "multi-discrete": lambda: ActorCritic(VECTOR, MultiDiscrete([3, 2, 5], start=[0, 1, 0]), hidden=(10,)),
    "gaussian": lambda: ActorCritic(VECTOR, FORCES, normalize_observation=True, normalize_return=True),
    "squashed": lambda: ActorCritic(VECTOR, FORCES, distribution="squashed", hidden=(20, 33), layer_norm=True),
    "multi-binary": lambda: ActorCritic(VECTOR, MultiBinary(5), activation="mish"),
    "masked": lambda: ActorCritic(MASKED, Discrete(5)),
    "masked, multi-discrete": lambda: ActorCritic(MASKED, MultiDiscrete([2, 3]), shared=True),
    "SAC": lambda: ActorQ(VECTOR, FORCES, (24, 32), normalize_observation=True),
    "SAC with goals": lambda: ActorQ(GOALS, FORCES, (24,)),
    "TD3": lambda: ActorQ(VECTOR, FORCES, (24, 32), deterministic=True, activation="tanh"),
    "DQN": lambda: QNetwork(VECTOR, Discrete(4, start=-1), normalize_observation=True),
    "PQN": lambda: QNetwork(VECTOR, Discrete(4), (16,), layer_norm=True),
    "dueling": lambda: QNetwork(VECTOR, Discrete(4), dueling=True),
    "masked DQN": lambda: QNetwork(MASKED, Discrete(5)),
    "correlated noise": lambda: ActorQ(VECTOR, FORCES, (24,), noise_autocorrelation=0.5),
    "CrossQ": lambda: ActorQ(VECTOR, FORCES, (24,), batch_renorm=10),
}


@torch.no_grad()
def prepared(make):
    """A policy with varied outputs, and with exploration where it has any."""
    policy = make()
    (policy.out if isinstance(policy, QNetwork) else policy.actor_out).weight.mul_(100)
    if getattr(policy.encoder, "normalizer", None) is not None:
        policy.encoder.normalizer.scale.fill_(4)
    if isinstance(policy, ActorQ | QNetwork):
        policy.exploration.fill_(0.5)
    return policy


def observations(policy, rows=7):
    """Float64 [rows, F], with zeros and ones for an action mask."""
    space = policy.observation_space
    seen = np.random.default_rng(rows).normal(size=(rows, *space.shape))
    if space is MASKED:
        seen[:, space.features :] = seen[:, space.features :] > 0
    return seen


def same(policy, observation, deterministic=True, seed=5):
    """The action without tensors, which is that of a batch of one."""
    draws = [torch.Generator().manual_seed(seed) for _ in range(2)]
    found = policy.act_on_one(observation, None, deterministic, draws[0])
    assert found is not None and found[1] is None
    one = found[0]
    batch = policy.predict(observation[None], None, None, deterministic, draws[1])[0]
    np.testing.assert_array_equal(one, batch[0])
    assert type(one) is type(batch[0]) and one.dtype == policy.action_space.dtype
    assert torch.equal(*(generator.get_state() for generator in draws))
    return one


@torch.no_grad()
def test_what_a_call_needs_is_found_once_and_is_not_kept(monkeypatch):
    policy, found, plain = ActorCritic(VECTOR, Discrete(3)), [], acting.called_to_act
    monkeypatch.setattr(acting, "called_to_act", lambda *call: found.append(call) or plain(*call))
    seen = torch.ones(4, 5)
    first, again = policy.act(seen, None, None), policy.act(seen, None, None)
    assert len(found) == 2 and torch.equal(first.log_prob, again.log_prob) and acting._last.found is None
    # asked about other columns before, it computes with those of the call
    kernel = kernel_of(ActorCritic.act, policy, seen, None, None)
    assert acting._last.found is not None
    assert torch.equal(kernel(policy, seen * 2, None, None).value, policy.act(seen * 2, None, None).value)
    assert not torch.equal(first.value, policy.act(seen * 2, None, None).value)


@pytest.mark.parametrize("kind", KINDS)
def test_one_observation_gets_the_bits_of_a_batch(kind):
    policy = prepared(KINDS[kind])
    seen = observations(policy)
    for deterministic in (True, False):
        found = [same(policy, row, deterministic, seed) for seed, row in enumerate(seen)]
        assert len({np.asarray(action).tobytes() for action in found}) > 1
    np.testing.assert_array_equal([policy.predict(row)[0] for row in seen], policy.predict(seen)[0])
    assert (
        policy.act_on_one(seen, None, True, None) is None
        and policy.act_on_one(seen[0].tolist(), None, True, None) is None
    )


NESTED = Dict({"place": Box(-3, 3, (4,)), "view": Box(-1, 1, (2, 3)), "speed": Box(-2, 2, ())})
BY_NAME = {
    "actor-critic": lambda: ActorCritic(NESTED, FORCES, normalize_observation=True),
    "DQN": lambda: QNetwork(NESTED, Discrete(4), normalize_observation=True),
    "SAC": lambda: ActorQ(NESTED, FORCES, (24,)),
    "GRU": lambda: RecurrentActorCritic(NESTED, Discrete(4), "gru", 7),
}


@pytest.mark.parametrize("kind", BY_NAME)
def test_a_dict_of_vectors_gets_the_bits_of_a_batch(kind):
    policy, generator = BY_NAME[kind](), np.random.default_rng(4)
    state, found = None, set()
    for _ in range(5):
        parts = {name: generator.normal(size=space.shape) for name, space in NESTED.spaces.items()}
        parts = {name: np.asarray(part, np.float32) for name, part in parts.items()} | {"other": "not looked at"}
        one, after = policy.act_on_one(parts, state, True, None)
        batch, next_state = policy.predict({name: parts[name][None] for name in NESTED}, state)
        np.testing.assert_array_equal(one, batch[0])
        assert (after is None and next_state is None) or np.array_equal(after, next_state)
        found.add(one.tobytes() + (b"" if after is None else after.tobytes()))
        state = after
    assert len(found) > 1 or kind == "DQN"
    assert policy.act_on_one(parts | {"place": np.zeros(3)}, None, True, None) is None
    with pytest.raises(ValueError, match="the observation lacks place"):
        policy.predict({name: part for name, part in parts.items() if name != "place"})


def test_a_dict_with_a_mask_an_image_or_a_choice_acts_by_tensors():
    others = {"action_mask": MultiBinary(2), "kind": Discrete(3), "view": Box(0, 255, (12, 12, 1), np.uint8)}
    for name, other in others.items():
        policy = ActorCritic(Dict({"place": VECTOR, name: other}), Discrete(2), images="small")
        seen = policy.observation_space.sample()
        assert policy.act_on_one(seen, None, True, None) is None and policy.predict(seen)[0] in (0, 1)


@pytest.mark.parametrize("kind", ["masked", "SAC with goals"])
def test_members_of_an_observation_are_taken_by_name(kind):
    policy = prepared(KINDS[kind])
    space, row = policy.observation_space, observations(policy)[0]
    parts = space.split(row)
    np.testing.assert_array_equal(policy.act_on_one(parts, None, True, None)[0], same(policy, row))
    assert policy.act_on_one(space.split(row[None]), None, True, None) is None
    with pytest.raises(ValueError, match="the observation lacks observation"):
        policy.predict({name: part for name, part in parts.items() if name != "observation"})


def _hook(policy, layer):
    layer.register_forward_hook(lambda module, inputs, output: output * 0 - 1)


def _function(policy, layer):
    policy.act = lambda *arguments: type(policy).act(policy, *arguments)


def _activation(policy, layer):
    trunk = policy.trunk if isinstance(policy, QNetwork) else policy.actor
    trunk._activate = torch.relu_ if policy.activation == "tanh" else torch.tanh_


@pytest.mark.parametrize("kind", ["discrete", "SAC", "TD3", "DQN"])
@pytest.mark.parametrize("change", [_hook, _function, _activation])
def test_what_was_changed_acts_by_tensors_or_a_program_of_its_own(kind, change):
    policy = prepared(KINDS[kind])
    row = observations(policy)[0]
    same(policy, row)
    change(policy, policy.out if isinstance(policy, QNetwork) else policy.actor_out)
    assert (policy.act_on_one(row, None, True, None) is None) == (change is not _activation)
    with plain_only():
        plain = policy.predict(row)[0]
    np.testing.assert_allclose(policy.predict(row)[0], plain, rtol=1e-5)
    np.testing.assert_array_equal(policy.predict(row)[0], policy.predict(row[None])[0][0])


@pytest.mark.parametrize("kind", ["gaussian", "SAC", "TD3", "DQN"])
@torch.no_grad()
def test_other_weights_are_seen(kind):
    policy = prepared(KINDS[kind])
    row, readout = observations(policy)[0], policy.out if kind == "DQN" else policy.actor_out
    last = policy.action_space.start + 3 if kind == "DQN" else policy.action_space.high
    readout.bias[-1 if kind == "DQN" else slice(3)] = 1e4
    np.testing.assert_allclose(same(policy, row), last, rtol=1e-6)
    fresh = KINDS[kind]()
    policy.load_state_dict(fresh.state_dict())
    assert not np.allclose(same(policy, row), last)
    np.testing.assert_array_equal(same(policy, row), same(fresh, row))
    readout.bias = torch.nn.Parameter(readout.bias.clone())  # no longer in one buffer
    np.testing.assert_array_equal(same(policy, row), same(fresh, row))


def test_a_copy_has_the_same_bits_and_exploration_of_each_environment_is_not_looked_at():
    policy = prepared(KINDS["DQN"])
    row = observations(policy)[0]
    other = deepcopy(policy)
    assert other.act_on_one(row, None, True, None)[0] == same(policy, row)
    policy.exploration = torch.full((8,), 1.0)
    assert {int(same(policy, row, False, seed)) for seed in range(20)} == {int(same(policy, row))}


def test_an_action_that_was_returned_stays_as_it_is():
    policy = ActorCritic(VECTOR, MultiDiscrete([3, 2], dtype=np.int32))
    seen = observations(policy, 2)
    first = policy.predict(seen[0])[0]
    kept = first.copy()
    policy.actor_out.bias.data[(int(kept[0]) + 1) % 3] += 1e4
    assert policy.predict(seen[0])[0][0] != kept[0] and first.tolist() == kept.tolist()
