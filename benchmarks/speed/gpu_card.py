"""The GPU that gpu.py measures; in a dry run the CPU stands for it, with sizes of a moment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from statistics import median
from typing import Any, TypeVar

import torch

from benchmarks.common import Row

T = TypeVar("T")
ROW = "ROW "  # before each row that a part prints
REPEATS, TURNS = 20, 3  # replays of a measurement, and measurements


class Card:
    """A GPU, or in a dry run the CPU, with a loop for each step of a kernel's threads.

    seconds: of a measurement. device, backend: of environments that are compiled.
    """

    def __init__(self, dry: bool, seconds: float = 0.3) -> None:
        self.dry, self.seconds = dry, 0.0 if dry else seconds
        self.device = torch.device("cpu" if dry else "cuda")
        self.backend = "cuda" if find_spec("numba_cuda") and not dry else "torch"

    def of(self, real: T, dry: T) -> T:
        """A size: the second one in a dry run."""
        return dry if self.dry else real

    def wait(self) -> None:
        """Wait until the GPU has done what it was given."""
        if not self.dry:
            torch.cuda.synchronize()

    def tell(self, **row: Any) -> None:
        """Print a row of the part's result: what is printed stays, if the part fails or is ended."""
        print(ROW + json.dumps(row), flush=True)

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Compile losses for this device within this block; in a dry run as for a GPU."""
        if not self.dry:
            yield
            return
        from headrace.bindings.compiled import loss_conditions

        before, loss_conditions.on_gpu = loss_conditions.on_gpu, lambda device: True
        try:
            yield
        finally:
            loss_conditions.on_gpu = before

    def graph(self, call: Callable[[], object]) -> Callable[[], object]:
        """A call as a CUDA graph, after it has run three times as torch wants; in a dry run the call itself."""
        from headrace.parallel.cuda.cuda_graphs import cuda_graph

        if self.dry:
            return call
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()

        def body() -> None:
            call()

        return cuda_graph(body)

    def microseconds(self, replay: Callable[[], object]) -> float:
        """Microseconds of a replay, by the GPU's clock, of several one after the other."""
        if self.dry:
            return 1e6 * self.timed(replay)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPEATS):
            replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / REPEATS * 1000

    def in_turns(self, ways: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Microseconds of each way, medians of measurements that are taken in turns: a card's clock is not steady."""
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(1 if self.dry else TURNS + 1):  # the first is for warming up
            for name, replay in ways.items():
                took = self.microseconds(replay)
                if turn or self.dry:
                    found[name].append(took)
        return {name: median(times) for name, times in found.items()}

    def timed(self, call: Callable[[], object]) -> float:
        """Seconds of a call: the median of three windows, each waited for."""
        windows = []
        for _ in range(1 if self.dry else TURNS + 1):  # the first is for warming up
            self.wait()
            began, calls = time.perf_counter(), 0
            while not calls or time.perf_counter() - began < self.seconds:
                call()
                self.wait()
                calls += 1
            windows.append((time.perf_counter() - began) / calls)
        return median(windows[1:] or windows)


@contextmanager
def _switched_on(name: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def tensor_cores() -> AbstractContextManager[None]:
    """Let compiled losses multiply on tensor cores within this block."""
    return _switched_on("HEADRACE_TENSOR_CORES")


def one_launch() -> AbstractContextManager[None]:
    """Let compiled losses be one launch within this block."""
    return _switched_on("HEADRACE_ONE_LAUNCH")


def bijection() -> AbstractContextManager[None]:
    """Draw permutations without a sort within this block."""
    return _switched_on("HEADRACE_BIJECTION")


def errors_of(tell: Callable[..., None], facts: Row, call: Callable[[], object]) -> None:
    """Call something; where it fails, tell a row with its error, and go on."""
    try:
        call()
    except Exception as error:
        tell(**facts, error=f"{type(error).__name__}: {str(error)[:1000]}")
