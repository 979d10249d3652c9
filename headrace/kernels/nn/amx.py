"""Whether matrix products may use AMX tiles of bfloat16 (headrace.kernels.rows.targets.llvm_tiles), and their sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from headrace.kernels.runtime.native import processor

SPAN = 32  # rows and columns that a product takes at a time; terms of the sum in a tile
MIN_WIDTH = 128  # inputs and outputs of a layer from which on tiles gain more than packing the factors costs


def processor_has_tiles() -> bool:
    """Whether the processor has them."""
    return "+amx-bf16" in processor()[1]


@cache
def tiles_permitted() -> bool:
    """Whether this process may use them: the system must be asked once. False where $HEADRACE_TILES is 0."""
    import torch

    request: Callable[[], bool] | None = getattr(torch.cpu, "_init_amx", None)
    return os.environ.get("HEADRACE_TILES") != "0" and processor_has_tiles() and request is not None and request()


def sizes_pay(inputs: int, outputs: int) -> bool:
    """Whether a layer is one for which tiles gain time, where there are any."""
    return min(inputs, outputs) >= MIN_WIDTH and not (inputs % SPAN or outputs % SPAN)
