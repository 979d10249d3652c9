"""Measures the round trip of an environment step to another process and back, on this machine."""

from __future__ import annotations

import multiprocessing
import time
from array import array
from contextlib import suppress
from multiprocessing.connection import Connection

TYPICAL = 100e-6  # s, assumed if it cannot be measured
TRIPS = 300
WARM_UP = 50
TIMEOUT = 20.0  # s for the process to start, or to answer


def measure() -> float:
    """Median seconds of one round trip like a vector environment's; TYPICAL if no process can be started."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=_answer, args=(there,), daemon=True)
    try:
        worker.start()
        return _median(here)
    except (OSError, EOFError, TimeoutError):
        return TYPICAL
    finally:
        if worker.pid is not None:
            worker.kill()


def _median(connection: Connection) -> float:
    seconds = []
    for _ in range(WARM_UP + TRIPS):
        started = time.perf_counter()
        connection.send(("step", 1))
        if not connection.poll(TIMEOUT):
            raise TimeoutError("the process does not answer")
        connection.recv()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[WARM_UP:])[TRIPS // 2]


def _answer(connection: Connection) -> None:
    observation: object = array("f", [0.0] * 4)
    with suppress(ImportError):  # as environments send it; without NumPy, something as small
        import numpy as np

        observation = np.zeros(4, np.float32)
    while connection.recv():
        connection.send((observation, 1.0, False, False, {"TimeLimit.truncated": False}))
