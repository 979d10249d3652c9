"""Devices by name, torch's threads, and the one place that copies between devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headrace.core.cores import cores


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Let torch use `number` threads of the CPU inside, and as many as before again afterwards. None: as it does."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def without_denormals() -> Iterator[None]:
    """Numbers below 1e-38 count as 0 on this thread inside: a processor takes a hundred times longer over them.

    Averages of gradients come to them and stay: 0.9 times the smallest is rounded to the smallest. With relu, units
    that are never on then make Adam ten times slower.
    """
    before = not float(torch.full((), 1e-40) * 1.0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def kernel_threads() -> int:
    """How many threads the learning and acting kernels may share their work among: $HEADRACE_THREADS, else
    $OMP_NUM_THREADS, else the cores this process may use. Unlike torch's, they cost little where the cores are taken.
    """
    for name in ("HEADRACE_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdecimal():
            return max(1, int(os.environ[name]))
    return cores()


def resolve(name: str | torch.device) -> torch.device:
    """The torch device `name` stands for. "auto" is the CPU: for the small networks of today's algorithms it is faster.

    Raises ValueError for a device this machine does not have.
    """
    if name == "auto":
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:0 ... or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(name)!r} asked for, but torch {torch.__version__} sees no CUDA device here")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' asked for, but this machine has none")
    return device


def known(flag: torch.Tensor) -> bool:
    """Whether a flag is set, where that can be seen without waiting: on the CPU. False elsewhere: asking a GPU, and
    idling until it answers, costs more than going on."""
    return flag.device.type == "cpu" and bool(flag)


def transfer(source: torch.Tensor, target: torch.Tensor, stream: torch.cuda.Stream | None = None) -> torch.Tensor:
    """Copy `source` into `target` on another device: without waiting, where memory is pinned and a stream given.

    Gives the target.
    """
    if stream is None:
        return target.copy_(source)
    with torch.cuda.stream(stream):
        return target.copy_(source, non_blocking=True)
