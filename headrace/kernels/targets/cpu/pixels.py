"""Pictures of N worlds on the CPU: a generated Numba module that draws them into a rollout's observations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from headrace.data.rollout import Rollout
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.numba_errors import explained
from headrace.kernels.runtime import cache
from headrace.kernels.runtime.native import Call
from headrace.kernels.targets.cpu.codegen_pixels_cpu import cpu_pictures


class CpuPictures:
    """Draws the worlds of one EnvIR. per_env: each parameter has a value per world."""

    def __init__(self, source: EnvIR, per_env: bool) -> None:
        self.source = source
        self._name, self._text = f"{source.name}Pictures", cpu_pictures(source, per_env)
        self._arguments: tuple[Any, ...] = ()
        self._call: Call
        self._num_envs = 0

    def bind(self, state: tuple[Any, ...], rollout: Rollout) -> None:
        """Draw from now on the worlds that these arrays hold, into this rollout."""
        valid, (pixels, row, world) = rollout.valid, flat_pictures(rollout.observation)
        size = 1 + sum((n - 1) * stride for n, stride in zip(valid.shape, valid.stride(), strict=True))
        flags = np.lib.stride_tricks.as_strided(valid.numpy(), (size,), (1,))
        self._arguments = (*state, pixels, flags, valid.stride(0), row, world)
        self._num_envs = rollout.num_envs
        arguments = (*self._arguments, 0, self._num_envs, 0)
        announcement = f"compiling the pictures of {self.source.name} (once, about 3 s) ..."
        native = cache.entry(self._name, self._text, "draw", arguments, announcement, partial(explained, self.source))
        self._call = Call(native, arguments)

    def draw(self, t: int) -> None:
        """Row t + 1 of every world; t = -1: the first row, where nothing was drawn before."""
        self._call.words[-1] = t & 0xFFFFFFFFFFFFFFFF
        self._call()

    def on_threads(self, parts: int) -> Callable[[int], None]:
        """draw(t) by several threads."""
        import numba

        module = cache.load(self._name, self._text)
        cut = np.array([self._num_envs * part // parts for part in range(parts + 1)], np.int64)
        types = tuple(numba.typeof(argument) for argument in (*self._arguments, cut, 0))
        announcement = f"compiling the pictures of {self.source.name}, on threads (once, about 3 s) ..."
        with explained(self.source, module):
            cache.compile_once(module, {"draw_parallel": types}, announcement)
        return partial(module.draw_parallel, *self._arguments, cut)


def flat_pictures(observation: Tensor) -> tuple[np.ndarray, int, int]:
    """The column [T + 1, N, ..., H, W] as flat bytes, and how far apart its rows and its worlds are.

    Raises ValueError where the bytes of one observation do not lie together.
    """
    if not observation[0, 0].is_contiguous():
        raise ValueError(f"column observation has strides {observation.stride()}: a picture's bytes must lie together")
    row, world = observation.stride()[:2]
    size = (len(observation) - 1) * row + (observation.shape[1] - 1) * world + observation[0, 0].numel()
    return np.lib.stride_tricks.as_strided(observation.numpy(), (size,), (1,)), row, world
