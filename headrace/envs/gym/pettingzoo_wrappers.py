"""A pettingzoo.ParallelEnv with a time limit, stacked observations, scaled rewards."""

from __future__ import annotations

from collections import deque

from gymnasium.spaces import Space
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from headrace.core.types import Json
from headrace.data.spaces import Sample
from headrace.envs.gym.columns import as_number
from headrace.envs.gym.frames import pushed, stacked_space
from headrace.envs.gym.wrapping import Wrapping

ByAgent = dict[str, Sample]


class AgentsWrapped(BaseParallelWrapper):
    """See Wrapping. At the time limit all remaining agents are truncated and removed.

    An agent's first observation fills its whole stack.
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
        return self._stacked(observations), rewards, terminations, truncations, infos

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
