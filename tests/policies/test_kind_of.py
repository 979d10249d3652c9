"""Subclasses of Headrace's policies that compute what these do."""

from __future__ import annotations

import pytest
import torch

import headrace as hr
from headrace.bindings.eligibility import verdict
from headrace.policies.base import kind_of

SEEN, CHOICES, TORQUES = hr.Box(-1, 1, (3,)), hr.Discrete(3), hr.Box(-1, 1, (2,))


class Empty(hr.ActorCritic):
    """Subclass without anything of its own."""


class Constructed(Empty):
    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space, hidden=(32,))


class Saved(Empty):
    def config(self):
        return super().config()


class Acts(Empty):
    def act(self, observation, rnn_state, random):
        return super().act(observation, rnn_state, random)


class Scaled(Saved):
    scale = 2.0


@pytest.mark.parametrize(
    ("own", "kind"), [(Empty, hr.ActorCritic), (Saved, hr.ActorCritic), (Constructed, Constructed), (Acts, Acts)]
)
def test_the_class_whose_methods_a_policy_has(own, kind):
    policy = own(SEEN, CHOICES)
    assert kind_of(policy) is kind
    assert (verdict(policy).learning is None) == (kind is hr.ActorCritic)


def test_what_a_class_has_of_its_own_may_be_read():
    assert kind_of(Scaled(SEEN, CHOICES)) is Scaled
    assert kind_of(Scaled(SEEN, CHOICES).actor) is type(hr.ActorCritic(SEEN, CHOICES).actor)


def test_a_method_that_a_class_is_given_later_counts(monkeypatch):
    policy = Empty(SEEN, CHOICES)
    monkeypatch.setattr(Empty, "value", lambda self, *given: None, raising=False)
    assert kind_of(policy) is Empty


def test_an_empty_subclass_trains_to_the_bits_of_its_base_and_is_exported(tmp_path):
    trained = {}
    for kind in (hr.ActorCritic, Empty):
        settings = {"num_envs": 4, "num_steps": 16, "seed": 3, "progress": "none"}
        trainer = hr.Trainer("ppo", "CartPole-v1", policy=kind, **settings)
        trainer.iterate()
        trained[kind] = trainer.policy
        trainer.close()
    for ours, theirs in zip(trained[Empty].parameters(), trained[hr.ActorCritic].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    hr.export(trained[Empty], "numpy", tmp_path / "policy.py")


def test_a_q_network_and_an_actor_with_critics():
    class Q(hr.QNetwork):
        pass

    class Critics(hr.ActorQ):
        pass

    assert kind_of(Q(SEEN, CHOICES)) is hr.QNetwork and kind_of(Critics(SEEN, TORQUES)) is hr.ActorQ
