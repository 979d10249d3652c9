"""Pixel observations of N environments on the CPU: a generated Numba module draws them into a rollout."""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from headrace.data.rollout import Rollout
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.numba_errors import explained
from headrace.kernels.runtime import cache
from headrace.kernels.runtime.native import Argument, Call
from headrace.kernels.targets.cpu.codegen_pixels_cpu import cpu_pixel_module
from headrace.kernels.targets.cpu.state_layout import flat


class CpuPixels:
    """Draws the environments of one EnvIR. per_env: each parameter has a value per environment."""

    def __init__(self, ir: EnvIR, per_env: bool) -> None:
        self.ir = ir
        self._name, self._text = f"{ir.name}Pixels", cpu_pixel_module(ir, per_env)
        self._arguments: tuple[Argument, ...] = ()
        self._call: Call
        self._num_envs = 0

    def bind(self, state: tuple[Argument, ...], rollout: Rollout) -> None:
        """Draw the environments in these arrays from now on, into this rollout."""
        valid, (pixels, row, env) = rollout.valid, flat_pixels(rollout.observation)
        self._arguments = (*state, pixels, flat(valid), valid.stride(0), row, env)
        self._num_envs = rollout.num_envs
        arguments = (*self._arguments, 0, self._num_envs, 0)
        announcement = f"compiling the pixel observations of {self.ir.name} (once, about 3 s) ..."
        native = cache.entry(self._name, self._text, "draw", arguments, announcement, partial(explained, self.ir))
        self.call = Call(native, arguments)

    def draw(self, t: int) -> None:
        """Row t + 1 of every environment; t = -1: the first row, which has no older frames."""
        self.call.put(len(self.call.slots) - 1, t)
        self.call()


def flat_pixels(observation: Tensor) -> tuple[np.ndarray, int, int]:
    """The column [T + 1, N, ..., H, W] as flat bytes, and how far apart its rows and its environments are.

    Raises ValueError where the bytes of one observation are not contiguous.
    """
    if not observation[0, 0].is_contiguous():
        raise ValueError(
            f"column observation has strides {observation.stride()}: the bytes of an observation must be contiguous"
        )
    row, env = observation.stride()[:2]
    return flat(observation), row, env
