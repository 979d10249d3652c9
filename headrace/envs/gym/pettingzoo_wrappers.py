"""A pettingzoo.ParallelEnv with a time limit, stacked observations, scaled rewards, or its state() in observations."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from headrace.core.text import shown
from headrace.core.types import Json
from headrace.data.flat_dict import CENTRAL, OBSERVATION
from headrace.data.spaces import Sample
from headrace.envs.gym.columns import as_number
from headrace.envs.gym.frames import pushed, stacked_space
from headrace.envs.gym.wrapping import Wrapping

ByAgent = dict[str, Sample]


class AgentsWrapped(BaseParallelWrapper):
    """See Wrapping. At the time limit all remaining agents are truncated and removed.

    An agent's first observation fills its whole stack, and so does the first one after its return.
    """

    def __init__(self, env: ParallelEnv, wrapping: Wrapping) -> None:
        super().__init__(env)
        self.wrapping, self.headrace_reward_scale = wrapping, wrapping.reward_scale
        self._steps = 0
        self._seen: dict[str, deque[Sample]] = {}
        self._spaces: dict[str, Space] = {}

    def observation_space(self, agent: str) -> Space:
        """An agent's space, stacked. The same object at each call."""
        if agent not in self._spaces:
            space, frames = self.env.observation_space(agent), self.wrapping.frame_stack
            self._spaces[agent] = space if frames == 1 else stacked_space(space, frames)
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: Json | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin a new episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._steps, self._seen = 0, {}
        self.agents = list(self.env.agents)
        return self._stacked(observations), infos

    def step(self, actions: ByAgent) -> tuple[ByAgent, ...]:
        """A step of all agents."""
        here = list(self.env.agents)
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        self._steps += 1
        self.agents = list(self.env.agents)
        if self._steps == self.wrapping.time_limit:
            truncations = {**truncations, **dict.fromkeys(here, True)}
            self.agents = []
        scale = self.wrapping.reward_scale
        rewards = {agent: as_number(reward, f"reward of {agent}") * scale for agent, reward in rewards.items()}
        stacked = self._stacked(observations)
        self._seen = {agent: frames for agent, frames in self._seen.items() if agent in self.agents}
        return stacked, rewards, terminations, truncations, infos

    def _stacked(self, observations: ByAgent) -> ByAgent:
        frames = self.wrapping.frame_stack
        if frames == 1:
            return observations
        return {
            agent: pushed(
                self._seen.setdefault(agent, deque(maxlen=frames)), self.env.observation_space(agent), observation
            )
            for agent, observation in observations.items()
        }


class WithState(BaseParallelWrapper):
    """Observations as Dicts of an agent's own, `observation`, and `central_state`: the state() of the environment, then
    which of the possible agents observes, one-hot. See envs.wrappers.central.

    Raises TypeError for a state_space that is not a Box, ValueError for a state of another size.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space, number = env.state_space, len(env.possible_agents)
        if not isinstance(space, Box):
            raise TypeError(f"the state_space of {env} is {shown(space)}: give a Box, with a state() of numbers")
        self._size = math.prod(space.shape)
        self._state_space = Box(-np.inf, np.inf, (self._size + number,), np.float32)
        self._numbers = dict(zip(env.possible_agents, np.eye(number, dtype=np.float32), strict=True))
        self._spaces: dict[str, Space] = {}

    def observation_space(self, agent: str) -> Space:
        """Dict space of the agent's observation and the central state. The same object at each call."""
        if agent not in self._spaces:
            self._spaces[agent] = Dict({OBSERVATION: self.env.observation_space(agent), CENTRAL: self._state_space})
        return self._spaces[agent]

    def reset(self, seed: int | None = None, options: Json | None = None) -> tuple[ByAgent, ByAgent]:
        """Begin a new episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._both(observations), infos

    def step(self, actions: ByAgent) -> tuple[ByAgent, ...]:
        """A step of all agents."""
        observations, *outcome = self.env.step(actions)
        return self._both(observations), *outcome

    def _both(self, observations: ByAgent) -> ByAgent:
        state = np.asarray(self.env.state(), np.float32).ravel()
        if len(state) != self._size:
            raise ValueError(f"state() of {self.env} has {len(state)} numbers, and its state_space {self._size}")
        return {
            agent: {OBSERVATION: observation, CENTRAL: np.concatenate((state, self._numbers[agent]))}
            for agent, observation in observations.items()
        }
