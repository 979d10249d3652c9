"""Devices by name, settings of torch's threads, and copies between devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch

from headrace.core.cores import cores

Device: TypeAlias = torch.device | str  # as users give it


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set the number of torch's CPU threads within this block. None: no change."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_DENORMAL = 5e-324


@contextmanager
def without_denormals() -> Iterator[None]:
    """Flush denormal numbers (below 1e-38) to 0 on this thread within this block.

    A processor is about a hundred times slower on denormals. Adam's moving averages decay to them and stay there, since
    0.9 times the smallest number is rounded to itself: units of a relu that never activate would make Adam ten times
    slower.
    """
    before = not _DENORMAL * 1.0  # Python's floats obey the same flags of the processor
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


_computing: Callable[[], Sequence[int]] = tuple


@contextmanager
def cores_taken(computing: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Let kernels leave one core to each process that is computing, within this block. Kernels use at least one core
    themselves.

    computing: returns a file descriptor for each such process, which becomes readable once it has finished.
    """
    global _computing
    before, _computing = _computing, computing
    try:
        yield
    finally:
        _computing = before


def processes_computing() -> Sequence[int]:
    """File descriptors of the processes that kernels leave cores to; empty if the user gave the number of threads."""
    computing = _computing()
    return () if computing and _given_threads() else computing


def kernel_threads() -> int:
    """The largest number of threads that learning and acting kernels use: $HEADRACE_THREADS, else $OMP_NUM_THREADS,
    else the number of cores. Unlike torch's threads, they cost little on a machine whose cores are busy."""
    return _given_threads() or cores()


def _given_threads() -> int:
    """The number of threads that the user has set; 0 if unset."""
    for name in ("HEADRACE_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdecimal():
            return max(1, int(os.environ[name]))
    return 0


def resolve(name: str | torch.device) -> torch.device:
    """The torch device of this name.

    Raises ValueError for an unknown name, and for a device that this machine does not have.
    """
    if name == "auto":
        raise ValueError("device 'auto' is train()'s choice by the number of weights: give cpu, cuda, cuda:0 or mps")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: use cpu, cuda, cuda:0 ... or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(name)!r} is not available: torch {torch.__version__} finds no CUDA device")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' is not available on this machine")
    return device


def known(flag: torch.Tensor) -> bool:
    """Tell whether a flag on the CPU is set. False on other devices, where waiting costs more than continuing."""
    return flag.device.type == "cpu" and bool(flag)


def numbers(scalars: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, float]:
    """Scalars on a device as numbers, rounded to float32."""
    if device.type == "cpu":
        return {name: x.float().item() for name, x in scalars.items()}
    # one transfer for all of them
    return dict(zip(scalars, torch.stack([x.float() for x in scalars.values()]).tolist(), strict=True))


def queue_end(device: torch.device) -> Callable[[], bool]:
    """Asks whether a device has finished what is queued on it now; always true for a device that is not a GPU."""
    if device.type != "cuda":
        return lambda: True
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.query


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each of `sources`, all on one device, to one of `targets`, all on one device too."""
    if targets and targets[0].device == sources[0].device:
        torch._foreach_copy_(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def transfer(source: torch.Tensor, target: torch.Tensor, stream: torch.cuda.Stream | None = None) -> torch.Tensor:
    """Copy `source` into `target` on another device; with a stream and pinned memory, without waiting for it.

    Returns the target.
    """
    if stream is None:
        return target.copy_(source)
    with torch.cuda.stream(stream):
        return target.copy_(source, non_blocking=True)
