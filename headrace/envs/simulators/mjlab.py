"""mjlab's tasks, mjlab/Mjlab-Cartpole-Balance. Not run on a GPU; on a CPU as docs/simulators.md says.

mjlab keeps no final observations where it resets environments by itself: here they are reset on request.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.data.spaces import Box
from headrace.envs.simulators.published import Published, of_rsl_rl
from headrace.envs.simulators.two_groups import TwoGroups

PACKAGE = "mjlab"
INSTALL = "pip install mjlab, in an environment of its own: it needs another MuJoCo than headrace[mujoco]"


def tasks() -> list[str]:
    """The names of mjlab's registry."""
    import mjlab.tasks  # noqa: F401  registers them
    from mjlab.tasks.registry import list_tasks

    return list(list_tasks())


class Mjlab:
    """A Simulator (envs.vector.simulators). device: None for the GPU, where there is one. episode_length_s: of the
    task's settings, if it is given."""

    autoreset = "Disabled"

    def __init__(
        self, task: str, num_envs: int, device: str | None = None, episode_length_s: float | None = None
    ) -> None:
        from mjlab.envs import ManagerBasedRlEnv
        from mjlab.tasks.registry import load_env_cfg

        config = load_env_cfg(task)
        config.scene.num_envs, config.auto_reset = num_envs, False
        config.episode_length_s = episode_length_s or config.episode_length_s
        self.num_envs, self.name = num_envs, f"mjlab/{task}"
        self.device = torch.device(device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
        self.env = ManagerBasedRlEnv(config, device=str(self.device))
        sizes = self.env.observation_manager.group_obs_dim
        self._seen = TwoGroups(sizes, "actor" if "actor" in sizes else next(iter(sizes)), "critic")
        self.observation_space = self._seen.space
        self.action_space = Box(-np.inf, np.inf, (self.env.action_manager.total_action_dim,))
        self.max_steps, self.log = int(self.env.max_episode_length), dict[str, Any]()

    def reset(self, seed: int | None) -> Any:
        return self._seen(self.env.reset(seed=seed)[0])

    def reset_ids(self, ids: Tensor) -> Any:
        observation, extras = self.env.reset(env_ids=ids)
        self.log = extras.get("log", {})
        return self._seen(observation)

    def step(self, action: Tensor) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, extras = self.env.step(action)
        self.log = extras.get("log", {})
        return self._seen(observation), reward, terminated, truncated

    def close(self) -> None:
        self.env.close()


def published(task: str, num_envs: int | None) -> Published:
    """PPO's settings of mjlab for a task. num_envs: None for the 4,096 that its documentation trains with."""
    from mjlab.tasks.registry import load_rl_cfg

    return of_rsl_rl("mjlab", asdict(load_rl_cfg(task)), num_envs or 4096)


SIMULATOR = Mjlab
