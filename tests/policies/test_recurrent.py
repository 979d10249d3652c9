"""Recurrent policies: RNN cells against torch's, evaluate_rollout against collection, resets, and learning."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from helpers.recall import Recall

from headrace import envs
from headrace.algorithms.a2c import A2C, A2CConfig
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.trpo import TRPO, TRPOConfig
from headrace.algorithms.vtrace.appo import APPO, APPOConfig
from headrace.algorithms.vtrace.impala import IMPALA, IMPALAConfig
from headrace.core.fused import plain_only
from headrace.data.rollout import sequences
from headrace.evaluation.evaluator import evaluate
from headrace.parallel.collector import InlineCollector, mask_state
from headrace.policies.recurrent import RecurrentActorCritic
from headrace.policies.rnn import RNNCell
from headrace.training.trainer import Trainer

SOURCE = torch.Generator().manual_seed(0)


def randoms(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def torchs(core, copy):
    """torch's own cell with the weights of one of a core's copies."""
    inputs = core.weight_input.shape[1]
    cell = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[core.kind](inputs, core.size)
    with torch.no_grad():
        cell.weight_ih.copy_(core.weight_input[copy].t())
        cell.weight_hh.copy_(core.weight_hidden[copy].t())
        cell.bias_ih.copy_(core.bias_input[copy, 0])
        cell.bias_hh.copy_(core.bias_hidden[copy, 0])
    return cell


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_core_is_torchs_cell(kind, copies):
    core = RNNCell(kind, copies, 5, 7, SOURCE)
    with torch.no_grad():
        core.bias_hidden.copy_(randoms(*core.bias_hidden.shape))
    features, rnn_state = randoms(copies, 4, 5), randoms(4, copies * core.width)
    outputs, after = core(features, rnn_state)
    for k in range(copies):
        own = rnn_state[:, k * core.width : (k + 1) * core.width]
        state = own if kind == "gru" else own.split(7, -1)
        expected = torchs(core, k)(features[k], state)
        hidden = expected if kind == "gru" else expected[0]
        torch.testing.assert_close(outputs[k], hidden)
        whole = hidden if kind == "gru" else torch.cat(expected, -1)
        torch.testing.assert_close(after[:, k * core.width : (k + 1) * core.width], whole)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_sequence_is_its_steps_and_begins_anew_after_dead_rows(kind):
    core = RNNCell(kind, 2, 3, 4, SOURCE)
    features, rnn_state = randoms(2, 6, 5, 3), randoms(5, 2 * core.width)
    valid = torch.ones(6, 5, dtype=torch.bool)
    valid[2, 0] = valid[4, 3] = False
    outputs = core.sequence(features, rnn_state, valid)
    for t in range(6):
        expected, rnn_state = core(features[:, t], rnn_state)
        torch.testing.assert_close(outputs[:, t], expected)
        for n in range(5):
            if not valid[t, n]:
                rnn_state = rnn_state.clone()
                rnn_state[n] = 0


def test_unknown_memories_are_refused():
    with pytest.raises(ValueError, match="unknown RNN cell 'rnn': use one of gru, lstm"):
        RNNCell("rnn", 1, 3, 4, SOURCE)
    with pytest.raises(ValueError, match="rnn_size must be 1 or more, got 0"):
        RNNCell("gru", 1, 3, 0, SOURCE)


def test_rows_of_a_sequence_follow_each_other():
    column = torch.arange(12).view(6, 2)  # step t of env n is 2 t + n
    assert sequences(column, 3).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    with pytest.raises(ValueError, match="6 steps cannot be cut into sequences of 4"):
        sequences(column, 4)


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length", [8, 4, 1])
def test_replay_gives_the_log_probs_and_values_collected(recurrent, shared, length):
    config = A2CConfig(
        num_steps=8, recurrent=recurrent, rnn_size=12, shared=shared, sequence_length=length, hidden=(16,)
    )
    trainer = collecting(config)
    with torch.no_grad():
        trainer.policy.actor_out.weight.mul_(100)
    ended = 0
    for _ in range(6):
        rollout = trainer.collector.collect()
        ended += int((~rollout.valid[:-1]).sum())
        again = trainer.policy.evaluate_rollout(rollout)
        torch.testing.assert_close(again.log_prob, rollout.log_prob, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(again.value, rollout.value[:-1], rtol=1e-4, atol=1e-4)
    assert ended > 5


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length", [8, 4, 1])
def test_bootstrap_value_continues_the_last_sequence(recurrent, shared, length):
    """The collecting policy has the collected value; a changed policy has that of the steps taken one by one."""
    config = A2CConfig(
        num_steps=8, recurrent=recurrent, rnn_size=12, shared=shared, sequence_length=length, hidden=(16,)
    )
    trainer, before = collecting(config), 0
    policy = trainer.policy
    with torch.no_grad():
        policy.actor_out.weight.mul_(100)
        for _ in range(6):
            rollout = trainer.collector.collect()
            torch.testing.assert_close(policy.bootstrap_value(rollout), rollout.value[-1], rtol=1e-4, atol=1e-5)
            before += int((~rollout.valid[8 - length :]).sum())
        for parameter in policy.parameters():
            parameter.mul_(1.1)
        state = rollout.rnn_state[8 - length]
        for t in range(8 - length, 8):
            state = mask_state(policy.act(rollout.observation[t], state, None).rnn_state, rollout.valid[t])
        expected = policy.value(rollout.observation[8], state)
    assert before > 0 and (expected - rollout.value[-1]).abs().max() > 0.01
    torch.testing.assert_close(policy.bootstrap_value(rollout), expected, rtol=1e-4, atol=1e-5)


def collecting(config):
    """A trainer of A2C that learns nothing: its warm-up compiles no learning."""
    with plain_only():
        return Trainer("a2c", "CartPole-v1", num_envs=6, seed=3, **overrides(config))


def overrides(config):
    """Every field of a config, so that what is registered for an environment does not count."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def test_memory_is_saved_and_resumed():
    options = overrides(A2CConfig(recurrent="gru", hidden=(8,))) | {"num_envs": 4, "seed": 1}
    one, other = Trainer("a2c", "CartPole-v1", **options), Trainer("a2c", "CartPole-v1", **options)
    for _ in range(3):
        one.iterate()
    other.load_state_dict(one.state_dict())
    assert one.iterate() == other.iterate()
    assert torch.equal(one.collector.rnn_state, other.collector.rnn_state) and one.collector.rnn_state.any()


