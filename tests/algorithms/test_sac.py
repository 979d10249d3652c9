"""SAC: gradient steps against an independent calculation in float64, the temperature, warm-up, and that it learns."""

from __future__ import annotations

import dataclasses

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
    q,
    same_layers,
    squashed,
    step,
    take,
    with_garbage,
)

import headrace as hr
from headrace.algorithms.sac import SAC, SACConfig
from headrace.data.spaces import Box, Discrete

METRICS = ("actor_loss", "critic_loss", "ent_coef", "ent_coef_loss")
SMALL = SACConfig(hidden=(16, 16), batch_size=16, learning_starts=32, buffer_size=1000, temperature=0.3)


pytestmark = pytest.mark.usefixtures("one_thread")


def build(config=SMALL, seed=0):
    sac = SAC.build(config, OBSERVATIONS, ACTIONS, seed, "cpu")
    with torch.no_grad():  # an actor whose outputs vary, and targets that are not the critics
        sac.policy.actor_out.weight.mul_(50)
        sac.networks.target_critics.add_(0.02)
    return sac


def steps(sac, batches, random):
    return take(sac, batches, random)[0]


def reference(sac, batches, random):
    """All of a gradient step, one network, one tensor and one equation at a time."""
    config, rows = sac.config, []
    actor, critics, targets = (
        actor_layers(sac.policy),
        critic_layers(sac.policy.critics),
        critic_layers(sac.networks.target.critics),
    )
    log_alpha = torch.tensor(float(sac.log_temperature.detach()), dtype=torch.float64, requires_grad=True)
    rate = config.learning_rate
    of_actor, of_critics, of_alpha = (
        adam(actor, rate=rate),
        adam(*critics, rate=rate),
        torch.optim.Adam([log_alpha], rate),
    )
    for g in range(len(random)):
        weight = batches.weight[g]
        seen, next_seen = batches.observation[g].double(), batches.next_observation[g].double()
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = squashed(forward(actor, next_seen), random[g, :, :4])
            lowest = torch.minimum(*(q(layers, next_seen, next_action) for layers in targets))
            aim = batches.reward[g].double() + batches.discount[g].double() * (lowest - alpha * next_log_prob)
        taken = (batches.action[g].double() - CENTER) / HALF
        critic_loss = sum(0.5 * mean((q(layers, seen, taken) - aim) ** 2, weight) for layers in critics)
        step(of_critics, critic_loss)
        action, log_prob = squashed(forward(actor, seen), random[g, :, 4:])
        actor_loss = mean(alpha * log_prob - torch.minimum(*(q(layers, seen, action) for layers in critics)), weight)
        step(of_actor, actor_loss)
        alpha_loss = -log_alpha * mean(log_prob.detach() - 3, weight)
        step(of_alpha, alpha_loss)
        for slow, fast in zip(targets, critics, strict=True):
            follow(slow, fast, config.tau)
        rows.append([x.item() for x in (actor_loss, critic_loss, alpha, alpha_loss)])
    return actor, critics, targets, log_alpha, torch.tensor(rows).mean(0)


def test_gradient_steps_equal_an_independent_calculation():
    sac, batches = build(), made_up()
    random = torch.rand(3, 16, 8, generator=torch.Generator().manual_seed(1))
    actor, critics, targets, log_alpha, metrics = reference(sac, batches, random)
    before = [copied(layers) for layers in (actor_layers(sac.policy), *critic_layers(sac.policy.critics))]
    got = steps(sac, batches, random)
    same_layers(actor_layers(sac.policy), actor)
    for mine, theirs in zip(critic_layers(sac.policy.critics), critics, strict=True):
        same_layers(mine, theirs)
    for mine, theirs in zip(critic_layers(sac.networks.target.critics), targets, strict=True):
        same_layers(mine, theirs)
    assert float(sac.log_temperature.detach()) == pytest.approx(log_alpha.item(), abs=1e-6)
    torch.testing.assert_close(torch.stack([got[name] for name in METRICS]), metrics, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError):  # the tolerance can tell
        same_layers(before[0], actor)


