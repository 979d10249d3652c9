"""make_vec() of a list of functions: environment i is what function i makes, as in SyncVectorEnv."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv

import headrace as hr

WORKERS = pytest.mark.parametrize("workers", [None, 1, 2])


class Tagged(gymnasium.Env):
    """Gives its number as its observation."""

    action_space = Discrete(2)

    def __init__(self, tag, size=1):
        self.tag, self.observation_space = tag, Box(-99, 99, (size,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(self.observation_space.shape, self.tag, np.float32), {f"from_{self.tag}": self.tag}

    def step(self, action):
        return np.full(self.observation_space.shape, self.tag, np.float32), self.tag / 2, False, False, {}


def tagged(number, **options):
    return lambda: Tagged(number, **options)


@WORKERS
@pytest.mark.parametrize("number", [3, 5])
def test_each_function_makes_the_environment_of_its_number(workers, number):
    envs = hr.make_vec([tagged(k) for k in range(3)], number, workers=workers)
    tags = [k % 3 for k in range(number)]
    expected = SyncVectorEnv([tagged(tag) for tag in tags])
    (seen, infos), (known, known_infos) = (each.reset(seed=3) for each in (envs, expected))
    assert seen[:, 0].tolist() == known[:, 0].tolist() == tags and envs.get_attr("tag") == tuple(tags)
    assert sorted(infos) == sorted(known_infos) and infos["from_2"].tolist() == known_infos["from_2"].tolist()
    assert envs.step(np.zeros(number, int))[1].tolist() == [tag / 2 for tag in tags]
    assert envs.np_random_seed == expected.np_random_seed == tuple(3 + k for k in range(number))
    draws = [[random.random() for random in each.np_random] for each in (envs, expected)]
    assert draws[0] == draws[1]
    envs.close()


def test_a_list_alone_gives_as_many_as_it_has():
    assert hr.make_vec([tagged(k) for k in range(3)]).num_envs == 3
    assert hr.make_vec(tagged(1)).num_envs == hr.make_vec("CartPole-v1").num_envs == 1


@WORKERS
@pytest.mark.parametrize("place", [1, 3])
def test_other_spaces_are_refused(workers, place):
    functions = [tagged(k, size=1 + (k == place)) for k in range(4)]
    with pytest.raises(RuntimeError, match="space"):
        hr.make_vec(functions, 4, workers=workers)


def test_after_close_nothing_is_answered():
    envs = hr.make_vec(tagged(1), 2, workers=2)
    envs.close()
    for call in (envs.reset, lambda: envs.step(np.zeros(2, int)), lambda: envs.get_attr("tag")):
        with pytest.raises(ClosedEnvironmentError, match="are closed: make others"):
            call()


def test_a_step_that_was_not_started_has_no_outcome():
    envs = hr.make_vec(tagged(1), 2, workers=1)
    envs.reset()
    with pytest.raises(NoAsyncCallError, match=r"call step_async\(\) first"):
        envs.step_wait()
    envs.step_async(np.zeros(2, int))
    assert envs.step_wait()[1].tolist() == [0.5, 0.5]
    envs.close()
