"""What a target owes: N worlds of one EnvIR on one device. CompiledEnv (headrace.envs.compiled.env) is their shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.data.rollout import Rollout
from headrace.kernels.language.ir import EnvIR


class Worlds(Protocol):
    """N worlds on one device: CpuWorlds, CudaWorlds, TorchWorlds(source, num_envs, params, device, **options).

    first_env: number of world 0, where these are a part of a larger set: world i draws what first_env + i of it draws.
    params: name -> one number for all worlds, or N of them; those not named have their default.
    The state is kept packed: float32 [S, N], int32 [S, N] (EnvIR.floats, EnvIR.integers), one array per array field,
    and per world the episode (uint32 bits), its length (int32) and its return (float32).
    """

    source: EnvIR
    num_envs: int
    first_env: int
    device: torch.device
    seed: Any  # of the last reset, 32 bits

    def reset(self, rollout: Rollout, seed: int) -> None:
        """As Env.reset: episode 0 of every world, drawn with key (seed, RESET, world, 0, 0)."""

    def step(self, rollout: Rollout, t: int) -> None:
        """As Env.step: draws of step() have key (seed, STEP, world, episode, length before the step); a dead row adds
        one to the episode and resets with key (seed, RESET, world, episode, 0)."""

    def state(self) -> dict[str, Tensor]:
        """A copy of State's fields in the user's order, [N] or [N, *shape], in their own dtype (u32 as int64)."""

    def set_state(self, fields: Mapping[str, Tensor]) -> None:
        """Put worlds into given states, for tests and tools. Episode, length and return stay."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers to go on from bit for bit: seed, packs, arrays, episode, length, running return."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from state_dict()."""


__all__ = ["EnvIR", "Worlds"]
