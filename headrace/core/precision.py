"""The number format in which networks compute: applies the setting `precision`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headrace.core.device import cores_taken, torch_threads, without_denormals
from headrace.core.fused import plain_only
from headrace.core.terminal import tell

Precision = Literal["float32", "tf32", "bfloat16", "auto"]
PRECISIONS = ("float32", "tf32", "bfloat16")
LAYERS = (functional.linear, functional.conv1d, functional.conv2d, torch.conv1d, torch.conv2d)


def resolve(precision: Precision, network: nn.Module, device: torch.device) -> Precision:
    """The precision of this name; a line says what bfloat16 means on a CPU. "auto" is bfloat16 for networks with
    convolutions on devices that multiply it in hardware, and float32 otherwise."""
    if precision == "bfloat16" and device.type == "cpu":
        tell(
            "precision bfloat16: the policy acts and learns in plain PyTorch, since the CPU's kernels and compiled "
            "losses compute in float32; small networks are faster with these"
        )
    if precision != "auto":
        return precision
    convolves = any(isinstance(module, nn.Conv1d | nn.Conv2d) for module in network.modules())
    return "bfloat16" if convolves and multiplies_bfloat16(device) else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Tell whether a device multiplies bfloat16 in hardware: a GPU's tensor cores, a CPU's AMX or AVX512-BF16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and any(
        getattr(torch.cpu, name, bool)() for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    )


def of_copy(precision: str, device: torch.device) -> str:
    """The precision of a network's copy on another device: a tf32 network's is float32 where there is no tf32."""
    return "float32" if precision == "tf32" and device.type != "cuda" else precision


@contextmanager
def torch_settings(
    threads: int | None, others: Callable[[], Sequence[int]], precision: str, device: torch.device
) -> Iterator[None]:
    """Let torch compute as in a training, within this block: see torch_threads(), cores_taken(), without_denormals()
    and computing()."""
    with torch_threads(threads), cores_taken(others), without_denormals(), computing(precision, device):
        yield


@contextmanager
def computing(precision: str, device: torch.device) -> Iterator[None]:
    """Let layers compute in float32, tf32 (CUDA only) or bfloat16 within this block.

    tf32 and bfloat16 round only the factors of matrix products, to 11 and 8 bits: weights, activations, distributions,
    losses, optimizers and environments stay in float32. The CPU kernels support float32 only: with bfloat16 plain torch
    runs. Raises ValueError for another name, and for tf32 on a device other than CUDA.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "tf32" and device.type != "cuda":
        raise ValueError(f"precision 'tf32' is for CUDA devices, and the device is {device}: use float32 or bfloat16")
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(_tensor_cores("tf32" if precision == "tf32" else "ieee"))
        if precision == "bfloat16":
            stack.enter_context(plain_only())
            stack.enter_context(_Bfloat16())
        yield


class _Bfloat16(TorchFunctionMode):
    """Rounds the inputs and weights of LAYERS to bfloat16; their outputs are float32."""

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in LAYERS:
            return function(*args, **(kwargs or {}))
        return function(*map(_rounded, args), **{k: _rounded(v) for k, v in (kwargs or {}).items()}).float()


def _rounded(x: Any) -> Any:
    return x.bfloat16() if isinstance(x, Tensor) and x.dtype == torch.float32 else x


@contextmanager
def _tensor_cores(precision: str) -> Iterator[None]:
    """Compute float32 products and convolutions on CUDA as "ieee" or "tf32", within this block."""
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
