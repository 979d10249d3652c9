"""The advantage's recursion compiled: one pass over the columns, SIMD across environments."""

from __future__ import annotations

import numpy as np

from headrace.kernels.jit import ENTRY, njit

F, U = np.float32, np.uint64


@njit(**ENTRY)
def gae(reward, value, next_value, terminated, truncated, advantage, gamma, gae_lambda):
    """advantage [T, N] of columns [T, N], with the operations of headrace.returns.gae in its order."""
    steps, envs = reward.shape
    decay, discount = F(gamma * gae_lambda), F(gamma)
    # unsigned indices: signed ones may be negative, and LLVM does not vectorise the wrap-around
    for back in range(U(steps)):
        t = U(steps) - U(1) - back
        for n in range(U(envs)):
            future = F(0) if terminated[t, n] else next_value[t, n]
            ended = terminated[t, n] | truncated[t, n]
            following = F(0) if back == U(0) else advantage[t + U(1), n]
            delta = (reward[t, n] + discount * future) - value[t, n]
            advantage[t, n] = delta + (F(0) if ended else decay) * following
