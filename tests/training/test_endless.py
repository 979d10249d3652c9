"""A training in which no episode ends says so once, with the remedy."""

import gymnasium
import numpy as np
import pytest

import headrace as hr

SMALL = {"num_envs": 2, "num_steps": 100, "hidden": (4,), "epochs": 1, "registered": False, "progress": "plain"}


class Endless(gymnasium.Env):
    """A walk that ends after `last` steps, or never."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, last=None):
        self.last = last

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, action, np.float32), 1.0, self.steps == self.last, False, {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"total_steps": 4_000}, 1),
        ({"total_steps": 1_800}, 0),  # 900 of each environment may be less than an episode
        ({"total_steps": 4_000, "time_limit": 1_500}, 0),
        ({"total_steps": 4_000, "env_kwargs": {"last": 150}}, 0),
    ],
)
def test_endless_episodes_are_named_once(in_tmp, capsys, given, said):
    hr.train("ppo", Endless, max_seconds=60, **SMALL, **given)
    found = [line for line in capsys.readouterr().out.splitlines() if "no episode of" in line]
    assert len(found) == said
    assert all("has ended in 1,000 steps of each" in line and "give time_limit" in line for line in found)


def test_without_a_known_end_of_the_training_it_takes_longer():
    from headrace.training.episodes import Episodes

    env = hr.make(Endless, 2)
    episodes = Episodes(100)
    assert episodes.note(env, 9_999, 0.0) == () and episodes.note(env, 999, 1.0) == ()
    (line,) = episodes.note(env, 10_000, 0.0)
    assert "in 10,000 steps" in line and episodes.note(env, 10_100, 0.5) == ()
    env.close()
