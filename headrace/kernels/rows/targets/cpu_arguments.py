"""Arguments of the calls that run programs, made in plain Python: nothing here needs Numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

U = np.uint64
PROGRAM, SQUARES, STEP = range(3)  # tasks of a learning call
TASK, DONE, STEPS, STOPPED, PAUSES, PAUSED = (U(i) for i in range(6))  # indices in Learning.now
EPOCHS, NUMBER, SIZE, ROWS = (U(i) for i in range(4))  # indices in Learning.sizes


class Work(NamedTuple):
    """entry: address of the program. slots: int64, of all workers, `each` for one. task: int64 [1], the current one."""

    entry: np.uint64
    slots: np.ndarray
    each: np.uint64
    task: np.ndarray
    phases: np.uint64


class Learning(NamedTuple):
    """What a call works with.

    work: the program. now: int64, the current task; minibatches and steps done; whether steps are no longer taken;
    whether the call pauses, and whether it has. sizes: int64, epochs, minibatches of one, rows of one, and rows of an
    epoch. moving: int64 [n, 2], argument slots, and how much they grow from one minibatch to the next. parameters,
    gradient, mean, square: float32, the optimizer's. ranges: int64 [n, 2], first and length of each. squares: float32
    [n]. numbers: float32. settings: float64, steps before, learning rate, eps, beta2, largest norm, limit of what is
    measured. measured: float32 [minibatches]; no step is taken where one is larger than the limit.
    """

    work: Work
    now: np.ndarray
    sizes: np.ndarray
    moving: np.ndarray
    parameters: np.ndarray
    gradient: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    ranges: np.ndarray
    squares: np.ndarray
    numbers: np.ndarray
    settings: np.ndarray
    measured: np.ndarray
