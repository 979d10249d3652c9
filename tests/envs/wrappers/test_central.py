"""The state of all agents as a member of observations: what critics see, and what is learned by it."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

pytest.importorskip("pettingzoo")
from helpers.relay import Relay, Returning
from helpers.stepping import stepped

import headrace as hr
from headrace import envs
from headrace.data.rollout import Group
from headrace.data.spaces import observation_column
from headrace.envs.gym.pettingzoo_wrappers import WithState
from headrace.envs.wrappers.central import CentralEnv, central
from headrace.policies.actor_critic import AsymmetricActorCritic

HEN = (Box(-1, 300, (3,)), Box(-1, 1, (2,)))
SMALL = {"num_envs": 2, "num_steps": 8, "hidden": (8,), "registered": False}


def farm():
    return Relay({"fox_0": 3, "fox_1": 5, "hen_0": 4}, spaces={"hen_0": HEN})


class Told(Returning):
    """Returning, with a state of its own: the count and its square."""

    state_space = Box(-np.inf, np.inf, (2, 1))

    def state(self):
        return np.array([[self.count], [self.count**2]])


def returning(kind=Returning):
    return kind({"a": 7, "b": 9})


def test_each_agent_has_the_observations_of_the_others_and_its_number():
    env = CentralEnv(envs.make(lambda: Relay({"a": 3, "b": 9, "c": 9}), 2))
    assert env.observation_space == Dict(observation=Box(0, 1000, (2,)), central_state=Box(-np.inf, np.inf, (7,)))
    rollout = stepped(env, 2)
    expected = {"a": [1, 2, 1, 0, 0], "b": [2, 0, 0, 1, 0], "c": [0, 1, 0, 0, 1]}  # numbers of the others, its own
    for place, (first, second, *number) in enumerate(expected.values()):
        for column in (2 * place, 2 * place + 1):  # agent * copies + copy
            state = rollout.observation.central_state[:, column]
            assert state.tolist() == [[t, first, t, second, *number] for t in range(3)]
    assert rollout.observation.observation[2].tolist() == [[2, 0], [2, 0], [2, 1], [2, 1], [2, 2], [2, 2]]


def test_an_agent_that_is_away_is_zeros_and_its_final_observation_counts():
    rollout = stepped(CentralEnv(envs.make(returning, 1)), 8)
    assert rollout.valid[:, 1].tolist() == [1, 1, 0, 0, 1, 0, 0, 0, 1]
    of_b = [[0, 1], [1, 1], [2, 1], [0, 0], [4, 1], [5, 1], [0, 0], [0, 0], [0, 1]]  # row 2, 5: the final ones
    of_a = [[t, 0] for t in range(8)] + [[0, 0]]  # its final observation is that of row 7
    assert rollout.observation.central_state[:, 0].tolist() == [[*b, 1, 0] for b in of_b]
    assert rollout.observation.central_state[:, 1].tolist() == [[*a, 0, 1] for a in of_a]


def test_groups_of_different_spaces_see_each_other():
    env = CentralEnv(envs.make(farm, 2))
    rollout = stepped(env, 1)
    fox, hen = rollout.observation.fox, rollout.observation.hen
    assert fox.central_state.shape == (2, 4, 8) and hen.central_state.shape == (2, 2, 7)
    assert fox.central_state[1, 2].tolist() == [1, 0, 1, 1, 1, 0, 1, 0]  # fox_0, hen, and the number of fox_1
    assert hen.central_state[1, 1].tolist() == [1, 0, 1, 1, 0, 0, 1]


def test_groups_that_share_columns_see_each_other():
    env = CentralEnv(envs.make(lambda: Relay({"a_0": 4, "a_1": 4, "b": 4}), 1, group_by="names"))
    assert not env.nested and list(env.groups) == ["a", "b"]
    state = stepped(env, 1).observation.central_state
    assert state[1].tolist() == [[1, 1, 1, 2, 1, 0, 0], [1, 0, 1, 2, 0, 1, 0], [1, 0, 1, 1, 0, 0, 1]]


def test_the_state_of_an_environment_is_taken_where_it_has_one():
    env = central(envs.make(partial(returning, Told), 1, with_state=True))
    rollout = stepped(env, 6)
    assert not isinstance(env, CentralEnv)
    assert rollout.observation.central_state[:5, 0].tolist() == [[t, t * t, 1, 0] for t in range(5)]
    assert rollout.observation.central_state[4, 1].tolist() == [4, 16, 0, 1]
    assert rollout.observation.observation[4, 1].tolist() == [4, 1]
    plain = central(envs.make(returning, 1, with_state=True))
    assert isinstance(plain, CentralEnv)  # it has no state


def test_action_masks_and_nested_observations_are_left_to_the_actor():
    class Masked(Relay):
        def observation_space(self, agent):
            return Dict(observation=Dict(x=Box(0, 9, (2, 1))), action_mask=Box(0, 1, (3,), np.int8))

        def look(self, agent):
            number = self.possible_agents.index(agent)
            mask = np.array([0, 1, 0], np.int8)
            return {"observation": {"x": np.array([[self.count], [number]], np.float32)}, "action_mask": mask}

    with closing(hr.Trainer("ppo", lambda: Masked({"a": 4, "b": 4}), **SMALL, central_critic=True)) as trainer:
        trainer.iterate()
        rollout = trainer.collector.rollout
        assert rollout.action[rollout.valid[:-1]].unique().tolist() == [1]
        assert rollout.observation.central_state.shape == (9, 4, 4)
        assert set(trainer.policy.observation_space) == {"action_mask", "observation"}


def test_rows_of_the_dead_are_not_learned_from():
    def learned(spoilt):
        with closing(hr.Trainer("ppo", farm, **SMALL, central_critic=True)) as trainer:
            rollout = trainer.collector.collect()
            dead = ~rollout.valid[:-1]
            assert 0 < dead.sum() < dead.numel()
            # the row after an end bootstraps nothing here: all ends are terminal
            if spoilt:
                rollout.value[:-1][dead] = 1e6
                for name, first, last in (("fox", 0, 4), ("hen", 4, 6)):
                    for _, column in getattr(rollout.observation, name):
                        column[:-1][dead[:, first:last]] = 1e6
            metrics = trainer.algorithm.update(rollout, 0.0)
            return metrics, trainer.policy.state_dict()

    (clean, weights), (spoilt, others) = learned(False), learned(True)
    assert all(torch.equal(clean[name], spoilt[name]) for name in clean)
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert any("critic_encoder" in name and name.endswith("count") for name in weights)


def test_advantages_of_an_agent_that_returns_are_those_of_two_episodes():
    options = {**SMALL, "num_envs": 1, "gamma": 0.5, "gae_lambda": 1.0, "normalize_return": False}
    with closing(hr.Trainer("ppo", returning, **options, central_critic=True)) as trainer:
        for parameter in trainer.policy.critic_out.parameters():
            parameter.data.zero_()
        rollout = trainer.collector.collect()
        targets = trainer.algorithm.process(rollout)
        alive = targets.valid
        assert alive.t().tolist() == [[1] * 7 + [0], [1, 1, 0, 0, 1, 0, 0, 0]]
        # rewards of a are 1 .. 7; those of b 1, 2, and after its return 5
        discounted = [sum(reward / 2**n for n, reward in enumerate(range(t, 8))) for t in range(1, 8)]
        assert targets.advantage[alive[:, 0], 0].tolist() == pytest.approx(discounted)
        assert targets.advantage[alive[:, 1], 1].tolist() == [1 + 2 / 2, 2, 5]
        trainer.algorithm.update(rollout, 0.0)
        count = trainer.policy.critic_encoder.members[0].normalizer.statistics.count
        assert count == 10  # rows of the living


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "appo", "impala", "trpo", "reinforce"])
def test_algorithms_with_such_a_critic_train_and_their_policies_act_without_it(algorithm, tmp_path):
    short = {"total_steps": 96, "log_folder": str(tmp_path), "progress": "none"}
    run = hr.train(algorithm, partial(returning, Told), central_critic=True, **SMALL, **short)
    policy = hr.load(run.path)
    assert type(policy) is AsymmetricActorCritic and policy.observation_space == Box(0, 1000, (2,))
    own = np.array([1, 0], np.float32)
    action, _ = policy.predict(own)
    whole = Group({"observation": torch.tensor([[1.0, 0.0]]), "central_state": torch.rand(1, 4)})
    assert policy.act(whole, None, None).action.item() == action
    assert run.evaluate(2).by_agent["a"] == (28.0, 28.0)
    found = hr.export(policy, "numpy", tmp_path / "policy.py")
    assert found.interface.startswith("observation float32 [N, 2] -> action")


def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted(tmp_path):
    options = {**SMALL, "num_envs": 4, "central_critic": True, "log_folder": str(tmp_path), "progress": "none"}
    whole = hr.train("ppo", "Pursuit", **options, total_steps=256)
    part = hr.train("ppo", "Pursuit", **options, total_steps=128)
    resumed = hr.train(resume=part.path, total_steps=256, progress="none")
    assert whole.steps == resumed.steps == 256
    for mine, its in zip(whole.policy.state_dict().values(), resumed.policy.state_dict().values(), strict=True):
        assert torch.equal(mine, its)


def test_actors_and_workers_collect_the_same():
    found = []
    for how in ({}, {"workers": 2}, {"actors": 2}):
        with closing(hr.Trainer("ppo", farm, **SMALL, central_critic=True, **how)) as trainer:
            rollout = trainer.collector.collect()
            names = ("reward", "valid", "log_prob", "value")
            fox = {name: x.clone() for name, x in rollout.observation.fox}
            found.append({**fox, **{name: getattr(rollout, name).clone() for name in names}})
    for other in found[1:]:
        value = other.pop("value")
        assert torch.allclose(value, found[0]["value"], rtol=1e-6)  # an actor has fewer rows, which round otherwise
        assert all(torch.equal(found[0][name], column) for name, column in other.items())


class Shared(Relay):
    """The reward of each agent is what the other one observes."""

    def step(self, actions):
        rewards = {agent: float(self.drawn[1 - k]) for k, agent in enumerate(("a", "b"))}
        seen, _, *rest = super().step(actions)
        return seen, rewards, *rest

    def look(self, agent):
        if agent == "a":
            self.drawn = np.random.default_rng(self.count + 100 * self.resets).uniform(0, 9, 2)
        return np.array([self.drawn[self.possible_agents.index(agent)], 0], np.float32)


def test_a_critic_of_all_agents_knows_what_one_cannot_observe():
    explained = {}
    for critic in (True, False):
        options = {"num_envs": 8, "num_steps": 32, "gamma": 0.0, "learning_rate": 1e-2, "central_critic": critic}
        with closing(hr.Trainer("ppo", lambda: Shared({"a": 4, "b": 4}), registered=False, **options)) as trainer:
            for _ in range(20):
                metrics = trainer.iterate().metrics
            explained[critic] = metrics["explained_variance"]
    assert explained[True] > 0.4 and explained[False] < 0.1, explained


def test_stacked_frames_of_a_life_are_not_those_of_an_earlier_one():
    rollout = stepped(envs.make(returning, 1, frame_stack=2), 5)
    assert rollout.observation[[1, 2, 4, 5], 1, :, 0].tolist() == [[0, 1], [1, 2], [4, 4], [4, 5]]


@pytest.mark.parametrize(
    ("algorithm", "env", "options", "wrong"),
    [
        ("ppo", "CartPole-v1", {}, "central_critic is for several agents, and CartPole-v1 has one: leave it out"),
        (
            "dqn",
            returning,
            {"hidden": (8,)},
            "central_critic is for ppo, a2c, appo, impala, reinforce, trpo, not for dqn",
        ),
        (
            "ppo",
            returning,
            {"recurrent": "gru"},
            "central_critic does not go with recurrent='gru': leave one of them out",
        ),
        ("ppo", returning, {"shared": True}, "central_critic does not go with shared=True"),
        ("ppo", returning, {"critic_members": ("x",)}, r"critic_members=\('x',\): leave one of them out"),
        ("ppo", returning, {"agent_info": [0, 1, 0, 1]}, "central_critic does not go with agent_info"),
    ],
)
def test_what_is_refused(algorithm, env, options, wrong):
    with pytest.raises(ValueError, match=wrong):
        hr.Trainer(algorithm, env, **{**SMALL, **options}, central_critic=True)


def test_observations_and_states_that_are_no_vectors_are_named():
    image = Box(0, 255, (8, 8), np.uint8)
    with pytest.raises(
        TypeError, match=r"those of .* have Box\(0, 255, \(8, 8\), uint8\): give the environment a state"
    ):
        CentralEnv(envs.make(lambda: Relay({"a": 4, "b": 4}, spaces={x: (image, Discrete(2)) for x in "ab"}), 1))
    assert observation_column(image).dtype == torch.uint8

    class Odd(Told):
        state_space = Discrete(3)

    class Short(Told):
        state_space = Box(-1, 1, (3,))

    with pytest.raises(TypeError, match=r"the state_space of .* is Discrete\(3\): give a Box"):
        WithState(returning(Odd))
    with pytest.raises(ValueError, match=r"state\(\) of .* has 2 numbers, and its state_space 3"):
        WithState(returning(Short)).reset()
