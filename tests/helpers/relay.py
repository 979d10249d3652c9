"""An environment that several agents share, for tests, which set who comes, who goes and what they see."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

ParallelEnv = pytest.importorskip("pettingzoo").ParallelEnv

SPACES = (Box(0, 1000, (2,)), Discrete(3))


class Relay(ParallelEnv):
    """Each agent sees how often the environment was stepped and its own number, gets that count as reward, and leaves
    after its step `last`. joins: the step after which an agent comes, where that is not the beginning."""

    metadata = {"name": "relay"}  # noqa: RUF012

    def __init__(self, last, joins=None, spaces=None, ending="terminated", fails_at=None):
        self.last, self.joins, self.ending, self.fails_at = last, joins or {}, ending, fails_at
        self.possible_agents = list(last)
        self.spaces = {agent: (spaces or {}).get(agent, SPACES) for agent in last}
        self.told, self.seeds, self.agents, self.count, self.resets = [], [], [], 0, 0

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def look(self, agent):
        space = self.spaces[agent][0]
        if space == SPACES[0]:
            return np.array([self.count, self.possible_agents.index(agent)], np.float32)
        return np.full(space.shape, self.count, space.dtype) if space.shape else self.count

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.resets += 1
        self.count = 0
        self.agents = [agent for agent in self.possible_agents if agent not in self.joins]
        return {agent: self.look(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), (actions, self.agents)
        self.told.append(actions)
        self.count += 1
        if self.count == self.fails_at:
            raise RuntimeError("the baton broke")
        here = self.agents
        over = {agent: self.count >= self.last[agent] for agent in here}
        self.agents = [agent for agent in here if not over[agent]]
        self.agents += [agent for agent, step in self.joins.items() if step == self.count]
        seen = {agent: self.look(agent) for agent in {*here, *self.agents}}
        never = dict.fromkeys(here, False)
        flags = (over, never) if self.ending == "terminated" else (never, over)
        return seen, dict.fromkeys(here, float(self.count)), *flags, {agent: {} for agent in seen}


class Mortal(Relay):
    """Kills its process at the step `dies_at`, once: that which makes the file `marker`."""

    def __init__(self, last, marker, dies_at, **options):
        super().__init__(last, **options)
        self.marker, self.dies_at = marker, dies_at

    def step(self, actions):
        if self.count + 1 == self.dies_at:
            with suppress(FileExistsError):
                self.marker.touch(exist_ok=False)  # one process alone can
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


class Silent(Relay):
    """Agents vanish without a word: neither flag is set, and nothing of theirs is given any more."""

    def step(self, actions):
        seen, rewards, *_ = super().step(actions)
        seen = {agent: value for agent, value in seen.items() if agent in self.agents}
        return seen, rewards, {}, {}, {}


class Returning(Relay):
    """b's life ends with step 2, it is among the agents again after 4, and its second life ends with step 5."""

    def step(self, actions):
        seen, rewards, ended, *rest = super().step(actions)
        if "b" in ended and self.count in (2, 5):
            ended["b"] = True
            self.agents = [agent for agent in self.agents if agent != "b"]
        elif self.count == 4:
            self.agents = ["a", "b"]
            seen["b"] = self.look("b")
        return seen, rewards, ended, *rest
