"""Advantages, returns, the order of rows, and the weight of a row in each minibatch: all that follows from a rollout
before a compiled loss learns it."""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.learning.advantage import explained, gae
from headrace.kernels.learning.permutations import permutations
from headrace.kernels.nn.philox import mixed
from headrace.kernels.runtime.jit import ENTRY, INNER, njit

F, U = np.float32, np.uint64


@njit(fastmath={"reassoc"}, **INNER)  # sums of float64, rounded to float32 at the end: their order is not seen
def _moments(rows, x, valid):
    """Mean, and 1 / (standard deviation + 1e-8), over valid entries."""
    count, total, squares = 0.0, 0.0, 0.0
    for r in range(rows):
        count += 1.0 if valid[r] else 0.0
        total += x[r] if valid[r] else 0.0
    mean = total / max(count, 1.0)
    for r in range(rows):
        squares += (x[r] - mean) ** 2 if valid[r] else 0.0
    return mean, 1.0 / (math.sqrt(squares / max(count, 1.0)) + 1e-8)


@njit(**ENTRY)
def normalize(rows, x, valid, target):
    """Write x with mean 0 and variance 1 over valid entries; all flat, of so many rows."""
    mean, scale = _moments(U(rows), x, valid)
    for r in range(U(rows)):
        target[r] = F((x[r] - mean) * scale)


@njit(**ENTRY)
def share(valid, order, size, shares):
    """Write 1 / number of valid rows of each minibatch of so many rows: shares [epochs * minibatches]. valid: float32
    or bool [rows]. order: int64 [epochs, rows]."""
    number = U(order.shape[1]) // U(size)
    for epoch in range(U(order.shape[0])):
        for batch in range(number):
            count = 0
            for r in range(batch * U(size), (batch + U(1)) * U(size)):
                count += 1 if valid[U(order[epoch, r])] else 0
            shares[epoch * number + batch] = F(1) / F(max(count, 1))


@njit(**ENTRY)
def process(given, number):
    """Write what `given`, a processing_arguments.Processing, has room for. number: minibatches of an epoch."""
    rows, value, ends = U(len(given.counted)), given.value, (given.terminated, given.truncated)
    steps, factors = rows // given.envs, (given.gamma, given.gae_lambda)
    gae(steps, given.envs, given.reward, value, value, given.envs, *ends, given.advantage, *factors)
    for r in range(rows):
        given.returns[r] = given.advantage[r] + value[r]
        given.counted[r] = F(1) if given.valid[r] else F(0)
    explained(rows, value, given.returns, given.valid, given.fraction)
    if given.normalize:
        normalize(rows, given.advantage, given.valid, given.advantage)
    permutations(np.uint32(mixed(given.seed, given.purpose, given.counter)), given.words, given.order)
    share(given.valid, given.order, rows // U(number), given.shares)
