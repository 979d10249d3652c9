"""Gymnasium's AsyncVectorEnv, a process for each environment, as an Env that Headrace trains on."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from headrace.data.rollout import Rollout
from headrace.envs import Env


class AsyncEnvs(Env):
    """See headrace.envs.base.Env. Gymnasium's own next-step autoreset is the rollout's."""

    backend = "subprocess"
    device = torch.device("cpu")

    def __init__(self, name: str, num_envs: int) -> None:
        self.name, self.num_envs = name, num_envs
        self.vector = gymnasium.vector.AsyncVectorEnv(
            [lambda: gymnasium.make(name, disable_env_checker=True)] * num_envs
        )
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        self.total, self.length = np.zeros(num_envs, np.float32), np.zeros(num_envs, np.int32)

    def reset(self, rollout: Rollout, seed: int) -> None:
        rollout.observation[0] = torch.from_numpy(self.vector.reset(seed=seed)[0])
        rollout.valid[0] = True

    def step(self, rollout: Rollout, t: int) -> None:
        alive = rollout.valid[t].numpy()
        observation, reward, terminated, truncated, _ = self.vector.step(rollout.action[t].numpy())
        rollout.observation[t + 1] = torch.from_numpy(observation)
        rollout.valid[t + 1] = torch.from_numpy(~(terminated | truncated))
        columns = {"reward": reward.astype(np.float32), "terminated": terminated, "truncated": truncated}
        columns |= {"episode_return": np.where(alive, 0, self.total), "episode_length": np.where(alive, 0, self.length)}
        for name, value in columns.items():
            getattr(rollout, name)[t] = torch.from_numpy(value)
        self.total, self.length = np.where(alive, self.total + columns["reward"], 0), (self.length + 1) * alive

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise TypeError("Gymnasium's processes cannot be saved")

    def close(self) -> None:
        self.vector.close()
