"""Worlds brought out of step."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.data.rollout import Column
from headrace.parallel.collector import InlineCollector
from headrace.parallel.stagger import Stagger
from headrace.policies.actor_critic import ActorCritic

LENGTH = 12  # of a walk, which goes on for so long where it only goes right


def collected(num_steps: int, rollouts: int, max_steps: int | None = LENGTH) -> tuple[Walk, list[torch.Tensor]]:
    """Walks that always go right, and the lengths of the episodes counted in each rollout, [T, N]."""
    env = Walk(8)
    policy = ActorCritic(env.observation_space, env.action_space, hidden=(8,))
    policy.act = rightwards(policy.act)
    collector = InlineCollector(env, policy, num_steps, {"log_prob": Column(), "value": Column(bootstrap=True)}, seed=0)
    stagger, lengths = Stagger(collector.rollout, max_steps), []
    for _ in range(rollouts):
        stagger.before(collector.steps)
        rollout = collector.collect()
        stagger.after()
        lengths.append(torch.where(rollout.valid[:num_steps], 0, rollout.episode_length))
    return env, lengths


def rightwards(decide):
    def choose(*arguments):
        decision = decide(*arguments)
        decision.action.fill_(1)
        return decision

    return choose


def test_worlds_are_spread_over_the_length_of_an_episode():
    env, _ = collected(num_steps=3, rollouts=5)
    assert sorted(set(env.length.tolist())) == [2, 5, 8, 11]  # in step they would be one number
    assert env.length.bincount()[[2, 5, 8, 11]].tolist() == [2, 2, 2, 2]
    alone, _ = collected(num_steps=3, rollouts=5, max_steps=None)
    assert len(set(alone.length.tolist())) == 1


def test_an_episode_cut_off_is_not_counted_and_whole_ones_are():
    _, lengths = collected(num_steps=3, rollouts=12)
    counted = torch.cat(lengths)
    assert set(counted.unique().tolist()) == {0, LENGTH}


def test_what_is_cut_off_depends_on_the_steps_alone():
    options = TINY | {"num_steps": 3, "stagger": True, "total_steps": 400}
    env = Walk(8)
    env.max_steps = LENGTH
    straight = hr.Trainer("ppo", env, **options)
    for _ in range(3):
        straight.iterate()
    other = Walk(8)
    other.max_steps = LENGTH
    resumed = hr.Trainer("ppo", other, **options)
    resumed.load_state_dict(straight.state_dict())
    for trainer in (straight, resumed):
        trainer.iterate()
    assert torch.equal(straight.collector.rollout.valid, resumed.collector.rollout.valid)
    assert not straight.collector.rollout.valid[0].all()


def test_rollouts_as_long_as_episodes_have_nothing_to_bring_out_of_step():
    env, _ = collected(num_steps=13, rollouts=2)
    assert len(set(env.length.tolist())) == 1


def test_those_who_keep_what_they_saw_refuse_it():
    with pytest.raises(ValueError, match="stagger is for algorithms that learn from rollouts, not for dqn"):
        hr.Trainer("dqn", Walk(8), stagger=True)
