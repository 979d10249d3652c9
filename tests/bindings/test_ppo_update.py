"""PPO's update in two calls: the bits of its parts, and not where one of them is replaced."""

import types

import pytest
import torch
from bindings.test_ppo_programs import CASES, VECTOR, copied, prepared

from headrace.algorithms import on_policy
from headrace.algorithms.on_policy import PROCESSED, gae_targets, process_and_learn
from headrace.algorithms.ppo import PPO
from headrace.bindings.compiled import compiled_update
from headrace.core import fused, returns
from headrace.data.rollout import Rollout
from headrace.data.spaces import Discrete

DISCRETE = (VECTOR, Discrete(3), {})


def served(learner, rollout):
    learner.begin_update(0.0)
    return process_and_learn.serving(learner, rollout) is compiled_update.process_and_learn


def by_parts(learner, rollout):
    """An update by the kernels for each of its parts."""
    learner.begin_update(0.0)
    metrics, found = process_and_learn.plain(learner, rollout)
    learner.policy.update_statistics(rollout, found)
    return learner.end_update(metrics), found


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_its_parts(name):
    learner, rollout = prepared(*CASES[name])
    parts = copied(learner)
    for _ in range(3):
        assert served(learner, rollout)
        metrics = learner.update(rollout, 0.0)
        expected, found = by_parts(parts, rollout)
        assert torch.equal(compiled_update._updates.last(rollout).returns, found)
        assert metrics.keys() == expected.keys()
        torch.testing.assert_close(metrics, expected, rtol=1e-5, atol=1e-7)
        rollout.reward.mul_(-1.1)  # another rollout, in the same memory
    assert learner.optimizer.steps == parts.optimizer.steps > 0
    assert torch.equal(learner.optimizer.flat, parts.optimizer.flat)


def test_it_goes_on_after_columns_have_moved():
    learner, rollout = prepared(*DISCRETE)
    parts = copied(learner)
    for column in ("reward", "value", "valid", "observation"):
        learner.update(rollout, 0.0)
        by_parts(parts, rollout)
        setattr(rollout, column, getattr(rollout, column).clone())
        assert served(learner, rollout)
    assert torch.equal(learner.optimizer.flat, parts.optimizer.flat)


def test_another_seed_is_another_order():
    learner, rollout = prepared(*DISCRETE)
    other, parts = copied(learner), copied(learner)
    learner.update(rollout, 0.0)
    for each in (other, parts):
        each.seed = 2**32 - 1
    other.iteration = parts.iteration = 2**40 + 3
    other.update(rollout, 0.0)
    by_parts(parts, rollout)
    assert torch.equal(other.optimizer.flat, parts.optimizer.flat)
    assert not torch.equal(other.optimizer.flat, learner.optimizer.flat)


def own_process(learner, rollout):
    learner.process = lambda rollout: PPO.process(learner, rollout)


def own_permutation(learner, rollout):
    learner.permutation = types.MethodType(lambda self, rollout, epochs: torch.arange(288).repeat(epochs, 1), learner)


def hooked(learner, rollout):
    learner.policy.actor.register_forward_hook(lambda *_: None)


def of_doubles(learner, rollout):
    rollout.reward = rollout.reward.double()


def not_dense(learner, rollout):
    rollout.value = torch.stack((rollout.value, rollout.value), -1)[..., 0]


def several_learners(learner, rollout):
    learner.reduce = lambda *tensors: None
    learner.reduce.size, learner.reduce.rank, learner.reduce.columns = 2, 0, (12, 12)


@pytest.mark.parametrize(
    "change",
    [own_process, own_permutation, hooked, of_doubles, not_dense, several_learners],
    ids=lambda change: change.__name__,
)
def test_what_is_replaced_takes_effect(change):
    learner, rollout = prepared(*DISCRETE)
    assert served(learner, rollout)
    change(learner, rollout)
    assert not served(learner, rollout)


def test_a_begin_update_of_the_users_may_change_the_policy():
    learner, rollout = prepared(*DISCRETE)
    assert served(learner, rollout)
    learner.begin_update = lambda progress: hooked(learner, rollout)
    assert not served(learner, rollout)


def test_an_edited_part_is_what_runs(monkeypatch):
    learner, rollout = prepared(*DISCRETE)
    assert served(learner, rollout)
    original = returns.gae.plain
    monkeypatch.setattr(on_policy, "gae", lambda *arguments: 2 * original(*arguments))
    assert not served(learner, rollout)
    parts = copied(learner)
    learner.update(rollout, 0.0)
    by_parts(parts, rollout)
    assert torch.equal(learner.optimizer.flat, parts.optimizer.flat)


def test_targets_that_actors_have_computed_are_learned():
    learner, rollout = prepared(*DISCRETE)
    columns = rollout.columns | PROCESSED
    other = Rollout(rollout.num_steps, rollout.num_envs, columns)
    for name in rollout.columns:
        getattr(other, name).copy_(getattr(rollout, name))
    targets = gae_targets(rollout, 0.5, 0.5)
    other.advantage.copy_(targets.advantage)
    other.returns.copy_(targets.returns)
    other.counted.copy_(targets.valid)
    assert not served(learner, other)


def test_kernels_that_are_off_do_not_serve():
    learner, rollout = prepared(*DISCRETE)
    with fused.plain_only():
        assert not served(learner, rollout)
