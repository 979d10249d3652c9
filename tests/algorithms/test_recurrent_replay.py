"""Memory in algorithms that learn from a replay: what is replayed equals what was collected, gradient steps equal an
independent calculation in float64, and what must be remembered is."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.off_policy_oracle import (
    CENTER,
    HALF,
    actor_layers,
    adam,
    critic_layers,
    follow,
    forward,
    mean,
    normals,
    q,
    same_layers,
    step,
    take,
)
from helpers.recall import Recall
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import headrace as hr
from headrace.algorithms.dqn import DQN, DQNConfig
from headrace.algorithms.sac import SAC, SACConfig
from headrace.core import rng
from headrace.core.fused import plain_only
from headrace.data.replay import DRAWS
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns
from headrace.policies.actor_q import ActorQ
from headrace.policies.q_network import QNetwork

SEEN, CHOICES, BOX = Box(-1, 1, (3,)), Discrete(4, start=3), Box(-2.0, 4.0, (3,))
MEMORY = {"rnn_size": 5, "sequence_length": 4, "burn_in": 3, "hidden": (7,), "normalize_observation": False}
ENVS = 3


pytestmark = pytest.mark.usefixtures("one_thread")


def made_up(algorithm, action_space, actions):
    """Two batches of sequences of what never happened, with endings."""
    rollout = Rollout(40, ENVS, env_columns(SEEN) | {"action": action_column(action_space)} | algorithm.columns())
    source = torch.Generator().manual_seed(3)
    for name in ("observation", "reward", "rnn_state"):
        column = getattr(rollout, name)
        column.copy_(torch.rand(column.shape, generator=source) * 2 - 1)
    rollout.action.copy_(actions(rollout.action.shape, source))
    ends = torch.rand(40, ENVS, generator=source)
    rollout.valid[0] = True
    for t in range(40):
        rollout.terminated[t] = rollout.valid[t] & (ends[t] < 0.1)
        rollout.truncated[t] = rollout.valid[t] & (ends[t] > 0.9)
        rollout.valid[t + 1] = ~(rollout.terminated[t] | rollout.truncated[t])
    replay = algorithm.make_replay(rollout, 60 * ENVS)
    replay.append(rollout)
    batches = replay.gather(replay.draw(torch.rand(2, 16, DRAWS, generator=source)), 0.9)
    assert (batches.weight == 0).any() and (batches.discount == 0).any()
    return batches


def cell_of(core):
    """torch's own cell with a core's weights, in float64."""
    kind = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[core.kind]
    cell = kind(core.weight_input.shape[1], core.size).double()
    with torch.no_grad():
        cell.weight_ih.copy_(core.weight_input[0].t())
        cell.weight_hh.copy_(core.weight_hidden[0].t())
        cell.bias_ih.copy_(core.bias_input[0, 0])
        cell.bias_hh.copy_(core.bias_hidden[0, 0])
    return cell


def features(cell, history, burn_in):
    """Observations and recurrent states, one sequence and one step after another: [rows, 3 + size]."""
    rows = []
    for seen, rnn_state, valid, at in zip(
        history.observation, history.rnn_state, history.valid, history.at, strict=True
    ):
        lstm = isinstance(cell, torch.nn.LSTMCell)
        state = rnn_state.double().chunk(2) if lstm else (rnn_state.double(),)
        outputs = []
        for t, (now, live) in enumerate(zip(seen.double(), valid, strict=True)):
            state = tuple(x.detach() for x in state) if t == burn_in else state
            after = cell(now, state if lstm else state[0])
            state = after if lstm else (after,)
            outputs.append(torch.cat((now, state[0])))
            state = state if live else tuple(torch.zeros_like(x) for x in state)
        rows += [outputs[t] for t in at.tolist()]
    return torch.stack(rows)


def same_cells(mine, theirs, tolerance):
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def follow_cell(slow, fast, tau):
    follow([list(slow.parameters())], [list(fast.parameters())], tau)


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
def test_dqns_gradient_steps_equal_an_independent_calculation(recurrent):
    config = DQNConfig(
        recurrent=recurrent, batch_size=16, n_steps=2, learning_rate=1e-2, max_grad_norm=1e9, tau=0.3, **MEMORY
    )
    dqn = DQN.build(config, SEEN, CHOICES, 1, "cpu")
    batches = made_up(dqn, CHOICES, lambda shape, source: torch.randint(3, 7, shape, generator=source))
    dense = [[(x.weight.detach().double().requires_grad_(), x.bias.detach().double().requires_grad_())] for x in
             (dqn.policy.trunk.layers[0], dqn.policy.out)]  # fmt: skip
    layers = [pair for group in dense for pair in group]
    slow_layers = [tuple(x.detach().clone() for x in pair) for pair in layers]
    cell, slow_cell = cell_of(dqn.policy.encoder.rnn), cell_of(dqn.policy.encoder.rnn)
    optimizer = adam(layers, [tuple(cell.parameters())], rate=1e-2)
    losses = []
    for g in range(2):
        batch = batches[g]
        with torch.no_grad():
            later = forward(layers, features(cell, batch.next_observation, 3))
            slow = forward(slow_layers, features(slow_cell, batch.next_observation, 3))
            worth = torch.stack([slow[b, later[b].argmax()] for b in range(16)])
            aim = batch.reward.double() + batch.discount.double() * worth
        value = forward(layers, features(cell, batch.observation, 3))
        error = torch.stack([value[b, int(batch.action[b]) - 3] for b in range(16)]) - aim
        huber = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5)
        loss = mean(huber, batch.weight)
        step(optimizer, loss)
        losses.append(loss.item())
        follow(slow_layers, layers, 0.3)
        follow_cell(slow_cell, cell, 0.3)
    share = torch.full((2,), 0.3)
    metrics, _ = take(dqn, batches, torch.zeros(*batches.reward.shape, 0), tau=share)
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-4)
    same_cells(cell_of(dqn.policy.encoder.rnn), cell, 2e-5)
    same_cells(cell_of(dqn.networks.target.encoder.rnn), slow_cell, 2e-5)
    mine = [(x.weight.double(), x.bias.double()) for x in (dqn.policy.trunk.layers[0], dqn.policy.out)]
    same_layers(mine, layers, 2e-5)
    with pytest.raises(AssertionError):  # the tolerance can tell
        same_cells(cell, slow_cell, 2e-5)


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
def test_sacs_gradient_steps_equal_an_independent_calculation(recurrent):
    config = SACConfig(recurrent=recurrent, batch_size=16, learning_rate=1e-2, temperature=0.3, tau=0.2, **MEMORY)
    sac = SAC.build(config, SEEN, BOX, 1, "cpu")
    batches = made_up(sac, BOX, lambda shape, source: torch.rand(shape, generator=source) * 6 - 2)
    random = torch.rand(2, 16, 8, generator=torch.Generator().manual_seed(1))
    actor, critics, targets = (
        actor_layers(sac.policy),
        critic_layers(sac.policy.critics),
        critic_layers(sac.policy.critics),
    )
    cell, slow_cell = cell_of(sac.policy.encoder.rnn), cell_of(sac.policy.encoder.rnn)
    log_alpha = torch.tensor(float(sac.log_temperature.detach()), dtype=torch.float64, requires_grad=True)
    of_actor, of_alpha = adam(actor, rate=1e-2), torch.optim.Adam([log_alpha], 1e-2)
    of_critics = adam(*critics, [tuple(cell.parameters())], rate=1e-2)

    def drawn(seen, draws):
        mean_, log_std = forward(actor, seen).chunk(2, dim=1)
        normal = Normal(mean_, log_std.clamp(-20, 2).exp())
        squashed = TransformedDistribution(normal, [TanhTransform(cache_size=1)])
        action = squashed.transforms[0](mean_ + normal.stddev * normals(draws))
        return action, squashed.log_prob(action).sum(1)

    for g in range(2):
        batch, alpha = batches[g], log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = drawn(features(cell, batch.next_observation, 3), random[g, :, :4])
            slow_seen = features(slow_cell, batch.next_observation, 3)
            lowest = torch.minimum(*(q(layers, slow_seen, next_action) for layers in targets))
            aim = batch.reward.double() + batch.discount.double() * (lowest - alpha * next_log_prob)
        seen = features(cell, batch.observation, 3)
        taken = (batch.action.double() - CENTER) / HALF
        step(of_critics, sum(0.5 * mean((q(layers, seen, taken) - aim) ** 2, batch.weight) for layers in critics))
        seen = seen.detach()
        action, log_prob = drawn(seen, random[g, :, 4:])
        lowest = torch.minimum(*(q(layers, seen, action) for layers in critics))
        step(of_actor, mean(alpha * log_prob - lowest, batch.weight))
        step(of_alpha, -log_alpha * mean(log_prob.detach() - 3, batch.weight))
        for slow, fast in zip(targets, critics, strict=True):
            follow(slow, fast, 0.2)
        follow_cell(slow_cell, cell, 0.2)
    take(sac, batches, random)
    same_layers(actor_layers(sac.policy), actor, 2e-5)
    for mine, theirs in zip(critic_layers(sac.policy.critics), critics, strict=True):
        same_layers(mine, theirs, 2e-5)
    same_cells(cell_of(sac.policy.encoder.rnn), cell, 2e-5)
    same_cells(cell_of(sac.networks.target.encoder.rnn), slow_cell, 2e-5)
    with pytest.raises(AssertionError):
        same_cells(cell, slow_cell, 2e-5)


SETTINGS = {
    "dqn": ("CartPole-v1", {"exploration_initial": 0.0, "exploration_final": 0.0, "n_steps": 3}),
    "sac": ("Pendulum-v1", {}),
    "td3": ("Pendulum-v1", {"noise_autocorrelation": 0.5, "exploration": 0.0}),
    "ddpg": ("Pendulum-v1", {"exploration": 0.0}),
}


WITH_CRITICS = {"tqc": {"critic_hidden": (8,)}, "crossq": {"critic_hidden": (8,), "renorm_warm_up": 3}}


@pytest.mark.parametrize("burn_in", [0, 5])
@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_sequence_of_the_replay_gives_the_actions_that_were_collected(name, recurrent, burn_in):
    env, own = SETTINGS[name]
    with plain_only():  # its warm-up learns, which nothing else does here
        trainer = hr.Trainer(
            name, hr.make(env, 4, backend="torch"), recurrent=recurrent, rnn_size=12, sequence_length=8,
            burn_in=burn_in, num_steps=6, hidden=(16,), batch_size=32, learning_starts=10**6, **own,
        )  # fmt: skip
    policy, replay, random = trainer.policy, trainer.algorithm.replay, []
    if name != "dqn":
        policy.random.fill_(0)
        with torch.no_grad():
            policy.actor_out.weight.mul_(100)
    for k in range(20):
        random.append(rng.uniform(0, rng.Purpose.ACTION, 6 * k, 6, 4, policy.num_draws, "cpu"))
        replay.append(trainer.collector.collect())
    assert name != "dqn" or not replay.ring.valid[:120].all()
    rows = replay.draw(torch.rand(32, DRAWS, generator=torch.Generator().manual_seed(0)))
    batch = replay.gather(rows, 0.9)
    with torch.no_grad():
        encoded = policy.encoder(batch.observation)
        if name == "dqn":
            assert torch.equal((policy.values(encoded).argmax(0) + policy.start).int(), batch.action)
            return
        if name == "sac":
            action, _ = policy.sample(encoded, torch.cat(random).flatten(0, 1)[rows])
        else:
            action = policy.best_action(encoded)
    torch.testing.assert_close(action, policy.normalize_action(batch.action), rtol=1e-4, atol=1e-5)


def test_noise_that_lasts_is_remembered_beside_what_was_seen():
    policy = ActorQ(SEEN, BOX, (8,), deterministic=True, noise_autocorrelation=0.5, recurrent="gru", rnn_size=6)
    policy.exploration.fill_(1.0)
    random = torch.rand(70, policy.num_draws, generator=torch.Generator().manual_seed(0))
    seen = torch.rand(70, 3, generator=torch.Generator().manual_seed(1))
    rnn_state = policy.act(seen, policy.initial_state(70), random).rnn_state
    other = policy.act(seen, policy.initial_state(70), 1 - random).rnn_state
    assert rnn_state.shape == (70, 9) and torch.equal(rnn_state[:, :6], other[:, :6])
    assert (rnn_state[:, 6:] != other[:, 6:]).all()
    torch.testing.assert_close(rnn_state[:, 6:], policy._normal(random).t() * 0.75**0.5)


@pytest.mark.parametrize(
    "policy",
    [
        QNetwork(SEEN, CHOICES, (8,), dueling=True, recurrent="lstm", rnn_size=6, sequence_length=4, burn_in=2),
        ActorQ(SEEN, BOX, (8,), recurrent="gru", rnn_size=6, sequence_length=4),
    ],
)
def test_a_policy_with_memory_is_asked_with_it_and_its_config_makes_it_again(policy):
    twin = type(policy).from_config(json.loads(json.dumps(policy.config())))
    twin.load_state_dict(policy.state_dict())
    assert twin.config() == policy.config() and twin.sequence_length == 4
    seen = np.array([0.3, -0.2, 0.9], np.float32)
    action, rnn_state = policy.predict(seen)
    same, again = twin.predict(seen)
    np.testing.assert_array_equal(action, same)
    assert np.array_equal(rnn_state, again) and rnn_state.any()
    assert not np.array_equal(policy.predict(seen, rnn_state)[1], rnn_state)


@pytest.mark.parametrize("name", [*SETTINGS, *WITH_CRITICS])
def test_a_resumed_run_with_memory_goes_on_bit_for_bit(name):
    options = {
        "recurrent": "gru", "rnn_size": 6, "sequence_length": 4, "burn_in": 2, "num_steps": 3, "hidden": (8,),
        "batch_size": 8, "learning_starts": 20, "gradient_steps": 1, "buffer_size": 200, "seed": 1,
    }  # fmt: skip
    env, own = SETTINGS[name][0] if name in SETTINGS else "Pendulum-v1", WITH_CRITICS.get(name, {})
    one, other = (hr.Trainer(name, hr.make(env, 4, backend="torch"), **options | own) for _ in range(2))
    for _ in range(25):  # the ring, of 50 steps, comes round
        one.iterate()
    other.load_state_dict(one.state_dict())
    assert one.iterate() == other.iterate() and one.collector.rnn_state.any()
    assert torch.equal(one.collector.rnn_state, other.collector.rnn_state)


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="sequence_length is 10: let it divide batch_size, the 64 rows"):
        DQNConfig(recurrent="gru", sequence_length=10)
    with pytest.raises(ValueError, match="prioritized draws single rows"):
        DQNConfig(recurrent="gru", prioritized=True)
    with pytest.raises(ValueError, match="burn_in must be 0 or more, got -1"):
        SACConfig(burn_in=-1)


def test_a_cue_is_remembered():
    settings = {
        "recurrent": "gru", "rnn_size": 16, "sequence_length": 6, "burn_in": 0, "batch_size": 96, "num_steps": 6,
        "gradient_steps": 6, "hidden": (16,), "learning_rate": 5e-3, "target_interval": 20, "num_envs": 32,
        "learning_starts": 500, "total_steps": 12_000, "gamma": 0.9, "normalize_observation": False,
        "exploration_fraction": 0.5,
    }  # fmt: skip
    trainer = hr.Trainer("dqn", Recall, **settings)
    while not trainer.reason_to_stop():
        trainer.iterate()
    assert hr.evaluate(trainer.policy, Recall, 64).mean > 0.8  # by chance 0, as often wrong as right


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env", "least"),
    [("ppo", "CartPoleHidden", 400), ("dqn", "CartPoleHidden", 150), ("sac", "PendulumHidden", -300)],
)
def test_velocities_that_are_hidden_are_inferred(tmp_path, name, env, least):
    run = hr.train(name, env, log_folder=str(tmp_path), progress="none")
    assert run.evaluate(100).mean >= least
