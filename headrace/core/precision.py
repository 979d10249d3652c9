"""In which numbers networks compute: the one place that applies the setting `precision`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headrace.core.fused import plain_only

PRECISIONS = ("float32", "tf32", "bfloat16")
LAYERS = (functional.linear, functional.conv1d, functional.conv2d, torch.conv1d, torch.conv2d)


def resolve(precision: str, network: nn.Module, device: torch.device) -> str:
    """The precision that a name stands for. "auto" is bfloat16 for networks with convolutions where the device's matrix
    units multiply in it (AMX, tensor cores), and float32 otherwise."""
    if precision != "auto":
        return precision
    convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d) for module in network.modules())
    return "bfloat16" if convolves and _multiplies_bfloat16(device) else "float32"


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has_amx: Callable[[], bool] | None = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return device.type == "cpu" and has_amx is not None and has_amx()


@contextmanager
def computing(precision: str, device: torch.device) -> Iterator[None]:
    """Let hidden layers inside be computed in float32, in tf32 (on CUDA), or in bfloat16.

    Both round the factors of products alone, tf32 to 11 bits and bfloat16 to 8: weights, activations, distributions,
    losses, optimizers and environments stay in float32. The CPU's kernels know float32 only, so that with bfloat16
    plain torch runs there. Raises ValueError for another name, and for tf32 where there is none.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "tf32" and device.type != "cuda":
        raise ValueError(f"precision 'tf32' is for CUDA devices, and the device is {device}: use float32 or bfloat16")
    if device.type == "cuda":
        with _tensor_cores("tf32" if precision == "tf32" else "ieee"):
            yield from _rounding(precision)
    else:
        yield from _rounding(precision)


def _rounding(precision: str) -> Iterator[None]:
    if precision == "bfloat16":
        with plain_only(), _Bfloat16():
            yield
    else:
        yield


class _Bfloat16(TorchFunctionMode):
    """Rounds what goes into the layers of networks, and gives what comes out in float32."""

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in LAYERS:
            return function(*args, **(kwargs or {}))
        return function(*map(_rounded, args), **{k: _rounded(v) for k, v in (kwargs or {}).items()}).float()


def _rounded(x: Any) -> Any:
    return x.bfloat16() if isinstance(x, Tensor) and x.dtype == torch.float32 else x


@contextmanager
def _tensor_cores(precision: str) -> Iterator[None]:
    """How float32 products and convolutions are computed on CUDA inside: "ieee" or "tf32"."""
    backends: Any = torch.backends
    settings = (backends.cuda.matmul, backends.cudnn.conv)
    before = [setting.fp32_precision for setting in settings]
    for setting in settings:
        setting.fp32_precision = precision
    try:
        yield
    finally:
        for setting, earlier in zip(settings, before, strict=True):
            setting.fp32_precision = earlier
