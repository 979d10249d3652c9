"""Scores of members whose episodes are longer than an interval, and limits that a population does not take."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest

from headrace.populations.population_record import RECORD
from headrace.populations.train_population import population

SMALL = {"num_envs": 4, "num_steps": 16, "hidden": [8], "registered": False, "threads": 1}
GIVEN = {"mutate": {"learning_rate": "1e-5..1e-2"}, "members": 3, "interval": 300, "total_steps": 900, **SMALL}


class LongerAndLonger(gymnasium.Env):
    """One episode of ten steps, then one that does not end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    count = steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.steps = self.count + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.count == 1 and self.steps == 10, False, {}

    def state_dict(self):
        return {"count": self.count, "steps": self.steps}

    def load_state_dict(self, state):
        self.count, self.steps = state["count"], state["steps"]


def test_a_member_without_an_episode_in_an_interval_has_the_score_of_those_before(tmp_path):
    population("ppo", LongerAndLonger, folder=tmp_path, **GIVEN)
    rows = map(json.loads, (tmp_path / RECORD).read_text().splitlines())
    assert [row["score"] for row in rows if "interval" in row and "score" in row] == [10.0] * 9


@pytest.mark.parametrize("limit", [0, 0.0, 5.0])
def test_a_limit_of_its_own_is_refused(tmp_path, limit):
    with pytest.raises(ValueError, match=rf"target_return={limit} is nothing for a population: members are compared"):
        population("ppo", "Pendulum-v1", folder=tmp_path, target_return=limit, **GIVEN)
