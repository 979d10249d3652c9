"""Brax's environments, brax/inverted_pendulum. Not run on a GPU; on a CPU as docs/simulators.md says.

Brax's own wrapper resets environments and keeps no final observation: here the step that ends an episode begins the
next one, with the first state of that environment, as there, and its final observation is kept.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from headrace.data.spaces import Box
from headrace.envs.simulators.two_groups import PRIVILEGED, TwoGroups

PACKAGE = "brax"
INSTALL = "pip install brax"


def tasks() -> list[str]:
    """The names of Brax's registry."""
    from brax import envs

    return list(envs._envs)


class JaxSimulator:
    """A Simulator (envs.vector.simulators) of an environment with reset(key) and step(state, action) of one state."""

    autoreset = "SameStep"

    def __init__(self, env: Any, num_envs: int, name: str, max_steps: int, action_repeat: int) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else no memory is left for the policy
        import jax
        from brax.envs.wrappers.training import EpisodeWrapper, VmapWrapper

        self._jax, self.num_envs, self.name, self.max_steps = jax, num_envs, name, max_steps // action_repeat
        self.env = EpisodeWrapper(VmapWrapper(env), max_steps, action_repeat)
        platform = jax.devices()[0].platform
        self.device = torch.device("cuda" if platform == "gpu" else "cpu")
        size = self.env.observation_size
        self._seen = TwoGroups(size, "state", PRIVILEGED) if hasattr(size, "keys") else None
        self.observation_space = (
            TwoGroups({"state": size}, "state", "").space if self._seen is None else self._seen.space
        )
        self.action_space = Box(-1.0, 1.0, (self.env.action_size,))
        self._reset, self._step = jax.jit(self.env.reset), jax.jit(self._stepped)
        self._state: Any = None  # of all environments
        self._first: Any = None  # those that they began with
        self.log: dict[str, Any] = {}

    def _see(self, state: Any) -> Any:
        return state.obs if self._seen is None else self._seen(state.obs)

    def _stepped(self, state: Any, first: Any, action: Any) -> tuple[Any, ...]:
        """The state after a step, that of another episode where one has ended, what is logged, and a step's results."""
        import jax.numpy as jnp

        state = self.env.step(state, action)
        done, cut = state.done > 0, state.info["truncation"] > 0

        def back(x: Any, y: Any) -> Any:
            return jnp.where(done.reshape(-1, *[1] * (x.ndim - 1)), x, y) if x.shape[:1] == done.shape else y

        names = [name for name in ("pipeline_state", "data", "obs") if hasattr(state, name)]
        begun = {name: self._jax.tree.map(back, getattr(first, name), getattr(state, name)) for name in names}
        after = state.replace(**begun, done=jnp.zeros_like(state.done))
        after.info["steps"] = jnp.where(done, 0.0, after.info["steps"])
        log = {name: term.mean() for name, term in state.metrics.items()}
        return after, log, self._see(after), state.reward, done & ~cut, cut, self._see(state)

    def reset(self, seed: int | None) -> Any:
        self._state = self._first = self._reset(self._keys(seed))
        return self._see(self._state)

    def _keys(self, seed: int | None) -> Any:
        return self._jax.random.split(self._jax.random.PRNGKey(seed or 0), self.num_envs)

    def step(self, action: Tensor) -> tuple[Any, ...]:
        self._state, self.log, *found = self._step(self._state, self._first, self._jax.dlpack.from_dlpack(action))
        return tuple(found)


class Brax(JaxSimulator):
    """backend: of Brax's physics, such as generalized, positional or spring."""

    def __init__(self, task: str, num_envs: int, backend: str = "spring", episode_length: int = 1000) -> None:
        from brax import envs

        env = envs.get_environment(task, backend=backend)
        super().__init__(env, num_envs, f"brax/{task}", episode_length, 1)


SIMULATOR = Brax
