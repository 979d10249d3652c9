"""Arguments of the calls that run programs, made in plain Python: nothing here needs Numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

U = np.uint64
PROGRAM, SQUARES, STEP, FOLLOW = range(4)  # tasks of a learning call
TASK, DONE, STOPPED, PAUSES, PAUSED, STAGE = (U(i) for i in range(6))  # indices in `now` of a learning call
WORDS, LONGS, FLAGS = range(3)  # what a buffer consists of that is written to: int64, bool; else words of 32 bits
EPOCHS, NUMBER, SIZE, ROWS = (U(i) for i in range(4))  # indices in Learning.sizes
STEPS, RATE, EPS, BETA1, BETA2, NORM, DECAY = (U(i) for i in range(7))  # indices in Optimizer.settings


class Work(NamedTuple):
    """Program of a call. entry: its address. slots: int64, of all workers, `each` for one. task: int64 [1], the current
    one. parts: int64, number of parts of each task."""

    entry: np.uint64
    slots: np.ndarray
    each: np.uint64
    task: np.ndarray
    parts: np.ndarray


class Optimizer(NamedTuple):
    """Adam's buffers. parameters, gradient, mean, square: float32. ranges: int64 [n, 2], first and length of each part
    that is learned. squares: float32 [n]. numbers: float32, of the present step. settings: float64, steps taken,
    learning rate, eps, beta1, beta2, largest norm, weight decay."""

    parameters: np.ndarray
    gradient: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    ranges: np.ndarray
    squares: np.ndarray
    numbers: np.ndarray
    settings: np.ndarray


class Learning(NamedTuple):
    """Arguments of a call that learns minibatches of a rollout's rows.

    work: the program. now: int64, the current task; minibatches done; 1 once no more steps are taken; 1 for the call to
    pause; 1 once it has paused. sizes: int64, epochs, minibatches of an epoch, rows of a minibatch, and rows of an
    epoch. moving: int64 [n, 2], argument slots, and how much they grow from one minibatch to the next. writes: int64
    [n, 4], of a buffer that the loss writes to: the address of its new numbers, its own address, the count of its
    numbers, and their kind. measured: float32 [minibatches]; no step is taken where one is larger than limit, float64
    [1].
    """

    work: Work
    now: np.ndarray
    sizes: np.ndarray
    moving: np.ndarray
    writes: np.ndarray
    optimizer: Optimizer
    limit: np.ndarray
    measured: np.ndarray


class Stage(NamedTuple):
    """Arguments of a gradient step along one loss: a program, one or two optimizers, and up to two target networks.

    every: gradient steps for one of these. moving: int64 [n, 3], an argument slot, its number in the first minibatch,
    and how much it grows from one to the next. writes: see Learning. second: an optimizer without parameters where
    there is only one. targets: pairs of float32 buffers, a target network's and that of the network it moves towards;
    empty for none. tau: float32 [minibatches], the fraction of each move.
    """

    every: np.int64
    work: Work
    moving: np.ndarray
    writes: np.ndarray
    optimizer: Optimizer
    second: Optimizer
    targets: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    tau: np.ndarray


class Collecting(NamedTuple):
    """Arguments of a call that collects.

    acts: the program that acts, and what moves: int64 [n, 3], an argument slot, the address that it has in the first
    row, and bytes from row to row. last: the same for the program that evaluates the observation after the last step,
    one row for each environment. evaluates: whether that program is called. step: (address of the entry point of the
    environment's step, number of its argument slots); steps: these slots, uint64, one run of them for each worker. The
    last three of a run are the worker's first environment, its last + 1, and the time. random: float32 [draws, T, N],
    flat. sizes: uint64 (T, N, draws). counter: uint64 (1 to fill random with the draws of a seed, a purpose, a first
    step and a first environment, which follow; 0 where it is given). spent: uint64, LINE for each worker; ticks of the
    policy and of the environment are added to its first two.
    """

    acts: tuple[Work, np.ndarray]
    last: tuple[Work, np.ndarray]
    evaluates: np.uint64
    step: tuple[np.uint64, np.uint64]
    steps: np.ndarray
    random: np.ndarray
    sizes: tuple[np.uint64, np.uint64, np.uint64]
    counter: tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64]
    spent: np.ndarray
