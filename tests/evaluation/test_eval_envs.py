"""Evaluations close all environments that they make, and no result depends on the number of these."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

import headrace as hr
from headrace.checks import environment
from headrace.core.stopping import Stopped
from headrace.data.spaces import Box, Dict, Discrete
from headrace.envs.gym.inline import env_seed
from headrace.envs.wrappers.conditioning import InformedEnv
from headrace.evaluation.evaluator import Evaluator
from headrace.evaluation.playing import _evaluation_seed
from headrace.policies.actor_critic import ActorCritic

SEEN, ACTED = Box(-1, 1, (3,), np.float32), Discrete(3)
SMALL = {"num_steps": 8, "total_steps": 48, "progress": "none", "hidden": (8,), "minibatch_size": 8, "window": 2}


class Simulator(gymnasium.Env):
    """Takes one of LICENCES, and plays episodes of 1 to 12 steps, as its seed has it; rewards are actions."""

    observation_space, action_space = SEEN, ACTED
    licences: ClassVar[int] = 100
    alive: ClassVar[list[Simulator]] = []
    made: ClassVar[int] = 0
    most: ClassVar[int] = 0
    seeds: ClassVar[list[int]] = []
    steps: ClassVar[int] = 0

    def __init__(self):
        if len(Simulator.alive) == Simulator.licences:
            raise RuntimeError("all licences are in use")
        Simulator.alive.append(self)
        Simulator.made += 1
        Simulator.most = max(Simulator.most, len(Simulator.alive))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Simulator.seeds.append(seed)
        self.left = int(self.np_random.integers(1, 13))
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.left -= 1
        Simulator.steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action), self.left == 0, False, {}

    def close(self):
        Simulator.alive.remove(self)


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    Simulator.licences, Simulator.made, Simulator.most, Simulator.steps = 100, 0, 0, 0
    Simulator.alive.clear()
    Simulator.seeds.clear()
    yield
    assert not Simulator.alive


def policy(seen=SEEN, acted=ACTED):
    return ActorCritic(seen, acted, hidden=(8,), seed=3)


class Duo:
    """Two kinds of agents, which leave after different numbers of steps."""

    possible_agents: ClassVar = ["a_0", "a_1", "b_0"]
    metadata: ClassVar = {}

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return ACTED

    def _seen(self):
        return {agent: self.random.uniform(-1, 1, 3).astype(np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.left = {agent: int(self.random.integers(1, 12)) for agent in self.agents}
        return self._seen(), {}

    def step(self, actions):
        here, seen = self.agents, self._seen()
        self.left = {agent: self.left[agent] - 1 for agent in here}
        self.agents = [agent for agent in here if self.left[agent]]
        rewards = {agent: float(actions[agent]) for agent in here}
        return seen, rewards, {agent: not self.left[agent] for agent in here}, dict.fromkeys(here, False), {}

    def close(self):
        pass


def as_vector(num_envs):
    return gymnasium.vector.SyncVectorEnv([Simulator] * num_envs)


def recurrent():
    trainer = hr.Trainer("ppo", Simulator, num_envs=1, num_steps=8, recurrent="gru", rnn_size=16, minibatch_size=8)
    trainer.close()
    return trainer.policy


KINDS = {
    "plain": (policy, Simulator, {}),
    "workers": (policy, Simulator, {"workers": 2}),
    "vector": (policy, as_vector, {}),
    "recurrent": (recurrent, Simulator, {}),
    "agents": (policy, Duo, {}),
    "agents in workers": (policy, Duo, {"workers": 2}),
    "cut off": (policy, Simulator, {"most_steps": 5}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_result_depends_on_how_many_environments_there_are(kind):
    make, source, options = KINDS[kind]
    own = make()
    for deterministic in (True, False):
        every, *fewer = (
            hr.evaluate(own, source, 11, 5, deterministic, eval_envs=number, **options) for number in (11, 1, 4)
        )
        for other in fewer:
            assert every.returns == other.returns and every.lengths == other.lengths and every.cut == other.cut
            assert every.by_agent == other.by_agent
        assert len(set(every.lengths)) > 2


@pytest.mark.parametrize("info", [np.arange(4) % 3, Box(0, 1, (2,), np.float32)])
@pytest.mark.parametrize("source", [Simulator, Duo])
def test_an_episode_has_its_own_agent_info(info, source):
    numbers = np.repeat(info, 3) if isinstance(info, np.ndarray) and source is Duo else info
    with_info = InformedEnv(hr.make(source, 4), numbers)
    own = policy(with_info.observation_space)
    with_info.close()
    every, fewer = (
        hr.evaluate(own, source, 7, deterministic=False, agent_info=numbers, eval_envs=number) for number in (7, 3)
    )
    assert every.returns == fewer.returns and len(set(every.returns)) > 2


def test_each_episode_has_a_seed_of_its_own_and_is_reset_once():
    result = hr.evaluate(policy(), Simulator, 10, 4, eval_envs=3)
    seeds = [env_seed(_evaluation_seed(4), episode) for episode in range(10)]
    assert Simulator.seeds == seeds and Simulator.made == Simulator.most == 3
    assert Simulator.steps == sum(result.lengths)  # nobody steps after the end, nor plays an eleventh episode


def test_short_episodes_are_not_favoured():
    lengths = [int(np.random.default_rng(env_seed(_evaluation_seed(0), i)).integers(1, 13)) for i in range(30)]
    assert list(hr.evaluate(policy(), Simulator, 30, eval_envs=4).lengths) == lengths


class Tired(Simulator):
    """Simulator whose episodes differ: each one has one step more than the one before."""

    def __init__(self):
        super().__init__()
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.episodes += 1
        self.left = self.episodes
        return found


def test_episodes_are_given_to_environments_by_their_number_whatever_their_length():
    assert hr.evaluate(policy(), Tired, 7, eval_envs=3).lengths == (1, 1, 1, 2, 2, 2, 3)
    with hr.Workers(2) as workers:
        assert hr.evaluate(policy(), Tired, 7, eval_envs=3, workers=workers).lengths == (1, 1, 1, 2, 2, 2, 3)


def test_without_a_training_there_are_few():
    hr.evaluate(policy(), Simulator, 30)
    assert Simulator.most == Simulator.made == 8
    env = hr.make(Simulator, 3)
    hr.evaluate(policy(), env, 10)
    env.close()
    assert Simulator.made == 8 + 3 + 3
    hr.evaluate(policy(), as_vector, 20, training_envs=2)
    assert Simulator.made == 14 + 2


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
def test_a_wrong_number_is_refused(wrong):
    with pytest.raises(ValueError, match="eval_envs must be a whole number of environments, 1 or more, got"):
        hr.evaluate(policy(), Simulator, eval_envs=wrong)


def test_compiled_environments_are_as_many_as_episodes(tmp_path):
    env = hr.make("Catch", 2)
    own = policy(env.observation_space, env.action_space)
    assert len(hr.evaluate(own, "Catch", 30, training_envs=2).returns) == 30
    with pytest.raises(ValueError, match=r"evaluated compiled, .* for each episode: leave eval_envs=3 out"):
        hr.evaluate(own, "Catch", 30, eval_envs=3)
    with pytest.raises(ValueError, match="leave eval_envs=3 out"):
        hr.train("ppo", "Catch", eval_envs=3, log_folder=str(tmp_path), **SMALL)


def test_an_evaluator_keeps_its_environments():
    with_licences = Evaluator(Simulator, eval_envs=2)
    own = policy()
    first = [with_licences.evaluate(own, 5, seed).returns for seed in (1, 2, 1)]
    assert first[0] == first[2] == hr.evaluate(own, Simulator, 5, 1).returns != first[1]
    assert with_licences.evaluate(own, 1).returns == first[0][:0] + hr.evaluate(own, Simulator, 1).returns
    assert len(Simulator.alive) == 2
    with_licences.close()
    with_licences.close()
    assert not Simulator.alive and with_licences.evaluate(own, 5, 1).returns == first[0]
    with_licences.close()


def test_an_evaluation_after_one_that_was_stopped_is_whole():
    own, kept = policy(), {kind: Evaluator(source, eval_envs=2) for kind, source in (("one", Simulator), ("two", Duo))}
    for evaluator in kept.values():
        whole = evaluator.evaluate(own, 5)
        with pytest.raises(Stopped):
            evaluator.evaluate(own, 5, watch=lambda ended, steps: steps == 3)
        again = evaluator.evaluate(own, 5)
        assert again.returns == whole.returns and again.by_agent == whole.by_agent
        evaluator.close()


class Failing(Simulator):
    raises: ClassVar[type[BaseException]] = ValueError

    def step(self, action):
        if Simulator.steps >= 20:
            raise self.raises("it broke")
        return super().step(action)


@pytest.mark.parametrize("raises", [ValueError, KeyboardInterrupt])
def test_environments_are_closed_whatever_ends_the_evaluation(raises, tmp_path):
    Failing.raises = raises
    with pytest.raises(raises):
        hr.evaluate(policy(), Failing, 30, eval_envs=3)
    assert Simulator.made == 3 and not Simulator.alive
    Simulator.steps = 0
    with pytest.raises((raises, RuntimeError)):  # in a training, an environment's KeyboardInterrupt is an error
        hr.train("ppo", Failing, num_envs=2, eval_freq=16, log_folder=str(tmp_path), **SMALL)
    with pytest.raises(Stopped):
        hr.evaluate(policy(), Simulator, 30, watch=lambda ended, steps: True)


def test_environments_that_cannot_all_be_made_are_closed():
    Simulator.licences = 3
    with pytest.raises(RuntimeError, match="all licences are in use") as caught:
        hr.evaluate(policy(), Simulator, 30, eval_envs=5)
    assert any("eval_envs is how many at most" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("vector", [False, True])
def test_a_training_makes_its_environments_and_those_of_its_evaluations_once(vector, tmp_path):
    options = {"num_envs": 2, "log_folder": str(tmp_path), **SMALL}
    source = as_vector if vector else Simulator
    run = hr.train("ppo", source, eval_freq=16, **options)
    assert Simulator.made == 2 + 2 and Simulator.most == 4
    Simulator.made = Simulator.most = 0
    run.evaluate(20)
    assert Simulator.made == Simulator.most == 2
    Simulator.made = Simulator.most = 0
    hr.train("ppo", source, **options)  # which compares the last policy with the best at its end
    assert Simulator.made <= 2 + 2 and Simulator.most == 2
    Simulator.made = Simulator.most = 0
    with hr.Training("ppo", source, eval_envs=1, **options) as training:
        for _ in training:
            training.evaluate(3)
    assert Simulator.made == 2 + 1 and Simulator.most == 3 and training.run.eval_env_kwargs["eval_envs"] == 1


def _noted(path):
    class Noted(Simulator):
        def __init__(self):
            self._note("+")

        def close(self):
            self._note("-")

        def _note(self, what):
            with open(path, "a") as file:
                file.write(what)

    return Noted()


def test_a_process_for_evaluations_makes_them_once_too(tmp_path):
    log = tmp_path / "log"
    options = {"num_envs": 2, "eval_freq": 16, "parallel_evaluation": True, "log_folder": str(tmp_path), **SMALL}
    hr.train("ppo", partial(_noted, str(log)), **options)
    assert sorted(log.read_text()) == sorted("+-" * 4)


class Port(Simulator):
    taken: ClassVar[set[int]] = set()

    def __init__(self, port):
        if port in Port.taken:
            raise OSError(98, "Address already in use")
        super().__init__()
        Port.taken.add(port)
        self.port = port

    def close(self):
        super().close()
        Port.taken.remove(self.port)


def test_functions_of_a_list_that_the_training_leaves_are_for_evaluations(tmp_path):
    ports = [partial(Port, number) for number in range(3)]
    options = {"num_envs": 2, "log_folder": str(tmp_path), **SMALL}
    run = hr.train("ppo", ports, eval_freq=16, **options)  # two train, the third one evaluates
    assert Simulator.made == 3 and Simulator.most == 3
    assert len(run.evaluate(5).returns) == 5
    run = hr.train("ppo", ports[:2], **options)  # those of the training are closed before the last comparison
    assert len(run.evaluate(5).returns) == 5
    with pytest.raises(OSError, match="Address already in use") as caught:
        hr.train("ppo", ports[:2], eval_freq=16, **options)
    assert any("of a list of functions, they have those beyond num_envs" in note for note in caught.value.__notes__)
    Port.taken.clear()


class Kind(Simulator):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.left = self.length
        return found


def test_an_episode_is_of_the_same_kind_whatever_the_number_of_environments():
    kinds = [partial(Kind, length) for length in (2, 5, 9)]
    for options in ({}, {"eval_envs": 3}, {"eval_envs": 5}, {"eval_envs": 30}, {"training_envs": 4}, {"workers": 2}):
        assert hr.evaluate(policy(), kinds, 7, **options).lengths == (2, 5, 9, 2, 5, 9, 2)
    with pytest.raises(ValueError, match=r"a list of 3, .*: give eval_envs=2 as a multiple of 3"):
        hr.evaluate(policy(), kinds, 7, eval_envs=2)


class Goal(Simulator):
    space = Box(-9, 9, (2,), np.float32)
    observation_space = Dict({"observation": space, "achieved_goal": space, "desired_goal": space})

    def _goals(self):
        return {name: np.zeros(2, np.float32) for name in self.observation_space}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._goals(), {}

    def step(self, action):
        return (self._goals(), *super().step(action)[1:])

    def compute_reward(self, achieved, desired, info):
        return np.zeros(len(achieved), np.float32)

    def compute_terminated(self, achieved, desired, info):
        return np.zeros(len(achieved), bool)


def test_hindsight_takes_the_rewards_of_goals_from_an_environment_that_there_is(tmp_path):
    settings = {"total_steps": 60, "learning_starts": 20, "batch_size": 8, "buffer_size": 100, "hindsight": 4}
    trainer = hr.Trainer("dqn", Goal, num_envs=2, hidden=(8,), **settings)
    for _ in range(30):
        trainer.iterate()
    assert Simulator.made == 2
    trainer.close()
    trainer = hr.Trainer("dqn", Goal, num_envs=2, hidden=(8,), workers=1, **settings)
    assert len(Simulator.alive) == 1  # in this process
    trainer.close()


def test_a_check_has_one_at_a_time():
    Simulator.licences = 1
    report = environment.check(Simulator, steps=50, measure=0)
    assert Simulator.most == 1 and not [finding for finding in report.findings if finding.outcome == "wrong"]
