"""act() and value() of a batch give the same bits as act() and value() of its parts."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import inference_block
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic

VECTOR, IMAGE, BOUNDED = Box(-1, 1, (5,)), Box(0, 255, (10, 10, 2), np.uint8), Box(-2, 2, (3,))
RECURRENT = {"recurrent": "lstm", "rnn_size": 24}
POLICIES = {
    "actor-critic GRU": lambda: RecurrentActorCritic(VECTOR, Discrete(3), "gru", rnn_size=24),
    "actor-critic LSTM": lambda: RecurrentActorCritic(VECTOR, BOUNDED, **RECURRENT),
    "actor-critic LSTM, compiled": lambda: RecurrentActorCritic(VECTOR, BOUNDED, "lstm", rnn_size=32),
    "actor-critic LSTM, shared": lambda: RecurrentActorCritic(VECTOR, Discrete(3), **RECURRENT, shared=True),
    "actor-critic CNN": lambda: ActorCritic(IMAGE, Discrete(3)),
    "actor-critic CNN, IMPALA": lambda: ActorCritic(IMAGE, BOUNDED, images="impala"),
    "actor-critic CNN and GRU": lambda: RecurrentActorCritic(IMAGE, Discrete(3), "gru"),
    "actor-critic MLP": lambda: ActorCritic(VECTOR, Discrete(3)),
    "Q-network GRU": lambda: QNetwork(VECTOR, Discrete(3), recurrent="gru"),
    "Q-network LSTM": lambda: QNetwork(VECTOR, Discrete(3), **RECURRENT, dueling=True),
    "Q-network CNN": lambda: QNetwork(IMAGE, Discrete(3)),
    "Q-network MLP": lambda: QNetwork(VECTOR, Discrete(3)),
    "actor-Q GRU": lambda: ActorQ(VECTOR, BOUNDED, recurrent="gru"),
    "actor-Q LSTM": lambda: ActorQ(VECTOR, BOUNDED, **RECURRENT, deterministic=True, noise_autocorrelation=0.9),
    "actor-Q CNN": lambda: ActorQ(IMAGE, BOUNDED),
    "actor-Q MLP": lambda: ActorQ(VECTOR, BOUNDED),
}
PARTS = (slice(0, 16), slice(16, 40))


@pytest.mark.parametrize("name", POLICIES)
@torch.no_grad()
def test_a_batch_and_its_parts_give_the_same_bits(name):
    policy, generator = POLICIES[name](), torch.Generator().manual_seed(7)
    for parameter in policy.parameters():  # initial actors output nearly 0, which would hide differences
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    if isinstance(policy.observation_space, Box) and policy.observation_space.dtype == np.uint8:
        observation = torch.randint(0, 256, (40, *IMAGE.shape), generator=generator, dtype=torch.uint8)
    else:
        observation = torch.randn(40, *VECTOR.shape, generator=generator)
    rnn_state = policy.initial_state(40)
    if rnn_state is not None:
        rnn_state = torch.randn(rnn_state.shape, generator=generator)
    for random in (None, torch.rand(40, policy.num_draws, generator=generator)):
        whole = policy.act(observation, rnn_state, random)
        for part in PARTS:
            state, draws = (None if x is None else x[part] for x in (rnn_state, random))
            cut = policy.act(observation[part], state, draws)
            for field, expected, given in zip(whole._fields, whole, cut, strict=True):
                assert (expected is None) == (given is None), field
                assert expected is None or torch.equal(expected[part], given), field
    value = policy.value(observation, rnn_state)
    assert value.shape == (40,)
    for part in PARTS:
        state = None if rnn_state is None else rnn_state[part]
        assert torch.equal(value[part], policy.value(observation[part], state))


def test_blocks_are_small_where_a_row_is_expensive():
    assert inference_block(VECTOR) == 64
    assert inference_block(VECTOR, "gru") == 16
    assert inference_block(IMAGE) == 16
