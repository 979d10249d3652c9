"""Pixel observations of one environment, without compiling: the same bytes as the kernels draw."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import FunctionType

import numpy as np
import torch
from numpy.typing import ArrayLike

from headrace.kernels.language import ops_scalar
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.targets.params import ParamValues
from headrace.kernels.targets.tensor_state import DTYPES
from headrace.kernels.targets.torch.env import Renderer


class PlainPixels:
    """Draws one environment from its State: as batched tensors where pixel() allows it, else pixel by pixel."""

    def __init__(self, ir: EnvIR, params: ParamValues) -> None:
        self.ir = ir
        self._renderer: Renderer | None = None
        try:
            self._renderer = Renderer(ir, params, 1, torch.device("cpu"))
        except EnvError:  # it branches
            known = {p.name: params.get(p.name, p.default) for p in ir.params}
            self._params = tuple(_converted(p.dtype, known[p.name]) for p in ir.params)
            self._pixel = _scalar(ir)

    def stacked(self, state: Sequence[np.generic | np.ndarray], seen: np.ndarray | None) -> np.ndarray:
        """An observation that ends in this state: the frames of the last one, `seen`, move up; None after a reset."""
        frame = self._frame(state)
        if seen is None:
            return np.tile(frame, (self.ir.frames, 1, 1)).reshape(self.ir.observation_space.shape)
        frames = seen.reshape(-1, *seen.shape[-2:])
        return np.concatenate([frames[len(frame) :], frame]).reshape(seen.shape)

    def _frame(self, state: Sequence[np.generic | np.ndarray]) -> np.ndarray:
        """uint8 [channels, H, W]."""
        if self._renderer is not None:
            fields = tuple(
                torch.as_tensor(np.asarray(value).tolist(), dtype=DTYPES[f.dtype])[None]
                for f, value in zip(self.ir.state, state, strict=True)
            )
            frame: np.ndarray = self._renderer.frame(fields)[0].numpy()
            return frame
        height, width = self.ir.observation_space.shape[-2:]
        frame = np.zeros((self.ir.channels, height, width), np.uint8)
        for row, column in itertools.product(range(height), range(width)):
            gray = self._pixel(tuple(state), self._params, np.int32(row), np.int32(column))
            frame[:, row, column] = [ops_scalar._byte(g) for g in np.ravel(gray)]
        return frame


def _scalar(ir: EnvIR) -> FunctionType:
    """env_pixel on NumPy's scalars."""
    scope = dict(vars(ops_scalar)) | dict(ir.constants)
    exec(compile(ir.pixel_code, f"<pixels of {ir.name}>", "exec"), scope)
    return scope["env_pixel"]


def _converted(dtype: str, value: ArrayLike) -> np.generic:
    return {"f32": np.float32, "bool": np.bool_, "u32": np.uint32}.get(dtype, np.int32)(value)
