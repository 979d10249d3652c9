"""A policy whose action is the number of its updates, and environments that give it back as their reward."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from headrace.envs.gym.pettingzoo import inline
from headrace.parallel.actor_env import ActorEnv
from headrace.policies.base import Policy, PolicyOutput

SPACE = Box(-1e9, 1e9, (1,), np.float32)


class VersionPolicy(Policy):
    """Acts by its number of updates."""

    num_draws = 1

    def __init__(self):
        super().__init__()
        self.observation_space = self.action_space = SPACE
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("updates", torch.zeros(1))

    def act(self, observation, rnn_state, random):
        return PolicyOutput(self.updates.expand(len(observation), 1), None, None, None)


class VersionEnv(gymnasium.Env):
    """Environment whose reward is its action. Steps take `pause` seconds; episodes have `least` to 2 * least steps, and
    their lengths are written to a file."""

    observation_space = action_space = SPACE

    def __init__(self, pause: float, least: int, path: Path | None):
        self.pause, self.least, self.path = pause, least, path

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(self.least, 2 * self.least + 1))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(self.pause)
        self.steps += 1
        ended = self.steps == self.length
        if ended and self.path is not None:
            with open(self.path, "a") as file:
                file.write(f"{self.steps}\n")
        return np.zeros(1, np.float32), float(action[0]), ended, False, {}


def version_envs(actors: int, pauses: list[float], least: list[int], folder: Path | None = None) -> ActorEnv:
    """Actors with an environment each, of these pauses and lengths."""

    def make_part(number: int, first: int):
        path = folder and folder / f"{first}.txt"
        return inline(partial(VersionEnv, pauses[first], least[first], path), number, "versions", first_env=first)

    return ActorEnv(make_part, actors, actors)
