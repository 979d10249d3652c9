"""An environment small enough to know by heart, for tests of what surrounds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete
from headrace.envs.base import Env

# settings for hr.train; one thread, because the tests of several processes may share the machine
TINY = {"num_steps": 16, "minibatch_size": 64, "epochs": 2, "hidden": (8,), "progress": "none", "threads": 1}


class Walk(Env):
    """N walks on a line: action 1 goes right and earns 1, action 0 goes left. Ends at -3; truncated after 12 steps.

    `bad` puts a number that is none into one entry: (column, env, step of that env, value).
    """

    name, backend, device = "Walk", "torch", torch.device("cpu")
    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Discrete(2)

    def __init__(self, num_envs: int = 8, bad: tuple[str, int, int, float] | None = None) -> None:
        self.num_envs, self.bad = num_envs, bad
        self.closed = False

    def reset(self, rollout: Rollout, seed: int) -> None:
        self.place = (torch.arange(self.num_envs) + seed) % 3
        self.length = torch.zeros(self.num_envs, dtype=torch.int32)
        self.total = torch.zeros(self.num_envs)
        self.taken = 0
        rollout.valid[0] = True
        self._observe(rollout, 0)

    def step(self, rollout: Rollout, t: int) -> None:
        live = rollout.valid[t].clone()
        right = rollout.action[t] == 1
        rollout.reward[t] = (live & right).float()
        self.place = torch.where(live, self.place + torch.where(right, 1, -1), 0)
        self.length, self.total = self.length + live.int(), self.total + rollout.reward[t]
        rollout.terminated[t] = live & (self.place <= -3)
        rollout.truncated[t] = live & ~rollout.terminated[t] & (self.length >= 12)
        rollout.valid[t + 1] = ~(rollout.terminated[t] | rollout.truncated[t])
        rollout.episode_return[t] = torch.where(live, 0.0, self.total)
        rollout.episode_length[t] = torch.where(live, 0, self.length)
        self.length, self.total = torch.where(live, self.length, 0), torch.where(live, self.total, 0.0)
        self.taken += 1
        self._observe(rollout, t + 1)
        if self.bad is not None and self.taken == self.bad[2]:
            column, env, _, value = self.bad
            getattr(rollout, column)[t + (column == "observation"), env] = value

    def _observe(self, rollout: Rollout, t: int) -> None:
        rollout.observation[t] = torch.stack((self.place / 10, self.length / 12), dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "length": self.length, "total": self.total, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def close(self) -> None:
        self.closed = True
