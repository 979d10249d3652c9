"""Launching Numba's CUDA kernels on torch's tensors and streams. The one file that imports numba-cuda."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

DeviceArray: TypeAlias = Any  # Numba's array on the GPU
Kernel: TypeAlias = Any  # Numba's compiled kernel: kernel[blocks, threads, stream](*arguments)


def numba_cuda() -> ModuleType:
    """The module numba.cuda of the package numba-cuda. Raises ImportError where that is not installed."""
    try:
        import numba_cuda  # noqa: F401
        from numba import cuda
    except ImportError as error:
        raise ImportError('backend="cuda" needs numba-cuda: pip install "headrace[cuda]"') from error
    cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # type: ignore[attr-defined]  # few environments are the user's choice
    return cuda


@functools.cache
def simulated() -> bool:
    """Tell whether kernels run in Numba's simulator, on tensors of the CPU: NUMBA_ENABLE_CUDASIM=1."""
    return bool(numba_cuda().config.ENABLE_CUDASIM)


def array(tensor: Tensor) -> DeviceArray:
    """A tensor as Numba sees it, without waiting for what fills it."""
    cuda = numba_cuda()
    if simulated():  # to_device() would take contiguous arrays alone
        return cuda.cudadrv.devicearray.FakeCUDAArray(tensor.numpy())
    return cuda.as_cuda_array(tensor, sync=False)


def on_device(device: torch.device) -> nullcontext[None] | torch.cuda.device:
    """Make this GPU the current one, for torch and so for Numba."""
    return nullcontext() if simulated() else torch.cuda.device(device)


def launch(
    kernel: Kernel, threads: int, block: int, device: torch.device, *arguments: DeviceArray | float | np.float32
) -> None:
    """Launch a kernel on at least so many threads, `block` of them a block, on torch's current stream."""
    with on_device(device):
        # made again for each launch: while a graph is captured it is another one
        stream = 0 if simulated() else numba_cuda().external_stream(torch.cuda.current_stream().cuda_stream)
        kernel[-(-threads // block), block, stream](*arguments)
