"""APPO: that it is PPO where the policy that learns collected, its updates otherwise, and that it learns."""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from helpers.corridor import Corridor
from helpers.on_policy_oracle import doubles, log_probs, rehearsed, rows_of, values, vtrace_by_loop

from headrace import envs
from headrace.algorithms.config_bases import narrowed
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.vtrace.appo import APPO, APPOConfig
from headrace.core import fused
from headrace.data.rollout import flatten
from headrace.parallel.collector import InlineCollector

RAW = {"normalize_observation": False, "normalize_return": False}
SMALL = APPOConfig(num_steps=8, epochs=2, minibatch_size=40, hidden=(8,), **RAW)
MEMORY = {"recurrent": "gru", "rnn_size": 12, "hidden": (16,), "sequence_length": 4}


@pytest.fixture(autouse=True)
def said(monkeypatch):
    monkeypatch.setattr(fused, "_said", set())


def moved(algorithm, seed=1):
    """Change an algorithm's policy, as updates do after a rollout was collected."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def test_the_settings_are_those_of_ppo_and_vtrace():
    shared = {field.name for field in dataclasses.fields(PPOConfig)}
    assert {field.name for field in dataclasses.fields(APPOConfig)} - shared == {"clip_rho", "clip_c"}
    assert narrowed(APPOConfig(), PPOConfig) == PPOConfig()
    assert narrowed(APPOConfig(clip=0.3, num_steps=9), PPOConfig) == PPOConfig(clip=0.3, num_steps=9)


@pytest.mark.parametrize("num_envs", [8, 64, 1000])
def test_scaled_settings_are_those_of_ppo(num_envs):
    appo = APPOConfig(num_steps=50, clip_rho=2.0).scaled(64, num_envs, epochs=3, clip_c=0.5)
    assert narrowed(appo, PPOConfig) == PPOConfig(num_steps=50).scaled(64, num_envs, epochs=3)
    assert (appo.clip_rho, appo.clip_c) == (2.0, 0.5)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("options", [{}, {"value_clip": 0.2, "target_kl": 0.03}, MEMORY], ids=["", "clipped", "gru"])
@pytest.mark.parametrize("kernels", [True, False])
def test_an_update_from_its_own_rollout_is_that_of_ppo(env, options, kernels, capsys):
    settings = {"num_steps": 16, "minibatch_size": 64, "hidden": (16,), "learning_rate": 1e-3, **options}
    env = envs.make(env, 16)
    appo = APPO.build(APPOConfig(**settings), env.observation_space, env.action_space, 3, "cpu")
    collector = InlineCollector(env, appo.policy, 16, appo.columns(), seed=3)
    same = PPO.build(PPOConfig(**settings), env.observation_space, env.action_space, 3, "cpu")
    moved(appo)  # values and probabilities that differ between rows
    collector.collect()
    rollout = collector.collect()  # recurrent states that are not 0
    same.policy.load_state_dict(appo.policy.state_dict())
    before = appo.optimizer.flat.clone()
    with contextlib.nullcontext() if kernels else fused.plain_only():
        ours, theirs = appo.update(rollout, 0.0), same.update(rollout, 0.0)
    torch.testing.assert_close(appo.optimizer.flat, same.optimizer.flat, rtol=0, atol=1e-5)
    assert (appo.optimizer.flat - before).abs().max() > 1e-3
    assert ours.pop("mean_rho") == pytest.approx(1, abs=1e-5) and ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value.item(), rel=1e-3, abs=1e-4), name
    assert "recurrent" in options or "runs in plain PyTorch" not in capsys.readouterr().err
    env.close()


@pytest.mark.parametrize("changes", [{}, {"gae_lambda": 0.8, "clip_rho": 1.5, "clip_c": 0.7}, {"value_clip": 0.2}])
def test_an_update_of_a_policy_that_has_moved_is_ppos_on_the_papers_targets(changes):
    """V-trace in float64, then PPO's learning call on the rollout as it was collected."""
    config = dataclasses.replace(SMALL, **changes)
    appo, rollout = rehearsed(APPO, config)
    same, twice = rehearsed(PPO, narrowed(config, PPOConfig))
    moved(appo)
    moved(same)
    weights, (observation, action, valid) = doubles(appo.policy), rows_of(rollout)
    chosen = log_probs(weights, observation)[torch.arange(len(action)), action].view(rollout.reward.shape)
    value = values(weights, flatten(rollout.observation).double()).view(rollout.value.shape)
    ratio = (chosen - rollout.log_prob.double()).exp()
    advantage, target = vtrace_by_loop(rollout, ratio, value, config)
    advantage /= ratio.clamp(max=config.clip_rho)  # the ratio in PPO's loss is in the place of rho
    with fused.plain_only():
        targets = Targets(advantage.float(), target.float(), rollout.valid[:-1])
        expected = same.learn(twice, targets)
        metrics = appo.update(rollout, 0.0)
    assert (ratio.reshape(-1)[valid] - 1).abs().max() > 0.3
    torch.testing.assert_close(appo.optimizer.flat, same.optimizer.flat, rtol=1e-4, atol=1e-5)
    rho = ratio.clamp(max=config.clip_rho).reshape(-1)[valid].mean()
    assert metrics["mean_rho"] == pytest.approx(rho.item(), rel=1e-5)
    for name in expected:
        assert metrics[name] == pytest.approx(expected[name].item(), rel=1e-3, abs=1e-5)


