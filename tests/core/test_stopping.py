"""An exception of close() costs nothing of what was done before."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import headrace as hr
from headrace.core.stopping import close, close_each, closed
from headrace.data.spaces import Box, Discrete

SMALL = {"num_envs": 2, "num_steps": 8, "total_steps": 48, "progress": "none", "hidden": (8,), "minibatch_size": 8}


class Thing:
    def __init__(self, raises=None):
        self.raises, self.closed = raises, 0

    def close(self):
        self.closed += 1
        if self.raises:
            raise self.raises


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(3)])
def test_what_close_raises_is_a_warning_that_names_it(error):
    with pytest.warns(UserWarning, match=rf"closing the arm raised {type(error).__name__}: {error}"):
        close(Thing(error), "the arm")
    with pytest.warns(UserWarning, match="closing the arm"), closed(Thing(error), "the arm") as thing:
        pass
    assert thing.closed == 1


def test_each_is_closed_whatever_the_others_raise():
    things = [Thing(), Thing(OSError("gone")), Thing(KeyboardInterrupt()), Thing()]
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="gone"):
        close_each(things, "an arm")
    assert [thing.closed for thing in things] == [1, 1, 1, 1]


class Locked(gymnasium.Env):
    """close() raises, as that of a simulator whose connection is gone."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space, action_space = Box(-1, 9, (1,), np.float32), Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 3, False, {}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)

    def close(self):
        raise OSError("the connection is gone")


WORDS = r"closing .*raised OSError: the connection is gone"


@pytest.mark.parametrize("options", [{}, {"eval_freq": 16}])
def test_a_run_is_whole(options, tmp_path):
    with pytest.warns(UserWarning, match=WORDS):
        run = hr.train("ppo", Locked, log_folder=str(tmp_path), **options, **SMALL)
    assert run.steps >= 48 and Path(run.path / "last").is_dir()
    with pytest.warns(UserWarning, match=WORDS):
        assert run.evaluate(5).returns == (3.0,) * 5
    with pytest.warns(UserWarning, match=WORDS):
        assert hr.play(run.policy, Locked, tmp_path / "film.gif").returns == (3.0,)


def test_a_run_in_workers_is_whole(tmp_path):
    run = hr.train("ppo", Locked, log_folder=str(tmp_path), workers=1, eval_freq=16, parallel_evaluation=True, **SMALL)
    assert run.steps >= 48 and run.metrics["return"] == 3.0


@pytest.mark.filterwarnings("ignore:closing")
def test_a_vector_that_cannot_be_closed_is_none_worse(tmp_path):
    class Vector(gymnasium.vector.SyncVectorEnv):
        def close(self, **how):
            raise OSError("the connection is gone")

    run = hr.train("ppo", lambda num_envs: Vector([Locked] * num_envs), log_folder=str(tmp_path), **SMALL)
    assert run.steps >= 48


@pytest.mark.parametrize("fails", [False, True])
def test_every_environment_of_make_vec_is_closed(fails):
    closed = []

    class Counted(Locked):
        def close(self):
            closed.append(self)
            super().close()

    def last():
        if fails:
            raise ValueError("no licence is left")
        return Counted()

    with pytest.warns(UserWarning, match=WORDS):
        if fails:
            with pytest.raises(ValueError, match="no licence is left"):
                hr.make_vec([Counted, Counted, last])
        else:
            hr.make_vec([Counted, Counted, last]).close()
    assert len({*map(id, closed)}) == len(closed) == (2 if fails else 3)
