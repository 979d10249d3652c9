"""A step of Adam along a program's gradients, cut into parts that threads share.

The parts are of fixed length and their squares are added in order, so results do not depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn.adam_step import adam, load_scale, scales, squares, store_scale
from headrace.kernels.rows.targets.cpu_arguments import BETA1, BETA2, DECAY, EPS, NORM, RATE, STEPS
from headrace.kernels.runtime.jit import MERGED, njit

F, U = np.float32, np.uint64
_0 = U(0)
# in Optimizer.numbers, after those of scales()
_EPS, _KEEP2, _TAKE2, _KEEP1, _TAKE1, _LEFT = (U(i) for i in range(3, 9))


@njit(**MERGED)
def square_part(part, optimizer):
    """Add up the squares of a part of the gradient."""
    first, count = U(optimizer.ranges[part, 0]), U(optimizer.ranges[part, 1])
    optimizer.squares[part] = squares(optimizer.gradient, first, count)


@njit(**MERGED)
def begin_step(optimizer):
    """Prepare the numbers that all parts of a step need. The gradient's norm is that of `squares`."""
    total, settings, numbers = F(0), optimizer.settings, optimizer.numbers
    for i in range(_0, U(len(optimizer.squares))):
        total += optimizer.squares[i]
    settings[STEPS] += 1
    beta1, beta2 = settings[BETA1], settings[BETA2]
    scale = scales(math.sqrt(total), settings[STEPS], settings[RATE], settings[NORM], beta2, beta1)
    store_scale(numbers, _0, scale)
    numbers[_EPS], numbers[_KEEP2], numbers[_TAKE2] = settings[EPS], beta2, 1.0 - beta2
    numbers[_KEEP1], numbers[_TAKE1] = beta1, 1.0 - beta1
    numbers[_LEFT] = 1.0 - settings[RATE] * settings[DECAY]


@njit(**MERGED)
def step_part(part, optimizer):
    """Move a part of the parameters."""
    first, count, numbers = U(optimizer.ranges[part, 0]), U(optimizer.ranges[part, 1]), optimizer.numbers
    left = numbers[_LEFT]
    if left != F(1):
        for i in range(first, first + count):
            optimizer.parameters[i] *= left
    adam(
        optimizer.parameters,
        optimizer.gradient,
        optimizer.mean,
        optimizer.square,
        first,
        count,
        load_scale(numbers, _0),
        numbers[_EPS],
        numbers[_KEEP2],
        numbers[_TAKE2],
        numbers[_KEEP1],
        numbers[_TAKE1],
    )
