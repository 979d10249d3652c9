"""N environments of a KernelEnv, compiled for the CPU or a GPU, or batched in torch."""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module

import torch
from torch import Tensor

from headrace.core.types import Settings, StateDict
from headrace.data.rollout import Rollout
from headrace.envs.base import Env
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ir import MOVER
from headrace.kernels.language.read import read
from headrace.kernels.targets.base import CompiledTarget

TARGETS = {"cpu": "CpuEnvs", "cuda": "CudaEnvs", "torch": "TorchEnvs"}  # in headrace.kernels.targets.BACKEND.env


class CompiledEnv(Env):
    """An Env (headrace.envs.base) of N environments of one KernelEnv.

    backend: "cpu" (Numba, SIMD), "cuda" (one thread per environment) or "torch" (batched tensors, any device).
    num_envs: copies of the environment. Each agent has a column in each copy: agent a of copy w is column
    a * num_copies + w, and the attribute num_envs counts columns.
    threads: number of CPU threads; None measures whether they pay. params: name -> one number, or N of them. first_env:
    number of the first environment, for a part of a larger set. Environment i draws the random numbers of environment
    first_env + i of the set, so that the parts together equal one CompiledEnv of all.
    Raises EnvError (kernels.language.errors) if the class cannot be compiled, ValueError for wrong arguments.
    """

    def __init__(
        self,
        cls: type[KernelEnv],
        num_envs: int,
        backend: str = "cpu",
        threads: int | None = None,
        params: Settings | None = None,
        device: torch.device | str | None = None,
        name: str | None = None,
        first_env: int = 0,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}: give at least 1")
        if backend not in TARGETS:
            raise ValueError(f"backend {backend!r} is not known: give one of {', '.join(TARGETS)}")
        if threads is not None and backend != "cpu":
            raise ValueError(f"threads={threads} is for the CPU; the backend is {backend!r}")
        self.ir, self.made_params = read(cls), deepcopy(dict(params or {}))
        self.name = name or cls.gymnasium_id or cls.__name__
        self.backend, self.max_steps = backend, self.ir.max_steps
        self.agents, self.groups, self.factory = self.ir.agents, self.ir.groups, cls
        self.takes_turns = len(self.agents) > 1 and any(field.name == MOVER for field in self.ir.state)
        self.num_envs = num_envs * self.num_agents
        self.observation_space, self.action_space = self.ir.observation_space, self.ir.action_space
        target = getattr(import_module(f"headrace.kernels.targets.{backend}.env"), TARGETS[backend])
        options = {name: value for name, value in (("threads", threads), ("device", device)) if value is not None}
        self.target: CompiledTarget = target(self.ir, num_envs, params or {}, first_env=first_env, **options)
        self.device, self.first_env = self.target.device, first_env
        # bound once: a step of one environment costs about as much as one more Python call
        self.step = self.target.step  # type: ignore[method-assign]

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode in every environment; write observation[0] and valid[0]. Same seed, same episodes."""
        self.target.reset(rollout, seed)

    def step(self, rollout: Rollout, t: int) -> None:
        self.target.step(rollout, t)

    def movers(self) -> Tensor:
        """Same as TurnBasedEnv.movers(). Raises KeyError without takes_turns."""
        return self.target.state()[MOVER]

    def step_some(self, rollout: Rollout, t: int, which: Tensor) -> None:
        """Same as TurnBasedEnv.step_some()."""
        self.target.step_some(rollout, t, which)

    def _set_params(self, params: Settings) -> None:
        self.target.set_params({**self.params, **params})

    def run(self, rollout: Rollout) -> None:
        """Take all T steps with the actions in the rollout. On CUDA in one launch: the state stays in registers."""
        self.target.run(rollout, 0, rollout.num_steps)

    def run_random(self, rollout: Rollout, first_step: int) -> None:
        """Take all T steps with random actions, which are written into the rollout and are the same on every backend.

        first_step: the number of earlier steps, a counter of the random numbers.
        """
        self.target.run_random(rollout, 0, rollout.num_steps, first_step)

    def state_dict(self) -> StateDict:
        """Tensors and numbers from which load_state_dict() continues, bit for bit."""
        return self.target.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). The caller restores the rollout's bootstrap row."""
        self.target.load_state_dict(state)

    def close(self) -> None:
        """Do nothing: only memory is held."""
