"""A KernelEnv of several agents as a pettingzoo.ParallelEnv: in plain Python for debuggers, or compiled for videos."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
from gymnasium.spaces import Space

from headrace.core.rng import word
from headrace.core.types import Json, Settings
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.one_env import OneEnv

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ImportError('several agents in plain Python need PettingZoo: pip install "headrace[pettingzoo]"') from error


class SingleAgents(OneEnv, ParallelEnv):
    """One environment. Its agents act together, and their episodes end together."""

    def __init__(
        self,
        cls: type[KernelEnv],
        params: Settings | None = None,
        render_mode: str | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__(cls, params, render_mode, compiled)
        self.metadata |= {"name": cls.__name__}
        self.possible_agents = list(self.ir.agents)
        self.agents: list[str] = []
        # one for each agent, since a space has its own random numbers
        self.observation_spaces = {name: deepcopy(self.ir.observation_space) for name in self.possible_agents}
        self.action_spaces = {name: deepcopy(self.ir.action_space) for name in self.possible_agents}

    def observation_space(self, agent: str) -> Space:
        """Observation space of an agent, the same for all."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        """Action space of an agent, the same for all."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Json | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Json]]:
        """Begin episode 0 of a seed, or, without one, the next episode."""
        if seed is not None:
            self.seed, self.episode = word(seed), -1
        elif self.episode < 0:
            self.seed = int(np.random.default_rng().integers(2**32))
        self.begin()
        self.agents = list(self.possible_agents)
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, np.ndarray | int]) -> tuple[Json, ...]:  # type: ignore[override]
        """Take a step of all agents. Returns observations, rewards, terminated, truncated and infos by agent.

        Raises RuntimeError before the first reset, KeyError if an agent has no action.
        """
        names = self.possible_agents
        rewards, terminated, truncated = self.advance(tuple(self.typed_action(actions[name]) for name in names))
        seen = self._observations()
        if terminated or truncated:
            self.agents = []
        return (
            seen,
            {name: float(np.float32(reward)) for name, reward in zip(names, rewards, strict=True)},
            dict.fromkeys(names, terminated),
            dict.fromkeys(names, truncated),
            {name: {} for name in names},
        )

    def _observations(self) -> dict[str, np.ndarray]:
        return {name: self.observation(agent) for agent, name in enumerate(self.possible_agents)}