def test_the_program_learns_the_same_from_a_rollout_of_an_earlier_policy():
    learned = []
    for compiled in (True, False):
        appo, rollout = rehearsed(APPO, dataclasses.replace(SMALL, value_clip=0.2))
        moved(appo)
        with contextlib.nullcontext() if compiled else fused.plain_only():
            appo.update(rollout, 0.0)
        learned.append(appo.optimizer.flat.clone())
    torch.testing.assert_close(*learned, rtol=0, atol=1e-5)


def test_the_ratio_that_is_clipped_is_to_the_policy_that_collected():
    appo, rollout = rehearsed(APPO, dataclasses.replace(SMALL, epochs=1, minibatch_size=1000))
    moved(appo)
    with torch.no_grad():
        ratio = (appo.policy.evaluate_rollout(rollout).log_prob - rollout.log_prob).exp()[rollout.valid[:-1]]
    metrics = appo.update(rollout, 0.0)  # one minibatch: nothing has been learned where the ratios are taken
    assert metrics["clip_fraction"] == pytest.approx(((ratio - 1).abs() > 0.2).float().mean().item(), rel=1e-4)
    assert metrics["clip_fraction"] > 0.1 and metrics["mean_rho"] < 0.95


def trained(env, config, lag, updates):
    """APPO after updates from rollouts by the policy of `lag` updates before, and the mean return of the last 100
    episodes."""
    learner, actor = (APPO.build(config, env.observation_space, env.action_space, 1, "cpu") for _ in range(2))
    collector = InlineCollector(env, actor.policy, config.num_steps, actor.columns(), seed=1)
    versions, returns = [learner.state_dict()["policy"]] * (lag + 1), torch.zeros(0)
    for _ in range(updates):
        actor.policy.load_state_dict(versions.pop(0))
        rollout = collector.collect()
        learner.update(rollout, 0.0)
        versions.append(learner.state_dict()["policy"])
        returns = torch.cat((returns, rollout.episode_return[~rollout.valid[:-1]]))[-100:]
    return learner, returns.mean().item()


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_appo_balances_the_pole(lag):
    config = APPOConfig(num_steps=32, minibatch_size=256, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9)
    env = envs.make("CartPole-v1", 64)
    assert trained(env, config, lag, 60)[1] >= 195
    env.close()


def test_appo_learns_to_walk_the_corridor_from_rollouts_that_are_two_updates_old():
    config = APPOConfig(num_steps=32, minibatch_size=512, learning_rate=1e-3, hidden=(32, 32))
    with fused.plain_only():
        appo, returned = trained(Corridor(64), config, 2, 40)
    assert returned > 0.5  # straight to the end: four steps at -0.1, then 1
    assert appo.policy.predict(np.stack([np.linspace(-1, 0.6, 5), np.ones(5)], 1))[0].tolist() == [1] * 5
