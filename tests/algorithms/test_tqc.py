"""TQC: gradient steps against an independent calculation in float64, truncation, resuming, and that it learns."""

from __future__ import annotations

import pytest
import torch
from helpers.off_policy_oracle import (
    ACTIONS,
    CENTER,
    HALF,
    OBSERVATIONS,
    actor_layers,
    adam,
    collected,
    copied,
    critic_layers,
    follow,
    forward,
    made_up,
    mean,
    same_layers,
    squashed,
    step,
    take,
    with_garbage,
)

import headrace as hr
from headrace.algorithms.tqc import TQC, TQCConfig, quantile_huber_loss, truncated

METRICS = ("actor_loss", "critic_loss", "ent_coef", "ent_coef_loss")
SMALL = TQCConfig(
    hidden=(16, 16), critic_hidden=(12,), batch_size=16, learning_starts=32, buffer_size=1000, temperature=0.3,
    critics=3, quantiles=4, dropped_quantiles=1,
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


def build(config=SMALL, seed=0):
    tqc = TQC.build(config, OBSERVATIONS, ACTIONS, seed, "cpu")
    with torch.no_grad():  # an actor whose outputs vary, and targets that are not the critics
        tqc.policy.actor_out.weight.mul_(50)
        tqc.networks.target_critics.add_(0.02)
    return tqc


def steps(tqc, batches, random):
    return take(tqc, batches, random)[0]


def quantile_loss(quantiles, targets):
    """The loss of one critic on one row, pair by pair: the mean of |tau - (u < 0)| times the Huber loss of u."""
    total = 0
    for m, quantile in enumerate(quantiles):
        tau = (2 * m + 1) / (2 * len(quantiles))
        for target in targets:
            u = target - quantile
            huber = u * u / 2 if abs(u) <= 1 else abs(u) - 0.5
            total = total + abs(tau - (u.item() < 0)) * huber
    return total / (len(quantiles) * len(targets))


def reference(tqc, batches, random):
    """All of a gradient step, one row, one network and one pair of quantiles at a time."""
    config, rows, rate = tqc.config, [], tqc.config.learning_rate
    actor, critics, targets = (
        actor_layers(tqc.policy),
        critic_layers(tqc.policy.critics),
        critic_layers(tqc.networks.target.critics),
    )
    log_alpha = torch.tensor(float(tqc.log_temperature.detach()), dtype=torch.float64, requires_grad=True)
    of_actor, of_critics = adam(actor, rate=rate), adam(*critics, rate=rate)
    of_alpha = torch.optim.Adam([log_alpha], rate)
    kept = config.critics * (config.quantiles - config.dropped_quantiles)
    for g in range(len(random)):
        weight, reward, discount = (x[g].double() for x in (batches.weight, batches.reward, batches.discount))
        seen, next_seen = batches.observation[g].double(), batches.next_observation[g].double()
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = squashed(forward(actor, next_seen), random[g, :, :4])
            pools = torch.cat([forward(layers, torch.cat([next_seen, next_action], 1)) for layers in targets], 1)
        taken = torch.cat([seen, (batches.action[g].double() - CENTER) / HALF], 1)
        losses = [0] * len(pools)
        for row, pool in enumerate(pools.tolist()):
            smallest = torch.tensor(sorted(pool)[:kept], dtype=torch.float64)
            aims = reward[row] + discount[row] * (smallest - alpha * next_log_prob[row])
            for layers in critics:
                losses[row] = losses[row] + quantile_loss(forward(layers, taken[row : row + 1])[0], aims)
        critic_loss = mean(losses, weight)
        step(of_critics, critic_loss)
        action, log_prob = squashed(forward(actor, seen), random[g, :, 4:])
        values = sum(forward(layers, torch.cat([seen, action], 1)).mean(1) for layers in critics) / len(critics)
        actor_loss = mean(alpha * log_prob - values, weight)
        step(of_actor, actor_loss)
        alpha_loss = -log_alpha * mean(log_prob.detach() - 3, weight)
        step(of_alpha, alpha_loss)
        for slow, fast in zip(targets, critics, strict=True):
            follow(slow, fast, config.tau)
        rows.append([x.item() for x in (actor_loss, critic_loss, alpha, alpha_loss)])
    return actor, critics, targets, log_alpha, torch.tensor(rows).mean(0)


def test_gradient_steps_equal_an_independent_calculation():
    tqc, batches = build(), made_up(2)
    batches = batches._replace(reward=batches.reward * 3)  # errors on both sides of the Huber loss's bend
    random = torch.rand(2, 16, 8, generator=torch.Generator().manual_seed(1))
    actor, critics, targets, log_alpha, metrics = reference(tqc, batches, random)
    before = [copied(layers) for layers in critic_layers(tqc.policy.critics)]
    got = steps(tqc, batches, random)
    same_layers(actor_layers(tqc.policy), actor)
    for mine, theirs in zip(critic_layers(tqc.policy.critics), critics, strict=True):
        same_layers(mine, theirs)
    for mine, theirs in zip(critic_layers(tqc.networks.target.critics), targets, strict=True):
        same_layers(mine, theirs)
    assert float(tqc.log_temperature.detach()) == pytest.approx(log_alpha.item(), abs=1e-6)
    torch.testing.assert_close(torch.stack([got[name] for name in METRICS]), metrics, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError):  # the tolerance can tell
        same_layers(before[0], critics[0])


def test_the_largest_quantiles_of_all_critics_together_are_left_out():
    quantiles = torch.tensor([[[1.0, 9.0, 2.0]], [[8.0, 7.0, 3.0]]])  # two critics, one row
    assert truncated(quantiles, 1).tolist() == [[1, 2, 3, 7]]
    assert truncated(quantiles, 0).tolist() == [[1, 2, 3, 7, 8, 9]]
    targets = torch.tensor([[0.0, 1.0, 4.0]], dtype=torch.float64)
    expected = sum(quantile_loss(row[0].double(), targets[0]) for row in quantiles)
    assert float(quantile_huber_loss(quantiles, targets.float())) == pytest.approx(float(expected))


def test_masked_rows_weigh_nothing():
    random = torch.rand(3, 16, 8, generator=torch.Generator().manual_seed(1))
    first, second = build(), build()
    steps(first, made_up(), random)
    steps(second, with_garbage(made_up()), random)
    same_layers(actor_layers(first.policy), actor_layers(second.policy))
    same_layers(critic_layers(first.networks.target.critics)[1], critic_layers(second.networks.target.critics)[1])


def test_warming_up_leaves_no_trace_and_a_saved_state_goes_on_bit_for_bit():
    tqc, other = build(), build(seed=1)
    other.seed = tqc.seed  # other weights, the same draws
    rollout = collected(tqc)
    tqc.warm_up(rollout)
    same_layers(actor_layers(tqc.policy), actor_layers(build().policy), 0)
    for algorithm in (tqc, other):
        algorithm.prepare(rollout)
    assert set(tqc.update(rollout, 0.0)) > {"n_updates", "learning_rate", "critic_loss"}
    other.load_state_dict(tqc.state_dict())
    ends = [algorithm.update(collected(tqc, seed=2), 0.0) for algorithm in (tqc, other)]
    assert ends[0] == ends[1]
    for name in ("critic_optimizer", "actor_optimizer"):
        assert torch.equal(getattr(tqc.networks, name).flat, getattr(other.networks, name).flat)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"dropped_quantiles": 25}, "dropped_quantiles must be 0 or more and fewer than the quantiles, got 25"),
        ({"quantiles": 1}, "quantiles must be 2 or more, got 1"),
        ({"critics": 0}, "critics must be 1 or more, got 0"),
    ],
)
def test_settings_out_of_range_are_named(wrong, name):
    with pytest.raises(ValueError, match=name):
        TQCConfig(**wrong)


