"""Game of two agents: one gains what the other loses."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

ParallelEnv = pytest.importorskip("pettingzoo").ParallelEnv


class Duel(ParallelEnv):
    """Ten steps; an agent that alone chooses action 1 gains 1."""

    metadata = {"name": "duel"}  # noqa: RUF012
    possible_agents = ["one", "other"]  # noqa: RUF012

    def observation_space(self, agent):
        return Box(0, 1, (2,))

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.left = list(self.possible_agents), 10
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.left -= 1
        gain = float(actions["one"]) - float(actions["other"])
        seen, over = self._seen(), dict.fromkeys(self.agents, self.left == 0)
        told = {agent: {} for agent in self.agents}
        self.agents = self.agents if self.left else []
        return seen, {"one": gain, "other": -gain}, over, dict.fromkeys(over, False), told

    def _seen(self):
        return {agent: np.array([self.left / 10, agent == "one"], np.float32) for agent in self.possible_agents}
