"""predict() with a recurrent state: NumPy arrays, in Stable-Baselines3's order of arguments, and errors by name."""

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.core.fused import plain_only
from headrace.data.spaces import Box, Discrete
from headrace.deploy.numpy_writer import load
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic

SEEN = Box(-3, 3, (4,))
KINDS = {
    "gru": lambda: RecurrentActorCritic(SEEN, Discrete(3), "gru", 7),
    "lstm": lambda: RecurrentActorCritic(SEEN, Box(-1, 1, (2,)), "lstm", 5, shared=True),
    "DQN": lambda: QNetwork(SEEN, Discrete(3), (8,), recurrent="gru", rnn_size=6, sequence_length=4),
}
ROWS = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_numpy_arrays_and_episodes_start_by_the_third_argument(kind):
    policy = KINDS[kind]()
    _, state = policy.predict(ROWS)
    assert type(state) is np.ndarray and state.dtype == np.float32 and state.shape == (5, policy.state_width)
    starts = np.array([True, False, False, True, False])
    _, mixed = policy.predict(ROWS, state, starts)
    _, goes_on = policy.predict(ROWS, state)
    np.testing.assert_array_equal(mixed[starts], state[starts])  # the state after a first observation
    np.testing.assert_array_equal(mixed[~starts], goes_on[~starts])
    assert not np.array_equal(goes_on[starts], state[starts])


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_may_be_a_tensor_a_list_or_of_doubles_with_the_same_bits(kind):
    policy = KINDS[kind]()
    _, state = policy.predict(ROWS[0])
    action, after = policy.predict(ROWS[1], state)
    for other in (torch.from_numpy(state), state.tolist(), state.astype(np.float64)):
        found = policy.predict(ROWS[1], other)
        np.testing.assert_array_equal(found[0], action)
        np.testing.assert_array_equal(found[1], after)
    with plain_only():
        np.testing.assert_allclose(policy.predict(ROWS[1], state)[1], after, rtol=1e-5, atol=1e-6)


def test_a_returned_state_stays_as_it_is():
    policy = KINDS["gru"]()
    _, state = policy.predict(ROWS[0])
    kept = state.copy()
    _, after = policy.predict(ROWS[1], state)
    np.testing.assert_array_equal(state, kept)
    assert not np.array_equal(after, kept)


@pytest.mark.parametrize("rows", [ROWS, ROWS[0]])
def test_states_of_another_shape_are_refused_with_both_shapes(rows):
    policy, number = KINDS["gru"](), 5 if rows is ROWS else 1
    for shape in ((14,), (3, 14), (number, 13), (number, 1, 14)):
        with pytest.raises(ValueError, match=rf"state has shape \({shape[0]},.* of \({number}, 14\)"):
            policy.predict(rows, np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=rf"episode_start has shape \(2,\): give a bool for each of {number}"):
        policy.predict(rows, np.zeros((number, 14)), np.array([True, False]))


def test_a_third_argument_that_was_meant_to_be_deterministic_is_refused():
    for policy in (KINDS["gru"](), ActorCritic(SEEN, Discrete(3))):
        with pytest.raises(TypeError, match=r"episode_start is False: .*deterministic is given by its name"):
            policy.predict(ROWS[0], None, False)


def test_states_of_policies_without_one_are_refused():
    with pytest.raises(ValueError, match="the policy is not recurrent: give None"):
        ActorCritic(SEEN, Discrete(3)).predict(ROWS[0], np.zeros((1, 3)))
    policies = {"all": KINDS["gru"]()}
    together = GroupedPolicy(policies, {"all": ("a", "b")})
    _, states = together.predict({"a": ROWS[0], "b": ROWS[1]})
    assert states["b"].shape == (1, 14)
    with pytest.raises(TypeError, match="takes a dict of states by agent, got array"):
        together.predict({"a": ROWS[0]}, states["a"])


def test_an_exported_policy_refuses_states_of_another_shape(tmp_path):
    hr.export(KINDS["gru"](), "numpy", tmp_path / "brain.py")
    policy = load((tmp_path / "brain.py").read_bytes())
    _, state = policy.predict(ROWS)
    assert state.shape == (5, 7)
    for wrong in (state[:1], state[0], np.zeros((5, 14), np.float32)):
        with pytest.raises(ValueError, match=rf"expected a state of shape \(5, 7\).*got \({wrong.shape[0]},"):
            policy.predict(ROWS, wrong)
