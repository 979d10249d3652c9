"""The advantage's recursion compiled: one pass over the columns, SIMD across environments."""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.jit import ENTRY, njit

F, U = np.float32, np.uint64


@njit(**ENTRY)
def gae(reward, value, next_value, terminated, truncated, advantage, gamma, gae_lambda):
    """advantage [T, N] of columns [T, N], with the operations of headrace.core.returns.gae in its order."""
    steps, envs = reward.shape
    decay, discount = F(gamma * gae_lambda), F(gamma)
    # unsigned indices: signed ones may be negative, and LLVM does not vectorise the wrap-around
    for back in range(U(steps)):
        t = U(steps) - U(1) - back
        for n in range(U(envs)):
            future = F(0) if terminated[t, n] else next_value[t, n]
            ended = terminated[t, n] | truncated[t, n]
            next_advantage = F(0) if back == U(0) else advantage[t + U(1), n]
            delta = (reward[t, n] + discount * future) - value[t, n]
            advantage[t, n] = delta + (F(0) if ended else decay) * next_advantage


@njit(fastmath={"reassoc"}, **ENTRY)  # sums of float64, rounded to float32 at the end: their order is not seen
def explained(prediction, target, valid, fraction):
    """fraction[0]: the fraction of the variance of target that a prediction explains over valid entries; all flat."""
    rows, first = U(len(valid)), U(0)
    while first < rows and not valid[first]:
        first += U(1)
    if first == rows:
        fraction[0] = F(0)
        return
    # counted from the first, so that what does not vary has a variance of exactly 0
    origin = target[first]
    count, mean_target, mean_error = 0.0, 0.0, 0.0
    for r in range(rows):
        count += 1.0 if valid[r] else 0.0
        mean_target += target[r] - origin if valid[r] else 0.0
        mean_error += target[r] - prediction[r] if valid[r] else 0.0
    mean_target /= count
    mean_error /= count
    of_target, of_error = 0.0, 0.0
    for r in range(rows):
        of_target += (target[r] - origin - mean_target) ** 2 if valid[r] else 0.0
        of_error += (target[r] - prediction[r] - mean_error) ** 2 if valid[r] else 0.0
    fraction[0] = F(1.0 - of_error / of_target) if of_target > 0.0 else F(0)
