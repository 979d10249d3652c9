"""TRPO: its step against the natural gradient worked out in float64, its bounds, and that it learns."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.corridor import Corridor
from helpers.on_policy_oracle import doubles, log_probs, rehearsed, returns_by_loop, rows_of

from headrace.algorithms.trpo import TRPO, TRPOConfig, conjugate_gradient
from headrace.core import fused
from headrace.data.rollout import flatten
from headrace.data.spaces import Box, Discrete, MultiDiscrete
from headrace.parallel.collector import InlineCollector

# as many steps of the conjugate gradient as there are unknowns would be exact in exact arithmetic
SMALL = TRPOConfig(num_steps=8, hidden=(4,), cg_steps=40, normalize_observation=False, normalize_return=False)
ACTOR = ("actor.layers.0.weight", "actor.layers.0.bias", "actor_out.weight", "actor_out.bias")


@pytest.fixture(autouse=True)
def plain():
    with fused.plain_only():
        yield


def natural_step(weights, rollout, config):
    """sqrt(2 max_kl / g F^-1 g) F^-1 g with the Fisher matrix in full, as the mean outer product of scores."""
    observation, action, valid = rows_of(rollout)
    observation, action = observation[valid], action[valid]
    advantage, _ = returns_by_loop(rollout, config.gamma, config.gae_lambda)
    gain = advantage.reshape(-1)[valid]
    gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
    actor = {name: weights[name].requires_grad_() for name in ACTOR}
    chances = log_probs(weights, observation)

    def gradient(x):
        return torch.cat([g.flatten() for g in torch.autograd.grad(x, list(actor.values()), retain_graph=True)])

    fisher = config.damping * torch.eye(sum(w.numel() for w in actor.values()), dtype=torch.float64)
    for row in chances:  # expectation over the policy's own actions: exact, not sampled
        for score, chance in zip(row, row.detach().exp(), strict=True):
            g = gradient(score)
            fisher += chance / len(chances) * torch.outer(g, g)
    chosen = chances[torch.arange(len(action)), action]
    g = gradient((torch.exp(chosen - chosen.detach()) * gain).mean())
    direction = torch.linalg.solve(fisher, g)
    return (2 * config.max_kl / (g @ direction)).sqrt() * direction


def test_a_step_is_the_natural_gradients():
    trpo, rollout = rehearsed(TRPO, SMALL)
    before = doubles(trpo.policy)
    step = natural_step(doubles(trpo.policy), rollout, SMALL)
    metrics = trpo.update(rollout, 0.0)
    moved = torch.cat([(dict(trpo.policy.named_parameters())[n].double() - before[n]).flatten() for n in ACTOR])
    # the line search may have shortened it: by a power of `shrink`
    share = (moved @ step / (step @ step)).item()
    powers = SMALL.backtrack_coef ** np.arange(SMALL.backtracks)
    assert np.abs(powers - share).min() < 2e-3
    torch.testing.assert_close(moved.detach(), share * step, rtol=0, atol=2e-3 * step.abs().max().item())
    assert metrics["line_search_success"] == 1


@pytest.mark.parametrize("action_space", [Discrete(3), MultiDiscrete([2, 3]), Box(-2, 2, (2,))])
@pytest.mark.parametrize("max_kl", [1e-3, 0.02, 0.5])
def test_the_bound_is_kept_and_the_surrogate_gains(action_space, max_kl):
    trpo, rollout = rehearsed(TRPO, dataclasses.replace(SMALL, max_kl=max_kl, cg_steps=10), action_space)
    observation, valid = flatten(rollout.observation[:-1]), rollout.valid[:-1].flatten()
    with torch.no_grad():
        old = trpo.policy.distribution(observation)
    metrics = trpo.update(rollout, 0.0)
    with torch.no_grad():
        divergence = old.kl(trpo.policy.distribution(observation))[valid].mean()
    assert 0 < divergence <= max_kl * 1.001
    assert metrics["kl_divergence_loss"] == pytest.approx(divergence.item(), rel=1e-3)
    assert metrics["policy_objective"] > 0


def test_no_step_is_taken_where_none_gains():
    trpo, rollout = rehearsed(TRPO, SMALL)
    rollout.reward.zero_()
    rollout.value.zero_()
    actor = {name: w for name, w in doubles(trpo.policy).items() if name in ACTOR}
    metrics = trpo.update(rollout, 0.0)
    assert metrics["line_search_success"] == 0 and metrics["kl_divergence_loss"] == 0
    for name, before in actor.items():
        assert torch.equal(dict(trpo.policy.named_parameters())[name].double(), before)


def test_the_critic_learns_and_leaves_the_actor_alone():
    trpo, rollout = rehearsed(TRPO, dataclasses.replace(SMALL, learning_rate=1e-2))
    losses = [trpo.update(rollout, 0.0)["value_loss"].item() for _ in range(10)]
    assert losses[-1] < 0.9 * losses[0]
    rollout.reward.zero_()
    rollout.value.zero_()
    before = [p.detach().clone() for p in trpo.policy.actor_parameters()]
    trpo.update(rollout, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, trpo.policy.actor_parameters(), strict=True))


def test_conjugate_gradient_solves():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(6, dtype=torch.float64)
    target = torch.randn(6, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(conjugate_gradient(lambda v: matrix @ v, target, 6), torch.linalg.solve(matrix, target))
    assert torch.equal(conjugate_gradient(lambda v: matrix @ v, torch.zeros_like(target), 6), torch.zeros_like(target))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_kl": 0.0}, "max_kl must be above 0, got 0.0"),
        ({"backtrack_coef": 1.0}, r"backtrack_coef must lie in \(0, 1\), got 1.0"),
        ({"cg_steps": 0}, "cg_steps must be 1 or more, got 0"),
    ],
)
def test_settings_out_of_range_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TRPOConfig(**changes)


def test_trpo_learns_to_walk_the_corridor():
    config = TRPOConfig(num_steps=32, hidden=(32, 32), critic_epochs=2)
    env = Corridor(64)
    trpo = TRPO.build(config, env.observation_space, env.action_space, 1, "cpu")
    collector = InlineCollector(env, trpo.policy, config.num_steps, trpo.columns(), seed=1)
    for _ in range(25):
        rollout = collector.collect()
        trpo.update(rollout, 0.0)
    assert rollout.episode_return[~rollout.valid[:-1]].mean() > 0.5
