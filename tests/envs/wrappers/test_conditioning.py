"""Conditioning inputs of agents are part of the rollout, stay the same for an episode, and reach the policies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny import Walk

import headrace as hr
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Dict, Discrete, MultiDiscrete
from headrace.envs.wrappers.conditioning import InformedEnv
from headrace.parallel.collector import InlineCollector
from headrace.policies.actor_critic import ActorCritic

pytestmark = pytest.mark.usefixtures("one_thread")


class Guess(Walk):
    """A Walk whose reward is 1 for the action that the goal names, which is not to be seen."""

    def __init__(self, goal: torch.Tensor) -> None:
        super().__init__(len(goal))
        self.goal = goal

    def step(self, rollout: Rollout, t: int) -> None:
        said = rollout.action[t].clone()
        rollout.action[t] = (said == self.goal).int()  # the walk goes right where the goal is met
        super().step(rollout, t)
        rollout.action[t] = said

    def _observe(self, rollout: Rollout, t: int) -> None:
        rollout.observation[t] = 0.0


def collected(env, steps=24, rollouts=1, seed=0):
    policy = ActorCritic(env.observation_space, env.action_space, (8,))
    collector = InlineCollector(env, policy, steps, {}, seed)
    for _ in range(rollouts):
        rollout = collector.collect()
    return collector, rollout


def test_numbers_stay_and_lie_beside_what_is_seen():
    goals = np.arange(8) % 3 + 5
    _, rollout = collected(InformedEnv(Walk(), goals), rollouts=2)
    seen = rollout.observation
    assert seen.observation.shape == (25, 8, 2) and seen.agent_info.dtype == torch.int32
    assert (seen.agent_info == torch.as_tensor(goals)).all() and not rollout.valid.all()
    _, plain = collected(Walk())
    _, again = collected(InformedEnv(Walk(), goals))
    assert torch.equal(again.observation.observation[0], plain.observation[0])


@pytest.mark.parametrize(
    ("given", "space"),
    [
        (np.array([3, 4, 5, 3]), Discrete(3, start=3)),
        ([0.5, 1.0, 2.0, 0.0], Box(-np.inf, np.inf, ())),
        (torch.rand(4, 2), Box(-np.inf, np.inf, (2,))),
        (MultiDiscrete([2, 3]), MultiDiscrete([2, 3])),
    ],
)
def test_what_is_told_has_a_space_that_policies_take(given, space):
    env = InformedEnv(Walk(4), given)
    assert env.observation_space == Dict({"observation": Walk.observation_space, "agent_info": space})
    _, rollout = collected(env)
    policy = ActorCritic.from_config(ActorCritic(env.observation_space, env.action_space, (8,)).config())
    told = {"observation": np.zeros(2, np.float32), "agent_info": rollout.observation.agent_info[0, 0].numpy()}
    assert policy.predict(told)[0] in (0, 1)


@pytest.mark.parametrize(
    "space", [Discrete(50, start=7), Box(np.array([-1.0, 3.0], np.float32), np.array([1.0, 9.0], np.float32))]
)
def test_each_episode_draws_its_own(space):
    collector, rollout = collected(InformedEnv(Walk(64), space), steps=40, rollouts=3, seed=4)
    info, valid = rollout.observation.agent_info.view(41, 64, -1), rollout.valid[:-1]
    same = (info[1:] == info[:-1]).all(-1)
    assert same[valid].all() and same[~valid].float().mean() < 0.2 and (~valid).sum() > 100
    shares = (info - torch.as_tensor(space.low if isinstance(space, Box) else 7)) / torch.as_tensor(
        space.high - space.low if isinstance(space, Box) else 50
    )
    assert shares.min() >= 0 and shares.max() < 1 and (shares.flatten(0, 1).std(0) - 12**-0.5).abs().max() < 0.06
    again, other = (collected(InformedEnv(Walk(64), space), 40, 3, seed)[1] for seed in (4, 5))
    assert torch.equal(again.observation.agent_info, rollout.observation.agent_info)
    assert not torch.equal(other.observation.agent_info, rollout.observation.agent_info)
    fresh = InlineCollector(InformedEnv(Walk(64), space), collector.policy, 40, {}, 4)
    fresh.load_state_dict(collector.state_dict())
    ends = [one.collect().observation.agent_info for one in (fresh, collector)]
    assert torch.equal(*ends)


def test_worlds_with_several_members_and_compiled_ones_are_informed_too():
    env = InformedEnv(hr.make("CartPole-v1", 4), Discrete(3))
    plain = hr.make("CartPole-v1", 4)
    (_, told), (_, seen) = collected(env), collected(plain)
    assert torch.equal(told.observation.observation[0], seen.observation[0]) and env.max_steps == 500
    assert told.reward.sum() > 0 and env.name == "CartPole-v1"
    twice = InformedEnv(Walk(4), Discrete(3))
    with pytest.raises(TypeError, match="agent_info of their own"):
        InformedEnv(twice, Discrete(3))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros(3), r"one entry for each of 8 envs, got the shape \(3,\)"),
        (Box(-np.inf, np.inf, (2,)), "needs bounds"),
        ("left", "is numbers"),
        (Dict({}), "is numbers"),
    ],
)
def test_what_cannot_be_told_is_refused(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        InformedEnv(Walk(), wrong)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_goal_that_only_agent_info_tells_is_reached(name):
    goal = torch.arange(16) % 2
    own = {"learning_starts": 200, "gradient_steps": 8, "exploration_fraction": 0.5} if name == "dqn" else {"epochs": 4}
    settings = {"num_steps": 16, "hidden": (16,), "learning_rate": 5e-3, "total_steps": 6000, "gamma": 0.5} | own

    def reached(**options):
        trainer = hr.Trainer(name, Guess(goal), **settings, **options)
        while not trainer.reason_to_stop():
            trainer.iterate()
        return trainer.collector.collect().reward.mean()

    assert reached(agent_info=goal.numpy()) > 0.8
    assert reached() < 0.7  # untold, it can do no better than chance


def test_a_trainer_says_what_it_cannot_do_with_it():
    goal = np.arange(8) % 2
    trainer = hr.Trainer("ppo", Walk(), agent_info=goal, num_steps=8, hidden=(8,))
    assert trainer.settings()["agent_info"] == "given"
    with pytest.raises(TypeError, match="trained with agent_info: give it again"):
        hr.Trainer("ppo", Walk(), agent_info="given", num_steps=8)
