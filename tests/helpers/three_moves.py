"""A game of three moves by two agents, who take turns: compiled, and as PettingZoo's AECEnv."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import i32

REWARDS = ((1.0, -2.0), (10.0, 20.0), (100.0, -5.0))  # of both agents, after each move


class ThreeMoves(KernelEnv):
    """`first` moves, then `second`, then `first` again. The observation is the number of moves, and the agent."""

    observation_space = Box(0.0, 3.0, (2,))
    action_space = Discrete(2)
    num_agents = 2
    agents = ("first", "second")

    class State(NamedTuple):
        moves: i32
        mover: i32
        sum: i32  # of the movers' actions, the first counting 1, the second 10, the third 100

    def reset(s, p, key):
        return ThreeMoves.State(0, 0, 0)

    def step(s, p, action, key):
        chosen = action[0] if s.mover == 0 else action[1]
        total = s.sum + (chosen if s.moves == 0 else (10 * chosen if s.moves == 1 else 100 * chosen))
        one = 1.0 if s.moves == 0 else (10.0 if s.moves == 1 else 100.0)
        other = -2.0 if s.moves == 0 else (20.0 if s.moves == 1 else -5.0)
        return ThreeMoves.State(s.moves + 1, 1 - s.mover, total), (one, other), s.moves == 2

    def observe(s, p, agent):
        return s.moves, agent


def three_moves_aec():
    """ThreeMoves as an AECEnv. Needs PettingZoo."""
    from pettingzoo import AECEnv

    class ThreeMovesAEC(AECEnv):
        metadata = {"name": "three_moves", "is_parallelizable": False}  # noqa: RUF012
        render_mode = None
        possible_agents = list(ThreeMoves.agents)  # noqa: RUF012

        def observation_space(self, agent):
            return ThreeMoves.observation_space

        def action_space(self, agent):
            return ThreeMoves.action_space

        def reset(self, seed=None, options=None):
            self.agents, self.moves = list(self.possible_agents), 0
            self.agent_selection = "first"
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict(self.rewards)
            self.terminations = self.truncations = dict.fromkeys(self.agents, False)
            self.infos = {agent: {} for agent in self.agents}

        def observe(self, agent):
            return np.array([self.moves, self.possible_agents.index(agent)], np.float32)

        def step(self, action):
            if self.terminations[self.agent_selection]:
                self._was_dead_step(action)
                return
            self.rewards = dict(zip(self.possible_agents, REWARDS[self.moves], strict=True))
            self.moves += 1
            self.terminations = dict.fromkeys(self.agents, self.moves == 3)
            self.agent_selection = self.possible_agents[self.moves % 2]

    return ThreeMovesAEC()
