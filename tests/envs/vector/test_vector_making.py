"""Vectors of environments by make() and train(), and what is refused of them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

import headrace as hr
from headrace import envs
from headrace.envs.vector.adapter import VectorAdapter
from headrace.envs.vector.gymnasium_vector import GymnasiumSource
from tests.envs.vector.test_adapter import MODES, NUM_ENVS, Unmasked, counts, run


def test_make_by_backend_takes_the_vector_that_an_id_brings():
    env = envs.make("CartPole-v1", 3, backend="vector")
    assert env.backend == "vector" and env.max_steps == 500
    assert run(env, 30).valid.sum() < 93, "some ended"


def test_make_takes_functions_and_classes_of_many():
    def many(num_envs):
        return counts(AutoresetMode.SAME_STEP, num_envs=num_envs)

    class Many(Unmasked):
        def __init__(self, num_envs):
            super().__init__(AutoresetMode.NEXT_STEP, num_envs)

    assert envs.make(many, 3).num_envs == 3
    assert envs.make(Many, 5).num_envs == 5
    with pytest.raises(ValueError, match="gave 4 environments where 2 were asked for"):
        envs.make(lambda num_envs: counts(AutoresetMode.SAME_STEP), 2)
    with pytest.raises(TypeError, match="let the function take a parameter `num_envs`"):
        envs.make(lambda: counts(AutoresetMode.SAME_STEP), 2)


def test_what_make_refuses():
    with pytest.raises(ValueError, match="does not come as a vector"):
        envs.make("MountainCar-v0", 2, backend="vector")
    with pytest.raises(TypeError, match="takes no wrappers"):
        envs.make("CartPole-v1", 2, backend="vector", wrappers=[lambda env: env])
    silent = Unmasked(AutoresetMode.NEXT_STEP)
    silent.metadata = {}
    with pytest.raises(ValueError, match="set it to gymnasium"):
        envs.adapted(silent)
    with pytest.raises(TypeError, match="has no device, observation_space"):
        envs.adapted(type("Half", (), {"num_envs": 1, "step": 0, "reset": 0, "action_space": 0})())


@pytest.mark.parametrize("mode", MODES)
def test_training_on_a_vector_env(mode):
    trainer = hr.Trainer("ppo", counts(mode), num_steps=16, epochs=1)
    for _ in range(3):
        metrics = trainer.iterate().metrics
    assert trainer.config.num_envs == NUM_ENVS
    assert trainer.steps < 3 * 16 * NUM_ENVS and trainer.episodes.count > 10
    assert np.isfinite(metrics["loss"])


def test_evaluating_many_at_once():
    def many(num_envs):
        return counts(AutoresetMode.SAME_STEP, num_envs=num_envs)

    trainer = hr.Trainer("ppo", many, num_envs=3, num_steps=16, epochs=1)
    evaluation = hr.evaluate(trainer.policy, many, episodes=3)
    assert evaluation.lengths == (3, 4, 5)


class Wrong(VectorEnv):
    """Gives one wrong value at every step."""

    num_envs, single_observation_space, single_action_space = NUM_ENVS, Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, place, value):
        self.place, self.value = place, value
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed=None, options=None):
        return np.zeros((NUM_ENVS, 2), np.float32), {}

    def step(self, actions):
        outcome = [np.zeros((NUM_ENVS, 2), np.float32), np.zeros(NUM_ENVS), *np.zeros((2, NUM_ENVS), bool), {}]
        outcome[self.place] = self.value
        return tuple(outcome)


@pytest.mark.parametrize(
    ("place", "value", "wrong"),
    [
        (0, np.zeros((1, 2), np.float32), r"the observation of Wrong has the shape \[1, 2\].* \[4, 2\]"),
        (0, np.zeros(2, np.float32), r"has the shape \[2\]"),
        (
            0,
            (np.zeros((4, 2), np.float32), {}),
            "is a dict or tuple, and its observation_space is one array: give what",
        ),
        (1, 1.0, r"the reward of Wrong has the shape \[\]: give that of 4 environments, \[4\]"),
        (1, np.ones((4, 1)), r"has the shape \[4, 1\]"),
        (1, ["1"] * 4, r"the reward of Wrong is \['1'.*no array of numbers"),
        (2, False, "terminated of Wrong has the shape"),
        (3, np.array(["False"] * 4), "truncated of Wrong is .*no array of numbers"),
    ],
)
def test_what_would_be_stretched_to_all_environments_is_refused(place, value, wrong):
    with pytest.raises((ValueError, TypeError), match=wrong):
        run(VectorAdapter(GymnasiumSource(Wrong(place, value))), steps=1)
