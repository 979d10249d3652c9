"""A KernelEnv as a gymnasium.Env: in plain Python, for debuggers, or compiled, for videos."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from headrace.core.rng import word
from headrace.core.types import Json, Settings
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.one_env import OneEnv

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv


def single(
    cls: type[KernelEnv], params: Settings | None = None, render_mode: str | None = None, compiled: bool = False
) -> gymnasium.Env | ParallelEnv:
    """A KernelEnv in plain Python, as a gymnasium.Env. Its random numbers are those of environment 0 of the kernels.

    For a class with several agents the result is a pettingzoo.ParallelEnv. params: name -> number, in place of Params'
    defaults. compiled: whether its kernels for the CPU step it instead, with the same states up to rounding. Raises
    TypeError unless `cls` is a class; EnvError if it cannot be compiled; ImportError if PettingZoo is needed and not
    installed.
    """
    if not isinstance(cls, type):
        raise TypeError(f"single() takes a class, not {cls!r}: import it, as in `from my_env import MyEnv`")
    if "num_envs" in inspect.signature(cls).parameters:
        raise TypeError(
            f"{cls.__name__} comes as a vector of environments, and single() is for a KernelEnv: "
            f"make({cls.__name__}, 1) is a vector of one, stepped as docs/robots.md shows"
        )
    if getattr(cls, "num_agents", 1) == 1:
        return Single(cls, params, render_mode, compiled)
    from headrace.envs.compiled.single_multi_agent import SingleAgents

    return SingleAgents(cls, params, render_mode, compiled)


class Single(OneEnv, gymnasium.Env):
    """One environment of one agent."""

    def __init__(
        self,
        cls: type[KernelEnv],
        params: Settings | None = None,
        render_mode: str | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__(cls, params, render_mode, compiled)
        self.observation_space, self.action_space = self.ir.observation_space, self.ir.action_space

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[np.ndarray, Json]:
        """Begin episode 0 of a seed, or, without one, the next episode."""
        gymnasium.Env.reset(self, seed=seed)
        if seed is not None:
            self.seed, self.episode = word(seed), -1
        elif self.episode < 0:
            self.seed = int(self.np_random.integers(2**32))
        self.begin()
        return self._seen_now({})

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool, Json]:
        """One step. Raises RuntimeError before the first reset."""
        reward, terminated, truncated = self.advance(self.typed_action(action))
        observation, info = self._seen_now({})
        return observation, float(np.float32(reward)), terminated, truncated, info

    def _seen_now(self, info: Json) -> tuple[np.ndarray, Json]:
        """The observation, and the info with the action mask, int8, if the class has one."""
        observation = self.observation()
        if self.ir.masked:
            info["action_mask"] = observation[self.observation_space.features :].astype(np.int8)  # type: ignore[attr-defined]
        return observation, info
