"""Sizes and memory that the CPU's kernels share, and the layers that CUDA's take, in plain Python.

Nothing here needs Numba, so that kernels that were compiled before run without it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK = np.uint64(64)  # samples of a block
WORKERS = 16  # threads at most: each has scratch of its own

OBSERVATION = -1  # as a layer's source: the network's input


class Layer(NamedTuple):
    """A dense layer. source: index of the layer it reads, or OBSERVATION. weight, bias: offsets in the flat parameters
    of weight [outputs, inputs] and bias [outputs]. norm: offsets of weight and bias [outputs] of the layer
    normalisation before the activation, or None."""

    source: int
    inputs: int
    outputs: int
    weight: int
    bias: int
    activation: str = "identity"
    norm: tuple[int, int] | None = None


def aligned(*shape: int) -> np.ndarray:
    """Zeros, float32, that begin on a 64-byte boundary: no vector straddles two cache lines."""
    count = int(np.prod(shape))
    buffer = np.zeros(count + 16, np.float32)
    skip = (-buffer.ctypes.data // 4) % 16
    return buffer[skip : skip + count].reshape(shape)
