"""Permission to use AMX tiles of bfloat16 for matrix products (headrace.kernels.rows.targets.llvm_tiles), and sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from headrace.kernels.runtime.native import processor

SPAN = 32  # rows and columns that a product takes at a time; terms of the sum in a tile
MIN_WIDTH = 128  # inputs and outputs of a layer from which on tiles gain more than packing the factors costs


@cache
def tiles_permitted() -> bool:
    """True if this process may use AMX tiles: the system must be asked once. False where $HEADRACE_TILES is 0."""
    import torch

    request: Callable[[], bool] | None = getattr(torch.cpu, "_init_amx", None)
    has_tiles = "+amx-bf16" in processor()[1]
    return os.environ.get("HEADRACE_TILES") != "0" and has_tiles and request is not None and request()


def sizes_pay(inputs: int, outputs: int) -> bool:
    """True if a layer has sizes for which AMX tiles gain time."""
    return min(inputs, outputs) >= MIN_WIDTH and not (inputs % SPAN or outputs % SPAN)
