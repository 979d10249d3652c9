"""DDPG: gradient steps against an independent calculation in float64, exploration, and that it learns."""

from __future__ import annotations

from dataclasses import replace

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
    q,
    same_layers,
    step,
    take,
    with_garbage,
)

import headrace as hr
from headrace.algorithms.ddpg import DDPG, DDPGConfig

SMALL = DDPGConfig(hidden=(16, 16), batch_size=16, learning_starts=32, buffer_size=1000)
NO_DRAWS = torch.zeros(3, 16, 0)


pytestmark = pytest.mark.usefixtures("one_thread")


def build(config=SMALL, seed=0):
    ddpg = DDPG.build(config, OBSERVATIONS, ACTIONS, seed, "cpu")
    with torch.no_grad():  # an actor whose outputs vary, and a target that is not the policy
        ddpg.policy.actor_out.weight.mul_(50)
        ddpg.networks.target_actor.copy_(ddpg.networks.actor_optimizer.flat + 0.02)
        ddpg.networks.target_critics.add_(0.02)
    return ddpg


def reference(ddpg, batches):
    """All of a gradient step, one network, one tensor and one equation at a time."""
    config, policy, target, rows = ddpg.config, ddpg.policy, ddpg.networks.target, []
    actor, (critic,) = actor_layers(policy), critic_layers(policy.critics)
    slow_actor, (slow_critic,) = actor_layers(target), critic_layers(target.critics)
    of_actor, of_critic = adam(actor, rate=config.learning_rate), adam(critic, rate=config.learning_rate)
    for g in range(len(batches.reward)):
        weight = batches.weight[g]
        seen, next_seen = batches.observation[g].double(), batches.next_observation[g].double()
        with torch.no_grad():
            value = q(slow_critic, next_seen, torch.tanh(forward(slow_actor, next_seen)))
            aim = batches.reward[g].double() + batches.discount[g].double() * value
        taken = (batches.action[g].double() - CENTER) / HALF
        critic_loss = mean((q(critic, seen, taken) - aim) ** 2, weight)
        step(of_critic, critic_loss)
        actor_loss = climb(
            of_actor,
            forward(actor, seen),
            lambda action, seen=seen, weight=weight: mean(q(critic, seen, action), weight),
            config.invert_gradients,
        )
        follow(slow_actor, actor, config.tau)
        follow(slow_critic, critic, config.tau)
        rows.append([x.item() for x in (actor_loss, critic_loss)])
    return actor, critic, slow_actor, slow_critic, torch.tensor(rows).mean(0)


@pytest.mark.parametrize("invert", [False, True])
def test_gradient_steps_equal_an_independent_calculation(invert):
    ddpg, batches = build(replace(SMALL, invert_gradients=invert)), made_up()
    actor, critic, slow_actor, slow_critic, metrics = reference(ddpg, batches)
    got = take(ddpg, batches, NO_DRAWS)[0]
    same_layers(actor_layers(ddpg.policy), actor)
    same_layers(actor_layers(ddpg.networks.target), slow_actor)
    same_layers(critic_layers(ddpg.policy.critics)[0], critic)
    same_layers(critic_layers(ddpg.networks.target.critics)[0], slow_critic)
    torch.testing.assert_close(torch.stack([got["actor_loss"], got["critic_loss"]]), metrics, rtol=1e-4, atol=1e-5)


def test_dead_rows_weigh_nothing():
    first, second = build(), build()
    take(first, made_up(), NO_DRAWS)
    take(second, with_garbage(made_up()), NO_DRAWS)
    same_layers(actor_layers(first.policy), actor_layers(second.policy))
    same_layers(critic_layers(first.policy.critics)[0], critic_layers(second.policy.critics)[0])


def test_learns_only_once_learning_has_started():
    ddpg = build()
    ddpg.prepare(collected(ddpg, steps=10))
    metrics = ddpg.update(collected(ddpg, steps=10), 0.0)
    assert set(metrics) == {"n_updates", "learning_rate"} and ddpg.policy.random == 1
    assert float(ddpg.update(collected(ddpg, steps=10), 0.0)["n_updates"]) == 20 and ddpg.policy.random == 0
    assert float(ddpg.policy.exploration) == pytest.approx(0.1)


def test_trains_resumes_and_loads(tmp_path):
    settings = {"num_envs": 2, "learning_starts": 100, "hidden": (16,), "utd_ratio": 0.2, "progress": "none"}
    straight = hr.train("ddpg", "Pendulum-v1", total_steps=400, log_folder=str(tmp_path), save_freq=200, **settings)
    resumed = hr.train(resume=next(straight.path.glob("step_2*")), progress="none")
    ends = [run.policy.state_dict() for run in (straight, resumed)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    observation = OBSERVATIONS.sample()
    assert (hr.load(straight.path).predict(observation)[0] == resumed.policy.predict(observation)[0]).all()
    assert {"actor_loss", "critic_loss", "n_updates"} <= set(straight.metrics)


def test_settings_out_of_range_are_named():
    with pytest.raises(ValueError, match="exploration must be 0 or more, got -1"):
        DDPGConfig(exploration=-1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_swings_the_pendulum_up(tmp_path, seed):
    run = hr.train("ddpg", "Pendulum-v1", seed=seed, log_folder=str(tmp_path), progress="none")
    assert hr.evaluate(run.policy, "Pendulum-v1").mean >= -200


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "dqn"])
def test_a_linear_schedule_lowers_every_learning_rate(name):
    env = "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    small = {"num_envs": 2, "num_steps": 4, "hidden": (4,), "batch_size": 8, "learning_starts": 8, "buffer_size": 64}
    trainer = hr.Trainer(name, env, total_steps=80, schedule="linear", learning_rate=0.1, **small)
    for _ in range(10):
        expected = pytest.approx(0.1 * (1 - trainer.progress()))
        assert trainer.iterate().metrics["learning_rate"] == expected
        assert all(float(x.learning_rate) == expected for x in trainer.algorithm.optimizers.values())
