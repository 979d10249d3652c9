"""The advantage's recursion compiled: one pass over the columns, SIMD across environments."""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.jit import ENTRY, njit

F, U = np.float32, np.uint64


@njit(**ENTRY)
def gae(steps, envs, reward, value, next_value, ahead, terminated, truncated, advantage, gamma, gae_lambda):
    """advantage of columns [T, N], all flat, with the operations of headrace.core.returns.gae in its order.

    ahead: where the first row's values begin in next_value."""
    decay, discount = F(gamma * gae_lambda), F(gamma)
    # unsigned indices: signed ones may be negative, and LLVM does not vectorise the wrap-around
    for back in range(U(steps)):
        first = (U(steps) - U(1) - back) * U(envs)
        for i in range(first, first + U(envs)):
            future = F(0) if terminated[i] else next_value[U(ahead) + i]
            ended = terminated[i] | truncated[i]
            next_advantage = F(0) if back == U(0) else advantage[i + U(envs)]
            delta = (reward[i] + discount * future) - value[i]
            advantage[i] = delta + (F(0) if ended else decay) * next_advantage


@njit(fastmath={"reassoc"}, **ENTRY)  # sums of float64, rounded to float32 at the end: their order is not seen
def explained(rows, prediction, target, valid, fraction):
    """fraction[0]: the fraction of the variance of target that a prediction explains over valid entries; all flat."""
    rows, first = U(rows), U(0)
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
