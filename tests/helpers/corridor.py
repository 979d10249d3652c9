"""A small environment for tests, on batched torch tensors: walk right along a corridor, to its end."""

from __future__ import annotations

from typing import Any

import torch

from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete
from headrace.envs.base import Env

LENGTH = 6  # cells; an episode starts in cell 0, cell LENGTH - 1 ends it with reward 1
LIMIT = 12  # steps until truncation


class Corridor(Env):
    """N corridors; observation: (place, 1) with place from -1 to 1. Action 1 goes right, 0 left. Reward -0.1 a step."""

    name, backend = "Corridor", "torch"

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.observation_space, self.action_space = Box(-1, 1, (2,)), Discrete(2)
        self.cell = torch.zeros(num_envs)
        self.length = torch.zeros(num_envs, dtype=torch.int32)
        self.total = torch.zeros(num_envs)

    def reset(self, rollout: Rollout, seed: int) -> None:
        for state in (self.cell, self.length, self.total):
            state.zero_()
        rollout.valid[0] = True
        self._observe(rollout, 0)

    def step(self, rollout: Rollout, t: int) -> None:
        live = rollout.valid[t]
        rollout.episode_return[t] = torch.where(live, 0.0, self.total)
        rollout.episode_length[t] = torch.where(live, 0, self.length)
        moved = (self.cell + rollout.action[t] * 2 - 1).clamp(min=0)
        self.cell = torch.where(live, moved, 0.0)
        self.length = torch.where(live, self.length + 1, 0)
        arrived = live & (self.cell == LENGTH - 1)
        rollout.reward[t] = torch.where(arrived, 1.0, -0.1) * live
        self.total = torch.where(live, self.total + rollout.reward[t], 0.0)
        rollout.terminated[t] = arrived
        rollout.truncated[t] = ~arrived & (self.length >= LIMIT)
        rollout.valid[t + 1] = ~(rollout.terminated[t] | rollout.truncated[t])
        self._observe(rollout, t + 1)

    def _observe(self, rollout: Rollout, t: int) -> None:
        rollout.observation[t] = torch.stack((self.cell / (LENGTH - 1) * 2 - 1, torch.ones(self.num_envs)), 1)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).clone() for name in ("cell", "length", "total")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone())

    def close(self) -> None:
        pass
