"""The columns of a rollout as the learning call reads them: float32, flat, with advantages normalised."""

from __future__ import annotations

import numpy as np

from headrace.kernels.learning.advantage import explained, gae
from headrace.kernels.learning.permutations import permutations
from headrace.kernels.learning.processing import moments
from headrace.kernels.nn.philox import mixed
from headrace.kernels.runtime.jit import INNER, MERGED, njit

F, U = np.float32, np.uint64


@njit(**MERGED)
def prepare(collected, rows, order, explained_variance):
    """Fill in `rows`, a rollouts_arguments.Columns but for its observation, and the order of rows in each epoch, int32
    [epochs, R]; where they are not given, explained_variance[0], too."""
    if collected.estimate:
        _estimate(collected, rows)
        explained(len(rows.valid), collected.value, rows.returns, collected.valid, explained_variance)
        seed = mixed(collected.seed, collected.purpose, collected.counter)
        permutations(np.uint32(seed), collected.words, order)
    else:
        for r in range(U(len(rows.valid))):
            rows.advantage[r], rows.returns[r] = collected.advantage[r], collected.returns[r]
        for epoch in range(U(len(order))):
            for r in range(U(len(rows.valid))):
                order[epoch, r] = np.int32(collected.order[epoch * U(len(rows.valid)) + r])
    _take(collected, rows)


@njit(**MERGED)
def _estimate(collected, rows):
    """Advantages by GAE, and returns."""
    value, envs, ends = collected.value, collected.envs, (collected.terminated, collected.truncated)
    steps = U(len(rows.valid)) // envs
    factors = collected.gamma, collected.gae_lambda
    gae(steps, envs, collected.reward, value, value, envs, ends[0], ends[1], rows.advantage, factors[0], factors[1])
    for r in range(U(len(rows.valid))):
        rows.returns[r] = rows.advantage[r] + value[r]


@njit(**INNER)
def _take(collected, rows):
    """The columns that are only copied, and advantages, which are normalised where that is wanted."""
    mean, scale = F(0), F(1)
    if collected.normalize:
        mean, scale = moments(rows.advantage, collected.valid)
    for r in range(U(len(rows.valid))):
        rows.log_prob[r], rows.value[r] = collected.log_prob[r], collected.value[r]
        rows.advantage[r] = (rows.advantage[r] - mean) * scale
        rows.valid[r] = F(1) if collected.valid[r] else F(0)
    for k in range(U(len(collected.start))):
        first, plane = collected.start[k], k * U(len(rows.valid))
        for r in range(U(len(rows.valid))):
            if len(collected.choice) > 0:
                # subtracted as whole numbers: float32 has not all of those above 2^24
                rows.action[k, r] = F(np.int32(collected.choice[plane + r] - first))
            else:
                rows.action[k, r] = collected.number[plane + r]
