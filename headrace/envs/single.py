"""One world as a plain gymnasium.Env: nothing is compiled, so a debugger steps through the user's own lines."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from headrace.kernels import kinds
from headrace.kernels.env_cpu import pack_params
from headrace.kernels.source import Source, read
from headrace.rng import Purpose


def single(cls: type, params: dict[str, Any] | None = None, render_mode: str | None = None) -> gymnasium.Env:
    """A gymnasium.Env of one world of a KernelEnv, in plain Python. Draws what world 0 of the kernels draws.

    params: name -> number, in place of Params' defaults. Raises EnvError where the class could not be compiled.
    """
    return Single(cls, params, render_mode)


class Single(gymnasium.Env):
    """One world. `state` is its State, `p` its parameters; both may be set, for tests and debuggers."""

    def __init__(self, cls: Any, params: dict[str, Any] | None = None, render_mode: str | None = None) -> None:
        self.source: Source = read(cls)
        self.cls = cls
        self.observation_space, self.action_space = self.source.observation_space, self.source.action_space
        draws = hasattr(cls, "render")
        self.metadata = {"render_modes": ["rgb_array"] if draws else [], "render_fps": self.cls.render_fps}
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            has = "rgb_array alone" if draws else "none: give it a render(s, p), an RGB array uint8 [H, W, 3]"
            raise ValueError(f"there is no render_mode {render_mode!r}; {cls.__name__} has {has}")
        self.render_mode = render_mode
        self.p = _params(self.source, params or {})
        self.state = _empty(self.source)
        self.seed, self.episode, self.length = 0, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin episode 0 of a seed, or, without one, the next episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.episode = seed, -1
        elif self.episode < 0:
            self.seed = int(self.np_random.integers(2**32))
        self.episode, self.length = self.episode + 1, 0
        self.state = self._typed(self.cls.reset(self.state, self.p, self._key(Purpose.RESET)))
        return self.observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step. Raises RuntimeError before the first reset."""
        if self.episode < 0:
            raise RuntimeError("step() before reset(): call reset() first")
        state, reward, terminated = self.cls.step(self.state, self.p, self._action(action), self._key(Purpose.STEP))
        self.state, self.length = self._typed(state), self.length + 1
        ended = bool(terminated)
        late = self.source.max_steps is not None and self.length >= self.source.max_steps
        return self.observation(), float(np.float32(reward)), ended, late, {}

    def observation(self) -> np.ndarray:
        """What is seen in the present state: float32 of the observation space's shape."""
        out = np.zeros(self.source.observation_space.shape, np.float32)
        if self.source.observes_into:
            self.cls.observe(self.state, self.p, out)
        else:
            out[...] = self.cls.observe(self.state, self.p)
        return out

    def render(self) -> Any:
        """The class's own picture of the state, uint8 [H, W, 3]; None without a render mode."""
        return self.cls.render(self.state, self.p) if self.render_mode else None

    def _key(self, purpose: Purpose) -> tuple[np.uint32, ...]:
        """(seed, purpose, env, episode, step), as the kernels give it."""
        words = (self.seed, purpose, 0, self.episode, self.length)
        return tuple(np.uint32(word & 0xFFFFFFFF) for word in words)

    def _action(self, action: Any) -> Any:
        space = self.action_space
        if isinstance(space, Discrete):
            return np.int32(action)
        if isinstance(space, Box):
            return tuple(np.clip(np.asarray(action, np.float32), space.low, space.high).astype(np.float32))
        return tuple(np.asarray(action, np.int32))

    def _typed(self, state: Any) -> Any:
        """The state with each field in the type that it is declared with."""
        return self.cls.State(
            *(
                _as(f.dtype, value) if f.shape is None else value
                for f, value in zip(self.source.state, state, strict=True)
            )
        )


def _as(dtype: str, value: Any) -> Any:
    return kinds.STORAGE[{kinds.F32: kinds.F32, kinds.BOOL: kinds.BOOL, kinds.U32: kinds.U32}.get(dtype, kinds.I32)](
        value
    )


class _Cells(np.ndarray):
    """An array field whose entries are read as the kernels read them: narrow integers as int32."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found if isinstance(found, np.ndarray) else _as(kinds.NAMES[self.dtype.name], found)


def _empty(source: Source) -> Any:
    fields = [
        _as(f.dtype, 0) if f.shape is None else np.zeros(f.shape, kinds.STORAGE[f.dtype]).view(_Cells)
        for f in source.state
    ]
    return source.cls.State(*fields)  # type: ignore[attr-defined]


def _params(source: Source, params: dict[str, Any]) -> Any:
    floats, integers, _ = pack_params(source, params, 1)
    packs = {True: iter(floats), False: iter(integers)}
    values = [_as(p.dtype, next(packs[p.dtype == kinds.F32])) for p in source.params]
    return source.cls.Params(*values)  # type: ignore[attr-defined]