def test_config_makes_the_same_policy_and_the_shell_needs_memory():
    space = Dict({"place": Box(-1, 1, (2,)), "kind": Discrete(3)})
    policy = RecurrentActorCritic(space, Box(-1, 1, (2,)), "lstm", 9, 4, (5,), normalize_return=True, seed=7)
    twin = RecurrentActorCritic.from_config(json.loads(json.dumps(policy.config())))
    twin.load_state_dict(policy.state_dict())
    observation = {"place": np.array([0.3, -0.2], np.float32), "kind": np.int64(1)}
    action, rnn_state = policy.predict(observation)
    same, _ = twin.predict(observation)
    np.testing.assert_array_equal(action, same)
    later, _ = policy.predict(observation, rnn_state)
    assert action.shape == (2,) and not np.array_equal(action, later)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (PPO, PPOConfig(num_steps=12, recurrent="gru", rnn_size=16, hidden=(16,), learning_rate=2e-3)),
        (APPO, APPOConfig(num_steps=12, recurrent="gru", rnn_size=16, hidden=(16,), learning_rate=2e-3)),
        (A2C, A2CConfig(num_steps=12, recurrent="gru", rnn_size=16, hidden=(16,), learning_rate=5e-3)),
        (IMPALA, IMPALAConfig(num_steps=12, recurrent="gru", rnn_size=16, hidden=(16,), learning_rate=5e-3)),
        pytest.param(
            TRPO,
            TRPOConfig(num_steps=12, recurrent="lstm", rnn_size=16, hidden=(16,), max_kl=0.03, critic_epochs=2),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_cue_is_remembered(kind, config):
    env = envs.make(Recall, 64)
    algorithm = kind.build(config, env.observation_space, env.action_space, 1, "cpu")
    collector = InlineCollector(env, algorithm.policy, config.num_steps, algorithm.columns(), seed=1)
    for _ in range(60 if kind in (PPO, APPO) else 150):
        rollout = collector.collect()
        algorithm.update(rollout, 0.0)
    dead = ~rollout.valid[:-1]
    assert rollout.episode_return[dead].mean() > 0.8  # by chance 0, as often wrong as right
    assert evaluate(algorithm.policy, Recall, 64).mean > 0.8


def test_a_state_that_is_not_finite_ends_with_its_episode():
    state, valid = torch.tensor([[torch.nan, 1.0], [torch.inf, 2.0]]), torch.tensor([False, True])
    assert mask_state(state, valid).tolist() == [[0.0, 0.0], [torch.inf, 2.0]]