def test_critics_of_another_algorithm_are_refused():
    with pytest.raises(ValueError, match=r"critics of this policy have 4 outputs each, and .* with one output each"):
        hr.SAC(build().policy)
    with pytest.raises(ValueError, match=r"critics of this policy have one output each, and .* with 25 outputs each"):
        TQC(hr.SAC.build(hr.SACConfig(hidden=(8,)), OBSERVATIONS, ACTIONS, 0, "cpu").policy)


def test_a_saved_policy_acts_alike_without_its_environment(tmp_path):
    run = hr.train(
        "tqc", "Pendulum-v1", num_envs=2, total_steps=200, learning_starts=100, hidden=(16,), critic_hidden=(8, 8),
        utd_ratio=0.2, log_folder=str(tmp_path), progress="none",
    )  # fmt: skip
    observation = hr.Box(-1, 1, (3,), seed=0).sample()
    policy = hr.load(run.path)
    assert (policy.predict(observation)[0] == run.policy.predict(observation)[0]).all()
    assert torch.isfinite(policy.value(torch.zeros(5, 3))).all() and policy.config()["critic_hidden"] == [8, 8]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_swings_the_pendulum_up(tmp_path, seed):
    run = hr.train("tqc", "Pendulum-v1", seed=seed, log_folder=str(tmp_path), progress="none")
    assert hr.evaluate(run.policy, "Pendulum-v1").mean >= -200
