"""PPO's whole update where its loss is compiled: equal to the plain one, and not where a part of it is replaced."""

import dataclasses
import types

import pytest
import torch
from bindings.test_compiled_learning import BOX, SEEN, SMALL, TWO, Residual, made, with_penalty
from bindings.test_ppo_update import not_dense, of_doubles, own_permutation, own_process, several_learners

from headrace.algorithms import ppo
from headrace.algorithms.on_policy import process_and_learn
from headrace.bindings.compiled import compiled_update
from headrace.core import fused


class Penalised(ppo.PPO):
    """PPO with a loss of a user's."""

    loss = staticmethod(with_penalty)


def without_metrics(policy, batch, config):
    """PPO's loss alone."""
    return ppo.ppo_loss(policy, batch, config)[0], {}


class Silent(ppo.PPO):
    """PPO without metrics."""

    loss = staticmethod(without_metrics)


CASES = {
    "own network": (ppo.PPO, TWO, {}),
    "own loss": (Penalised, BOX, {"normalize_advantage": False}),
    "no metrics": (Silent, TWO, {}),
    "stopped by KL": (ppo.PPO, BOX, {"target_kl": 0.02, "learning_rate": 0.01, "epochs": 6}),
}


def prepared(name):
    kind, space, settings = CASES[name]
    learner, rollout, _ = made(kind, space, Residual(SEEN, space), **(SMALL | settings))
    rollout.terminated[5, ::3], rollout.truncated[9, 1::3] = True, True
    return learner, rollout


def served(learner, rollout):
    learner.begin_update(0.0)
    return process_and_learn.serving(learner, rollout) is compiled_update.process_and_learn


@pytest.mark.parametrize("name", CASES)
def test_three_updates_equal_the_plain_ones(name, capsys):
    (own, rollout), (plain, other) = prepared(name), prepared(name)
    before = own.optimizer.flat.clone()
    for _ in range(3):
        assert served(own, rollout)
        found = own.update(rollout, 0.0)
        with fused.plain_only():
            expected = plain.update(other, 0.0)
        assert found.keys() == expected.keys()
        for key in found:
            torch.testing.assert_close(found[key], expected[key], rtol=2e-4, atol=2e-5, msg=key)
        for each in (rollout, other):
            each.reward.mul_(-1.1)  # another rollout, in the same memory
    assert own.optimizer.steps == plain.optimizer.steps > 0
    assert (own.optimizer.flat - before).abs().max() > 1e-3
    torch.testing.assert_close(own.optimizer.flat, plain.optimizer.flat, rtol=1e-3, atol=2e-5)
    assert "learning" not in capsys.readouterr().err


def test_settings_and_columns_that_change_take_effect():
    (own, rollout), (plain, other) = prepared("own network"), prepared("own network")
    for gamma, column in ((0.9, "reward"), (0.5, "value"), (0.99, "valid")):
        for learner, rows in ((own, rollout), (plain, other)):
            learner.config = dataclasses.replace(learner.config, gamma=gamma, clip=gamma / 4)
            setattr(rows, column, getattr(rows, column).clone())
        assert served(own, rollout)
        own.update(rollout, 0.0)
        with fused.plain_only():
            plain.update(other, 0.0)
        torch.testing.assert_close(own.optimizer.flat, plain.optimizer.flat, rtol=1e-3, atol=2e-5)


class OwnProcess(ppo.PPO):
    """PPO with targets of a user's."""

    def process(self, rollout):
        return super().process(rollout)


def process_of_a_subclass(learner, rollout):
    learner.__class__ = OwnProcess


def learn_of_ones_own(learner, rollout):
    learner.learn = types.MethodType(ppo.PPO.learn, learner)


CHANGES = (own_process, own_permutation, of_doubles, not_dense, several_learners)


@pytest.mark.parametrize(
    "change", [*CHANGES, process_of_a_subclass, learn_of_ones_own], ids=lambda change: change.__name__
)
def test_what_is_replaced_takes_effect(change):
    learner, rollout = prepared("own network")
    assert served(learner, rollout)
    change(learner, rollout)
    assert not served(learner, rollout)
