"""Arguments of what follows from a rollout before a compiled loss learns it (headrace.kernels.learning.processing)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SHUFFLE_WORDS = 2 * 624  # uint32 of memory for permutations: see kernels.learning.permutations


class Processing(NamedTuple):
    """A rollout of T steps of N environments, R = T * N, all flat; and what process() writes.

    value: [R + N], the last N for the last observations. valid, terminated, truncated: bool. normalize: 1 to bring
    advantages to mean 0 and variance 1 over valid rows. seed, purpose, counter: of the order of rows, see
    headrace.core.rng.permutations; words: uint32 [SHUFFLE_WORDS], memory for it. advantage, returns, counted: float32
    [R]; counted is 1 for a valid row. order: int64 [epochs, R]. shares: float32 [epochs * minibatches], 1 / number of
    valid rows. fraction: float32 [1], the explained variance.
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
