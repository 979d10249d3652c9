"""Whether products may use the processor's tiles of bfloat16 (kernels.nn.split_bf16), and what sizes those have."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import numpy as np

from headrace.kernels.runtime.native import processor

TILE = np.uint64(256)  # words of a tile: sixteen rows of sixteen
HALF = np.uint64(32)  # rows and columns that a product takes at a time; numbers along k in a tile
LEAST = 128  # inputs and outputs of a layer from which on tiles gain more than laying its factors costs


def known() -> bool:
    """Whether the processor has them: then kernels are compiled with them."""
    return "+amx-bf16" in processor()[1]


@cache
def granted() -> bool:
    """Whether the system lets this process use them; it must be asked once. Not where $HEADRACE_TILES is 0."""
    import torch

    ask: Callable[[], bool] | None = getattr(torch.cpu, "_init_amx", None)
    return os.environ.get("HEADRACE_TILES") != "0" and known() and ask is not None and ask()


def serve(inputs: int, outputs: int) -> bool:
    """Whether a layer's products are to use them."""
    return granted() and min(inputs, outputs) >= LEAST and not (inputs % int(HALF) or outputs % int(HALF))
