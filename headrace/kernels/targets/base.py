"""Interface of all targets: N environments of one EnvIR on one device, used by headrace.envs.compiled.env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from headrace.data.rollout import Rollout
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.targets.params import ParamValues


class CompiledTarget(Protocol):
    """N environments on one device: CpuEnvs, CudaEnvs, TorchEnvs, made with (ir, num_envs, params, device, **options).

    first_env: number of environment 0 in a larger set: environment i draws what environment first_env + i of the set
    draws. params: name -> one number for all environments, or N of them; those not named have their default. The state
    is kept packed: float32 [S, N], int32 [S, N] (EnvIR.floats, EnvIR.integers), one array per array field, and per
    environment the number of the episode (uint32 bits), its length (int32) and its return (float32).
    """

    ir: EnvIR
    num_envs: int
    first_env: int
    device: torch.device
    seed: int  # of the last reset, 32 bits

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Same as Env.reset(): episode 0 of every environment, drawn with key (seed, RESET, environment, 0, 0)."""

    def step(self, rollout: Rollout, t: int) -> None:
        """Same as Env.step(). Draws have key (seed, STEP, environment, episode, length before the step). A masked step
        adds one to the episode and resets with key (seed, RESET, environment, episode, 0)."""

    def set_params(self, params: ParamValues) -> None:
        """Set parameters; those that are not given have their default. Raises ValueError as the constructor does, and
        for a parameter with a number for each environment if none had that when these environments were made."""

    def run(self, rollout: Rollout, first: int, last: int) -> None:
        """Step rows `first` .. `last` by the actions in the rollout."""

    def run_random(self, rollout: Rollout, first: int, last: int, counter: int) -> None:
        """Step rows `first` .. `last` by random actions (kernels.targets.random_actions), which are written into the
        rollout. counter: steps taken before."""

    def restart(self, rollout: Rollout, t: int, which: Tensor) -> None:
        """Begin the next episode of the environments `which`, bool [N], in row t + 1. The others keep their state. Only
        the environments `which` have a meaningful row t + 1. Overwrites valid[t]. For one agent."""

    def step_some(self, rollout: Rollout, t: int, which: Tensor) -> None:
        """Same as step(), for the environments `which`, bool [N]. The others keep their state, and their outcome has no
        meaning. Row t needs actions of the space everywhere."""

    def running_episodes(self, envs: Tensor) -> tuple[Tensor, Tensor]:
        """Return and length so far of the present episodes of environments, given by their numbers [K]. For one
        agent."""

    def state(self) -> dict[str, Tensor]:
        """A copy of State's fields in the user's order, [N] or [N, *shape], in their own dtype (u32 as int64)."""

    def set_state(self, fields: Mapping[str, Tensor]) -> None:
        """Set the fields of State. The episode's number, length and return stay."""

    def state_dict(self) -> dict[str, Tensor | int]:
        """Tensors and numbers that resume bit for bit: seed, packs, arrays, episode, length, running return."""

    def load_state_dict(self, state: Mapping[str, Tensor | int]) -> None:
        """Resume from state_dict()."""