def test_dead_rows_weigh_nothing():
    random = torch.rand(3, 16, 8, generator=torch.Generator().manual_seed(1))
    first, second = build(), build()
    steps(first, made_up(), random)
    steps(second, with_garbage(made_up()), random)
    same_layers(actor_layers(first.policy), actor_layers(second.policy))
    same_layers(critic_layers(first.networks.target.critics)[1], critic_layers(second.networks.target.critics)[1])


def test_a_fixed_temperature_stays_and_a_learned_one_goes_towards_the_target_entropy():
    random = torch.rand(20, 16, 8, generator=torch.Generator().manual_seed(1))
    for entropy, learned, direction in ((-50.0, True, -1), (50.0, True, 1), (50.0, False, 0)):
        sac = build(dataclasses.replace(SMALL, target_entropy=entropy, learn_temperature=learned))
        before = float(sac.log_temperature.detach())
        metrics = steps(sac, made_up(20), random)
        change = float(sac.log_temperature.detach()) - before
        assert (change > 0) - (change < 0) == direction
        assert (float(metrics["ent_coef"]) == pytest.approx(0.3)) == (not learned)


def test_random_actions_until_learning_starts_and_then_the_policys_own():
    sac = build()
    rollout = collected(sac, steps=10)
    assert "1,000 steps" in sac.prepare(rollout)
    before = actor_layers(sac.policy)
    assert sac.policy.random == 1 and set(sac.update(rollout, 0.0)) == {"n_updates", "learning_rate"}
    same_layers(actor_layers(sac.policy), before, 0)
    random = torch.rand(64, 4, generator=torch.Generator().manual_seed(0))
    observation = torch.zeros(64, 3)
    spread = sac.policy.act(observation, None, random).action
    torch.testing.assert_close(spread, random[:, :3] * 6 - 2)
    metrics = sac.update(rollout, 0.0)
    assert sac.policy.random == 0 and float(metrics["n_updates"]) == 20 and metrics["ent_coef"] < 0.3
    assert not torch.equal(sac.policy.act(observation, None, random).action, spread)


def test_rehearsing_leaves_no_trace_and_a_saved_state_goes_on_bit_for_bit():
    sac, other = build(), build(seed=1)
    other.seed = sac.seed  # other weights, the same draws
    rollout = collected(sac)
    sac.warm_up(rollout)
    assert sac.replay is None and sac.updates == 0
    same_layers(actor_layers(sac.policy), actor_layers(build().policy), 0)
    for algorithm in (sac, other):
        algorithm.prepare(rollout)
    sac.update(rollout, 0.0)
    other.load_state_dict(sac.state_dict())
    ends = [algorithm.update(collected(sac, seed=2), 0.0) for algorithm in (sac, other)]
    assert ends[0] == ends[1]
    assert torch.equal(sac.networks.critic_optimizer.flat, other.networks.critic_optimizer.flat) and torch.equal(
        sac.networks.target_critics, other.networks.target_critics
    )


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"tau": 1.5}, {"temperature": 0.0}, {"utd_ratio": 0.0}, {"learning_starts": -1}]
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SACConfig(**wrong)


@pytest.mark.parametrize("space", [Discrete(3), Box(-torch.inf, 1.0, (2,))])
def test_other_actions_are_refused(space):
    with pytest.raises(TypeError, match=r"of a Box|needs bounds"):
        SAC.build(SMALL, OBSERVATIONS, space, 0, "cpu")


def test_a_saved_policy_acts_alike_without_its_environment(tmp_path):
    run = hr.train(
        "sac", "Pendulum-v1", num_envs=2, total_steps=300, learning_starts=100, hidden=(16,), utd_ratio=0.2,
        log_folder=str(tmp_path), progress="none",
    )  # fmt: skip
    observation = Box(-1, 1, (3,), seed=0).sample()
    assert (hr.load(run.path).predict(observation)[0] == run.policy.predict(observation)[0]).all()
    assert {"actor_loss", "critic_loss", "ent_coef", "ent_coef_loss", "n_updates"} <= set(run.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_swings_the_pendulum_up_within_20_000_steps(tmp_path, seed):
    run = hr.train("sac", "Pendulum-v1", seed=seed, total_steps=20_000, log_folder=str(tmp_path), progress="none")
    assert hr.evaluate(run.policy, "Pendulum-v1").mean >= -200
