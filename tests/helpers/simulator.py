"""Numba's simulator of CUDA, in a process of its own, without its polling.

The simulator has a thread of Python for each thread of a block, which all run at once, and the thread that started them
asks each whether it waits at a barrier, again and again: most of the time goes there. Here the threads of a block take
turns: each runs as far as the next barrier, or to its end. Between barriers they run in order and in reverse order
alternately, so that a kernel that lacks a barrier is found whichever of its threads has to be the first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from threading import Lock
from types import FrameType, SimpleNamespace

import numpy
import pytest

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def assert_passes(file: str) -> None:
    """The tests of a file that have "simulated" in their names, in a process with the simulator: Numba reads the
    setting when it is imported."""
    pytest.importorskip("numba_cuda")
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-k", "simulated", "-p", "no:cacheprovider", file]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)


def take_turns() -> None:
    """Let the threads of simulated blocks run one after another from now on."""
    from headrace.kernels.targets.cuda.launch import numba_cuda

    numba_cuda()
    from numba.cuda.simulator import kernel, kernelapi

    class Turn(kernel.BlockThread):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            self.mine, self.others, self.ended = Lock(), Lock(), False
            self.mine.acquire()
            self.others.acquire()

        def go(self) -> None:
            """Run as far as the next barrier; raise what is raised there."""
            self.mine.release()
            self.others.acquire()
            if self.exception:
                raise self.exception[0].with_traceback(self.exception[1])

        def run(self) -> None:
            self.mine.acquire()
            if not self.abort:
                super().run()
            self.ended = True
            self.others.release()

        def syncthreads(self) -> None:
            self.others.release()
            self.mine.acquire()
            if self.abort:
                raise RuntimeError("another thread of the block has raised an exception")

    def run(self, grid_point: tuple[int, ...], *arguments: object) -> None:
        points = numpy.ndindex(*self._block_dim)
        waiting = [Turn(lambda: self._f(*arguments), self, grid_point, point, self._debug) for point in points]
        for thread in waiting:
            thread.start()
        try:
            while waiting:
                for thread in waiting:
                    thread.go()
                waiting = [thread for thread in waiting[::-1] if not thread.ended]
        finally:
            for thread in waiting:
                if not thread.ended:
                    thread.abort = True
                    thread.mine.release()

    def places(frame: FrameType) -> list[tuple[str, int]]:
        """Find where a shared array is made, which names it; traceback reads the source of the whole stack for that."""
        return [(f.f_code.co_filename, f.f_lineno) for f in (frame.f_back, frame) if f]

    kernel.BlockManager.run = run
    kernelapi.traceback = SimpleNamespace(extract_stack=places)
