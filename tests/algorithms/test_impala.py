"""IMPALA: its updates against independent ones in float64, that its limits are checked, and that it learns."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.corridor import Corridor
from helpers.on_policy_oracle import (
    SlowAdam,
    doubles,
    gradients_of,
    log_probs,
    rehearsed,
    rows_of,
    values,
    vtrace_by_loop,
)

from headrace.algorithms.a2c import A2C, A2CConfig
from headrace.algorithms.vtrace.appo import APPOConfig
from headrace.algorithms.vtrace.impala import IMPALA, IMPALAConfig
from headrace.core import fused
from headrace.data.rollout import flatten
from headrace.parallel.collector import InlineCollector

SMALL = IMPALAConfig(num_steps=8, hidden=(8,), normalize_observation=False, normalize_return=False)


@pytest.fixture(autouse=True)
def plain():
    with fused.plain_only():
        yield


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"entropy_coef": 0.1, "value_coef": 0.25, "gae_lambda": 0.9},
        {"clip_rho": 1.5, "clip_c": 1.2, "normalize_advantage": True, "max_grad_norm": 1e-2},
        {"clip_rho": 0.8, "clip_c": 0.5, "schedule": "linear"},
    ],
)
def test_ten_updates_from_one_rollout_equal_ten_in_float64(changes):
    """The rollout is of the first policy: before the last update it is nine updates old."""
    config = dataclasses.replace(SMALL, learning_rate=3e-2, **changes)
    impala, rollout = rehearsed(IMPALA, config)
    weights = doubles(impala.policy)
    adam = SlowAdam(weights, 0.0, config.max_grad_norm)
    observation, action, valid = rows_of(rollout)
    everywhere, shape = flatten(rollout.observation).double(), rollout.reward.shape
    for iteration in range(10):
        chances = log_probs(weights, observation)
        chosen = chances[torch.arange(len(chances)), action]
        ratio = (chosen.view(shape) - rollout.log_prob.double()).exp()
        value = values(weights, everywhere).view(-1, shape[1])
        advantage, target = vtrace_by_loop(rollout, ratio, value, config)
        gain = advantage.reshape(-1)[valid]
        if config.normalize_advantage:
            gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
        for w in weights.values():
            w.requires_grad_()
        chances = log_probs(weights, observation[valid])
        chosen = chances[torch.arange(len(chances)), action[valid]]
        entropy = -(chances.exp() * chances).sum(1).mean()
        error = ((values(weights, observation[valid]) - target.reshape(-1)[valid]) ** 2).mean()
        loss = -(chosen * gain).mean() + config.value_coef * error - config.entropy_coef * entropy
        gradients = gradients_of(loss, weights)
        adam.rate = config.learning_rate * (1 - iteration / 10 if config.schedule == "linear" else 1)
        with torch.no_grad():
            adam.step(gradients)
        for w in weights.values():
            w.requires_grad_(False)
        metrics = impala.update(rollout, iteration / 10)
        assert metrics["value_loss"] == pytest.approx(error.item(), rel=1e-3)
        rho = ratio.clamp(max=config.clip_rho).reshape(-1)[valid]
        assert metrics["mean_rho"] == pytest.approx(rho.mean().item(), rel=1e-4)
    assert (ratio.reshape(-1)[valid] - 1).abs().max() > 0.1  # the policy has moved
    for name, ours in impala.policy.named_parameters():
        torch.testing.assert_close(ours.double(), weights[name], rtol=5e-4, atol=5e-5)


def test_an_update_from_its_own_rollout_is_that_of_a2c():
    impala, rollout = rehearsed(IMPALA, SMALL)
    shared = {field.name: getattr(SMALL, field.name) for field in dataclasses.fields(A2CConfig)}
    a2c, _ = rehearsed(A2C, A2CConfig(**shared))
    ours, theirs = impala.update(rollout, 0.0), a2c.update(rollout, 0.0)
    torch.testing.assert_close(impala.optimizer.flat, a2c.optimizer.flat, rtol=0, atol=1e-6)
    assert ours.pop("mean_rho") == pytest.approx(1, abs=1e-6) and ours.keys() == theirs.keys()


@pytest.mark.parametrize("config", [IMPALAConfig, APPOConfig])
def test_limits_out_of_range_are_named(config):
    with pytest.raises(ValueError, match="clip_rho must be above 0, got 0"):
        config(clip_rho=0)
    with pytest.raises(ValueError, match=r"clip_c must be at most clip_rho, 0\.9, got 1\.0"):
        config(clip_rho=0.9)
    assert config(clip_rho=float("inf")).clip_c == 1


def test_impala_learns_to_walk_the_corridor_from_rollouts_that_are_two_updates_old():
    config = IMPALAConfig(num_steps=8, learning_rate=2e-3, hidden=(32, 32))
    env = Corridor(64)
    impala = IMPALA.build(config, env.observation_space, env.action_space, 1, "cpu")
    actor = IMPALA.build(config, env.observation_space, env.action_space, 1, "cpu")
    collector = InlineCollector(env, actor.policy, config.num_steps, actor.columns(), seed=1)
    versions, rho = [impala.state_dict()["policy"]] * 3, []
    for _ in range(200):
        actor.policy.load_state_dict(versions.pop(0))
        rollout = collector.collect()
        rho.append(impala.update(rollout, 0.0)["mean_rho"].item())
        versions.append(impala.state_dict()["policy"])
    ended = ~rollout.valid[:-1]
    assert rollout.episode_return[ended].mean() > 0.5
    assert rho[0] == pytest.approx(1, abs=1e-6) and min(rho) < 0.999
    assert impala.policy.predict(np.stack([np.linspace(-1, 0.6, 5), np.ones(5)], 1))[0].tolist() == [1] * 5
