"""Step one environment of a KernelEnv with its kernels, for videos: a step of Tag takes half a second in plain
Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.core.types import Settings
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.targets.cpu.env import CpuEnvs


class KernelSteps:
    """Kernels in the place of OneEnv's plain Python. Row 0 of the rollout has the present observation."""

    def __init__(self, ir: EnvIR, params: Settings) -> None:
        self.ir, self.target = ir, CpuEnvs(ir, 1, params, threads=1)
        columns = env_columns(ir.observation_space) | {"action": action_column(ir.action_space)}
        self._rollout = Rollout(1, ir.num_agents, columns, "cpu")

    def begin(self, seed: int, episode: int) -> None:
        """Begin episode 0 of a seed, or the next episode, without finishing the present one."""
        if episode == 0:
            self.target.reset(self._rollout, seed)
        else:
            self._step(valid=False)

    def advance(self, action: Any) -> tuple[Any, bool, bool]:
        """Same as OneEnv.advance()."""
        several = self.ir.num_agents > 1
        given = np.asarray(action if several else [action])
        self._rollout.action[0] = torch.from_numpy(given).to(self._rollout.action.dtype)
        self._step(valid=True)
        rewards = self._rollout.reward[0].numpy().copy()
        terminated, truncated = bool(self._rollout.terminated[0, 0]), bool(self._rollout.truncated[0, 0])
        return tuple(rewards) if several else rewards[0], terminated, truncated

    def observation(self, agent: int) -> np.ndarray:
        """Same as OneEnv.observation()."""
        return self._rollout.observation[0, agent].numpy().copy()

    def fields(self) -> dict[str, np.ndarray]:
        """A copy of State's fields, by name."""
        return {name: value[0].numpy() for name, value in self.target.state().items()}

    def set_fields(self, values: dict[str, Any]) -> None:
        """Set State's fields."""
        self.target.set_state({name: torch.as_tensor(np.asarray(value))[None] for name, value in values.items()})

    def _step(self, valid: bool) -> None:
        """Take a step or, if row 0 is masked, begin the next episode."""
        self._rollout.valid[0] = valid
        self.target.step(self._rollout, 0)
        self._rollout.continue_from(self._rollout)
