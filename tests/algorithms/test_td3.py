"""TD3: gradient steps against an independent calculation in float64, exploration, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
import torch
from helpers.off_policy_oracle import (
    ACTIONS,
    CENTER,
    HALF,
    OBSERVATIONS,
    actor_layers,
    adam,
    climb,
    collected,
    critic_layers,
    follow,
    forward,
    made_up,
    mean,
    normals,
    q,
    same_layers,
    step,
    take,
    with_garbage,
)

import headrace as hr
from headrace.algorithms.td3 import TD3, TD3Config

SMALL = TD3Config(hidden=(16, 16), batch_size=16, learning_starts=32, buffer_size=1000, target_noise=0.6)


pytestmark = pytest.mark.usefixtures("one_thread")


def build(config=SMALL, seed=0):
    td3 = TD3.build(config, OBSERVATIONS, ACTIONS, seed, "cpu")
    with torch.no_grad():  # an actor whose outputs vary, and a target that is not the policy
        td3.policy.actor_out.weight.mul_(50)
        td3.networks.target_actor.copy_(td3.networks.actor_optimizer.flat + 0.02)
        td3.networks.target_critics.add_(0.02)
    return td3


def reference(td3, batches, random, since):
    """All of a gradient step, one network, one tensor and one equation at a time."""
    config, policy, target, actor_losses, critic_losses = td3.config, td3.policy, td3.networks.target, [], []
    actor, critics = actor_layers(policy), critic_layers(policy.critics)
    slow_actor, slow_critics = actor_layers(target), critic_layers(target.critics)
    of_actor, of_critics = adam(actor, rate=config.learning_rate), adam(*critics, rate=config.learning_rate)
    for g in range(len(random)):
        weight = batches.weight[g]
        seen, next_seen = batches.observation[g].double(), batches.next_observation[g].double()
        with torch.no_grad():
            smoothing = torch.clamp(config.target_noise * normals(random[g]), -0.5, 0.5)
            next_action = torch.clamp(torch.tanh(forward(slow_actor, next_seen)) + smoothing, -1, 1)
            lowest = torch.minimum(*(q(layers, next_seen, next_action) for layers in slow_critics))
            aim = batches.reward[g].double() + batches.discount[g].double() * lowest
        taken = (batches.action[g].double() - CENTER) / HALF
        critic_loss = sum(mean((q(layers, seen, taken) - aim) ** 2, weight) for layers in critics)
        step(of_critics, critic_loss)
        critic_losses.append(critic_loss.item())
        if (since + g + 1) % config.policy_delay == 0:
            actor_loss = climb(
                of_actor,
                forward(actor, seen),
                lambda action, seen=seen, weight=weight: mean(q(critics[0], seen, action), weight),
                config.invert_gradients,
            )
            actor_losses.append(actor_loss.item())
            for slow, fast in zip([slow_actor, *slow_critics], [actor, *critics], strict=True):
                follow(slow, fast, config.tau)
    return actor, critics, slow_actor, slow_critics, torch.tensor([fmean(actor_losses), fmean(critic_losses)])


@pytest.mark.parametrize(("since", "invert"), [(0, False), (1, False), (1, True)])
def test_gradient_steps_equal_an_independent_calculation(since, invert):
    config = replace(SMALL, invert_gradients=invert)
    td3, batches = build(config), made_up()
    random = torch.rand(3, 16, 4, generator=torch.Generator().manual_seed(1))
    actor, critics, slow_actor, slow_critics, metrics = reference(td3, batches, random, since)
    got = take(td3, batches, random, since)[0]
    same_layers(actor_layers(td3.policy), actor)
    same_layers(actor_layers(td3.networks.target), slow_actor)
    for c in range(2):
        same_layers(critic_layers(td3.policy.critics)[c], critics[c])
        same_layers(critic_layers(td3.networks.target.critics)[c], slow_critics[c])
    torch.testing.assert_close(torch.stack([got["actor_loss"], got["critic_loss"]]), metrics, rtol=1e-4, atol=1e-5)


def test_the_actor_waits_for_the_critics_across_calls():
    """Seven steps in one call are those of seven calls with one each."""
    random = torch.rand(7, 16, 4, generator=torch.Generator().manual_seed(1))
    batches, whole, parts = made_up(7), build(), build()
    take(whole, batches, random)
    for g in range(7):
        part = type(batches)(*(x[g : g + 1] for x in batches))
        take(parts, part, random[g : g + 1], g % 2)
    assert torch.equal(whole.networks.actor_optimizer.flat, parts.networks.actor_optimizer.flat)
    assert whole.networks.actor_optimizer.steps == 3 and whole.networks.critic_optimizer.steps == 7


def test_dead_rows_weigh_nothing():
    random = torch.rand(4, 16, 4, generator=torch.Generator().manual_seed(1))
    first, second = build(), build()
    take(first, made_up(4), random)
    take(second, with_garbage(made_up(4)), random)
    same_layers(actor_layers(first.policy), actor_layers(second.policy))
    same_layers(critic_layers(first.policy.critics)[1], critic_layers(second.policy.critics)[1])


def test_explores_at_random_and_then_around_the_actors_choice():
    td3 = build()
    td3.prepare(collected(td3, steps=10))
    random, observation = torch.rand(64, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(64, 3)
    torch.testing.assert_close(td3.policy.act(observation, None, random).action, random[:, :3] * 6 - 2)
    for _ in range(2):
        metrics = td3.update(collected(td3, steps=10), 0.0)
    assert float(metrics["n_updates"]) == 20
    best = td3.policy.act(observation, None, None).action
    wanted = (best.double() + 0.1 * HALF * normals(random)).clamp(-2, 4).float()
    torch.testing.assert_close(td3.policy.act(observation, None, random).action, wanted, rtol=1e-5, atol=1e-5)


def test_a_saved_state_goes_on_bit_for_bit():
    td3, other = build(), build(seed=1)
    other.seed = td3.seed  # other weights, the same draws
    for algorithm in (td3, other):
        algorithm.warm_up(collected(td3))
        algorithm.prepare(collected(td3))
    td3.update(collected(td3, steps=25, envs=2), 0.0)
    other.load_state_dict(td3.state_dict())
    assert other.policy.random == td3.policy.random == 0
    ends = [algorithm.update(collected(td3, seed=2), 0.0) for algorithm in (td3, other)]
    assert ends[0] == ends[1] and torch.equal(td3.networks.target_critics, other.networks.target_critics)


@pytest.mark.parametrize("wrong", [{"policy_delay": 0}, {"target_noise": -0.1}, {"gamma": 1.1}, {"buffer_size": 0}])
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TD3Config(**wrong)


def test_trains_and_loads(tmp_path):
    run = hr.train(
        "td3", "Pendulum-v1", num_envs=2, total_steps=300, learning_starts=100, hidden=(16,), utd_ratio=0.2,
        log_folder=str(tmp_path), progress="none",
    )  # fmt: skip
    observation = OBSERVATIONS.sample()
    assert (hr.load(run.path).predict(observation)[0] == run.policy.predict(observation)[0]).all()
    assert {"actor_loss", "critic_loss", "n_updates"} <= set(run.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_swings_the_pendulum_up_within_20_000_steps(tmp_path, seed):
    run = hr.train("td3", "Pendulum-v1", seed=seed, total_steps=20_000, log_folder=str(tmp_path), progress="none")
    assert hr.evaluate(run.policy, "Pendulum-v1").mean >= -200
