"""Advantages, returns, the order of rows, and the weight of a row in each minibatch: all that follows from a rollout
before a compiled loss learns it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.learning.advantage import explained, gae
from headrace.kernels.learning.permutations import permutations
from headrace.kernels.learning.rollouts_rows import moments
from headrace.kernels.nn.philox import mixed
from headrace.kernels.runtime.jit import ENTRY, njit

F, U = np.float32, np.uint64


class Processing(NamedTuple):
    """A rollout of T steps of N environments, R = T * N, all flat; and what process() writes.

    value: N entries more, those of the last observations. valid, terminated, truncated: bool. normalize: 1 to bring
    advantages to mean 0 and variance 1 over valid rows. seed, purpose, counter: of the order of rows, see
    headrace.core.rng.permutations; words: uint32 [2 * 624], memory for it.
    advantage, returns, counted: float32 [R]; counted is 1 for a valid row. order: int64 [epochs, R]. shares: float32
    [epochs * minibatches], 1 / number of valid rows. fraction: float32 [1], the explained variance.
    """

    reward: np.ndarray
    value: np.ndarray
    valid: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    envs: np.uint64
    gamma: float
    gae_lambda: float
    normalize: np.uint64
    seed: np.uint64
    purpose: np.uint64
    counter: np.uint64
    words: np.ndarray
    advantage: np.ndarray
    returns: np.ndarray
    counted: np.ndarray
    order: np.ndarray
    shares: np.ndarray
    fraction: np.ndarray


@njit(**ENTRY)
def process(given, number):
    """Write what `given` has room for. number: minibatches of an epoch."""
    rows, value, ends = U(len(given.counted)), given.value, (given.terminated, given.truncated)
    steps, factors = rows // given.envs, (given.gamma, given.gae_lambda)
    gae(steps, given.envs, given.reward, value, value, given.envs, *ends, given.advantage, *factors)
    for r in range(rows):
        given.returns[r] = given.advantage[r] + value[r]
        given.counted[r] = F(1) if given.valid[r] else F(0)
    explained(rows, value, given.returns, given.valid, given.fraction)
    if given.normalize:
        mean, scale = moments(given.advantage, given.valid)
        for r in range(rows):
            given.advantage[r] = (given.advantage[r] - mean) * scale
    permutations(np.uint32(mixed(given.seed, given.purpose, given.counter)), given.words, given.order)
    size = rows // U(number)
    for batch in range(U(len(given.shares))):
        epoch, first = batch // U(number), batch % U(number) * size
        count = 0
        for r in range(first, first + size):
            count += given.valid[U(given.order[epoch, r])]
        given.shares[batch] = F(1) / F(max(count, 1))
