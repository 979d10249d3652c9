"""Every algorithm is public, runs in a user's own loop, and is fused there; a gradient is the sum over learners."""

from __future__ import annotations

import pytest
import torch

import headrace as hr
from headrace.algorithms.base import ALGORITHMS
from headrace.algorithms.objectives import take_steps
from headrace.core.fused import kernel_of
from headrace.data.rollout import Rollout
from headrace.policies.actor_q import ActorQ
from tests.helpers.off_policy_oracle import ACTIONS, OBSERVATIONS, collected, made_up
from tests.helpers.on_policy_oracle import rehearsed


@pytest.mark.parametrize("name", ALGORITHMS.values())
def test_an_algorithm_and_its_config_are_public(name):
    assert getattr(hr, name).config == getattr(hr, f"{name}Config")()


def test_sac_in_a_loop_of_ones_own_is_fused():
    policy = ActorQ(OBSERVATIONS, ACTIONS, hidden=(16, 16))
    sac = hr.SAC(policy, hr.SACConfig(num_steps=40, learning_starts=10, batch_size=8, gradient_steps=1))
    rollout = collected(sac)
    sac.prepare(rollout)
    before = sac.networks.actor_optimizer.flat.clone()
    sac.update(rollout, 0.0)
    assert not torch.equal(before, sac.networks.actor_optimizer.flat)
    random = torch.rand(3, 16, sac.num_draws())
    assert kernel_of(take_steps, *sac.objectives(), made_up(), random, sac.config)


@pytest.mark.parametrize("kind", [hr.A2C, hr.IMPALA, hr.Reinforce])
def test_two_learners_of_half_a_rollout_add_up_to_one_of_all(kind):
    config = type(kind.config)(num_steps=8, hidden=(8,), normalize_advantage=False, normalize_return=False)
    algorithm, rollout = rehearsed(kind, config, envs=12)
    targets = algorithm.process(rollout)
    whole = algorithm.gradient(rollout, targets)
    gradient = algorithm.optimizer.gradient.clone()
    algorithm.optimizer.gradient.zero_()
    rows = float(targets.valid.sum())
    parts = []
    for envs in (slice(0, 5), slice(5, 12)):
        part = Rollout(rollout.num_steps, envs.stop - envs.start, rollout.columns)
        for name in rollout.columns:
            getattr(part, name).copy_(getattr(rollout, name)[:, envs])
        algorithm.reduce = lambda count: count.fill_(rows)  # the valid rows of both learners
        parts.append(algorithm.gradient(part, type(targets)(*(x if x is None else x[:, envs] for x in targets))))
    torch.testing.assert_close(algorithm.optimizer.gradient, gradient, rtol=1e-5, atol=1e-6)
    for name, value in whole.items():
        torch.testing.assert_close(sum(part[name] for part in parts), value, rtol=1e-5, atol=1e-6)
    summed = []
    algorithm.reduce = lambda *tensors: summed.extend(tensors)
    algorithm.apply(whole)
    assert summed[0] is algorithm.optimizer.gradient and len(summed) == 1 + len(whole)
