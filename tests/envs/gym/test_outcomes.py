"""Results of an environment's step() are read in the same way everywhere: one number is one number, in any type."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.checks import environment
from headrace.data.spaces import Box, Discrete
from headrace.envs.gym.columns import as_flag, as_number, outcome_of
from headrace.policies.actor_critic import ActorCritic

SEEN, ACTED = Box(-1, 9, (1,), np.float32), Discrete(2)
ONE = [
    *(1, True, 1.0, np.float32(1), np.int64(1), np.bool_(True), np.float16(1), Fraction(1), Decimal(1)),
    *(np.array(1.0), np.array([1.0]), np.array([[1]]), np.array([True]), np.array([Fraction(1)], object)),
    *([1.0], (1,), torch.tensor(1.0), torch.tensor([[1]]), torch.ones(1, dtype=torch.bfloat16)),
    torch.ones(1, requires_grad=True),
]
NOT_ONE = [
    "1",
    None,
    np.array("1"),
    np.zeros(2),
    [1.0, 2.0],
    [],
    np.zeros((0, 1)),
    torch.zeros(2),
    1j,
    {},
    np.array([None]),
]


@pytest.mark.parametrize("value", ONE, ids=repr)
def test_one_number_is_one_number(value):
    assert as_number(value, "reward") == 1.0 and type(as_number(value, "reward")) is float
    assert as_flag(value, "terminated") is True
    assert outcome_of(("seen", value, value, 0, {}))[1:4] == (1.0, True, False)


@pytest.mark.parametrize("value", NOT_ONE, ids=repr)
def test_what_is_not_one_number_is_refused_with_its_value(value):
    with pytest.raises(TypeError, match=r"its reward is .*: give one number"):
        as_number(value, "reward")
    with pytest.raises(TypeError, match=r"step\(\) gave .* its terminated is .*: give one number"):
        outcome_of(("seen", 1.0, value, False, {}))


def test_the_shape_is_said():
    with pytest.raises(TypeError, match=r"its reward is array\(\[0., 0.\]\), a ndarray of shape \(2,\)"):
        as_number(np.zeros(2), "reward")


class Wrapped(gymnasium.Env):
    """Three steps; every number that step() gives is in the form that `form` makes of it."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = SEEN, ACTED
    form = staticmethod(lambda number: np.array([number]))

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        ended = self.form(self.steps == 3)
        return np.full(1, self.steps, np.float32), self.form(2.0), ended, self.form(False), {"is_success": ended}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


class OfTensors(Wrapped):
    form = staticmethod(lambda number: torch.tensor([[number]]))


class OfFractions(Wrapped):
    form = staticmethod(Fraction)


SMALL = {"num_envs": 2, "num_steps": 8, "total_steps": 40, "progress": "none", "hidden": (8,), "minibatch_size": 8}


@pytest.mark.parametrize("kind", [Wrapped, OfTensors, OfFractions])
def test_a_training_its_evaluations_and_its_video_read_the_same(kind, tmp_path):
    settings = {"log_folder": str(tmp_path), "window": 2, "log_info": ("is_success",), **SMALL}
    run = hr.train("ppo", kind, eval_freq=16, reward_scale=0.5, **settings)
    assert run.metrics["return"] == run.metrics["eval_return"] == 6.0 and run.metrics["success_rate"] == 1.0
    assert hr.evaluate(run.policy, kind, 3).returns == (6.0,) * 3
    assert hr.play(run.policy, kind, tmp_path / "film.gif").returns == (6.0,)


@pytest.mark.parametrize("kind", [Wrapped, OfFractions])
def test_workers_read_the_same(kind):
    policy = ActorCritic(SEEN, ACTED, hidden=(8,))
    assert hr.evaluate(policy, kind, 3, workers=1).returns == (6.0,) * 3
    with closing(hr.make(kind, 1, workers="auto")) as env:  # which measures a step
        assert env.num_envs == 1


@pytest.mark.parametrize("workers", [None, 1])
def test_make_vec_reads_the_same(workers):
    envs = hr.make_vec(OfTensors, 2, workers=workers)
    envs.reset(seed=1)
    _, rewards, terminations, truncations, _ = envs.step(np.zeros(2, int))
    assert rewards.tolist() == [2.0, 2.0] and not terminations.any() and not truncations.any()
    envs.close()


def test_a_check_says_that_others_may_not_understand_it():
    report = environment.check(Wrapped, steps=30, measure=0)
    notes = {one.check: one.found for one in report.findings if one.outcome == "note" and one.advice}
    assert "reward is array([2.]), a ndarray" in notes["rewards"]
    assert "terminated is array([False]), a ndarray" in notes["endings"]
    wrong = {one.check for one in report.findings if one.outcome == "wrong"}
    assert wrong <= {"Gymnasium's checker"}  # which takes flags of type bool alone


def test_sb3_reads_the_same():
    from headrace.sb3 import PPO

    model = PPO("MlpPolicy", OfTensors(), n_steps=16, batch_size=8)
    model.learn(40)
    assert model.ep_info_buffer[0]["r"] == 6.0 and set(model.ep_success_buffer) <= {1.0}


class Duo:
    possible_agents: ClassVar = ["a", "b"]
    metadata: ClassVar = {"render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def observation_space(self, agent):
        return SEEN

    def action_space(self, agent):
        return ACTED

    def _each(self, value):
        return dict.fromkeys(self.possible_agents, value)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        return self._each(np.zeros(1, np.float32)), self._each({})

    def step(self, actions):
        self.steps += 1
        if self.steps == 3:
            self.agents = []
        ended = np.array([self.steps == 3])
        return (
            *(self._each(np.ones(1, np.float32)), self._each(torch.full((1,), 2.0)), self._each(ended)),
            *(self._each(np.array([False])), self._each({})),
        )

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)

    def close(self):
        pass


def test_several_agents_are_read_the_same(tmp_path):
    run = hr.train("ppo", Duo, reward_scale=0.5, eval_freq=16, log_folder=str(tmp_path), window=2, **SMALL)
    assert run.metrics["return"] == run.metrics["eval_return"] == 6.0
    assert hr.play(run.policy, Duo, tmp_path / "film.gif").by_agent == ({"a": 6.0, "b": 6.0},)


class Old(Wrapped):
    """step() of the package gym."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class Lacking(Wrapped):
    """A Dict of which a member is missing after the first step."""

    observation_space = gymnasium.spaces.Dict(
        {"eyes": Box(-1, 1, (2,)), "arm": gymnasium.spaces.Dict(x=Box(-1, 1, (1,)))}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return {"eyes": np.zeros(2), "arm": {}}, 0.0, False, False, {}


@pytest.mark.parametrize("options", [{}, {"workers": 1}])
def test_a_step_of_four_values_inside_a_wrapper_is_told_by_its_class(options):
    env = hr.make(Old, 2, time_limit=5, **options)
    with closing(env), pytest.raises(TypeError, match=r"step\(\) of Old gave 4 values: it must give five"):
        stepped(env)


def test_a_checker_of_gymnasium_does_not_hide_it():
    gymnasium.register("Old-v7", Old)
    try:
        with closing(hr.make("Old-v7", 1)) as env, pytest.raises(TypeError, match="of Old gave 4 values"):
            stepped(env)
    finally:
        del gymnasium.registry["Old-v7"]


def test_a_key_that_an_observation_lacks_is_named():
    with (
        closing(hr.make(Lacking, 1)) as env,
        pytest.raises(ValueError, match="in 'arm', it has no 'x', and no other key"),
    ):
        stepped(env)


def stepped(env):
    rollout = env.rollout(1, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    env.step(rollout, 0)
