"""Whether matrix products may use AMX tiles of bfloat16 (headrace.kernels.nn.split_bf16), and their sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import numpy as np

from headrace.kernels.runtime.native import processor

TILE = np.uint64(256)  # 32-bit words of a tile: sixteen rows of sixteen
TILE_SPAN = np.uint64(32)  # rows and columns that a product takes at a time; numbers along k in a tile
MIN_WIDTH = 128  # inputs and outputs of a layer from which on tiles gain more than packing the factors costs


def processor_has_tiles() -> bool:
    """Whether the processor has them: then kernels are compiled with them."""
    return "+amx-bf16" in processor()[1]


@cache
def tiles_permitted() -> bool:
    """Whether this process may use them: the system must be asked once. False where $HEADRACE_TILES is 0."""
    import torch

    request: Callable[[], bool] | None = getattr(torch.cpu, "_init_amx", None)
    return os.environ.get("HEADRACE_TILES") != "0" and processor_has_tiles() and request is not None and request()


def tiles_pay(inputs: int, outputs: int) -> bool:
    """Whether a layer's products are to use them."""
    return tiles_permitted() and sizes_pay(inputs, outputs)


def sizes_pay(inputs: int, outputs: int) -> bool:
    """Whether a layer is one for which tiles gain time, where there are any."""
    whole = not (inputs % int(TILE_SPAN) or outputs % int(TILE_SPAN))
    return min(inputs, outputs) >= MIN_WIDTH and whole
