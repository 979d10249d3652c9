"""The columns of a rollout as the learning call reads them: float32, flat, with advantages normalised."""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.runtime.jit import ENTRY, INNER, njit

F, U = np.float32, np.uint64


@njit(**ENTRY)
def take(action, start, log_prob, value, valid, advantage, returns, normalize, rows):
    """Fill in `rows`, a rollouts_arguments.Columns but for its observation, from R rows, all flat.

    action: (choice int32, action float32, distance between two components), of which one is empty. start: int32 [K],
    the number of each choice's first option. normalize: 1 to bring advantages to mean 0 and variance 1 over valid rows.
    """
    choice, number, plane = action
    mean, scale = F(0), F(1)
    if normalize:
        mean, scale = _moments(advantage, valid)
    for r in range(U(len(valid))):
        rows.log_prob[r], rows.value[r], rows.returns[r] = log_prob[r], value[r], returns[r]
        rows.advantage[r] = (advantage[r] - mean) * scale
        rows.valid[r] = F(1) if valid[r] else F(0)
    for k in range(U(len(start))):
        first = start[k]
        for r in range(U(len(valid))):
            if len(choice) > 0:
                # subtracted as whole numbers: float32 has not all of those above 2^24
                rows.action[k, r] = F(np.int32(choice[k * plane + r] - first))
            else:
                rows.action[k, r] = number[k * plane + r]


@njit(fastmath={"reassoc"}, **INNER)  # sums of float64, rounded to float32 at the end: their order is not seen
def _moments(x, valid):
    """Mean, and 1 / (standard deviation + 1e-8), over valid entries."""
    count, total, squares = 0.0, 0.0, 0.0
    for r in range(U(len(valid))):
        count += 1.0 if valid[r] else 0.0
        total += x[r] if valid[r] else 0.0
    mean = total / max(count, 1.0)
    for r in range(U(len(valid))):
        squares += (x[r] - mean) ** 2 if valid[r] else 0.0
    return F(mean), F(1.0 / (math.sqrt(squares / max(count, 1.0)) + 1e-8))
