"""Arguments of the kernels that step environments, fill a replay buffer and learn from it, for off-policy algorithms.

Arrays are flat; T steps of N environments, observations of F numbers, actions of K numbers or one choice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ACT, STEP, APPEND, LEARN = 1, 2, 4, 8  # flags of what run_steps does
# indices in Steps.span, int64: the first step and the last + 1, flags, gradient steps before the next one
FIRST, LAST, FLAGS, UPDATES = (np.uint64(i) for i in range(4))
PARTS = 3  # numbers in Steps.spent: ticks of acting, environments, learning


class Columns(NamedTuple):
    """Columns of a rollout. Entry (t, n) is at t * N + n; number f of an observation `plane` further for each f, of an
    action `action_plane`. Of action (float32) and choice (int32) one is empty."""

    observation: np.ndarray
    valid: np.ndarray
    action: np.ndarray
    choice: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    plane: np.uint64
    action_plane: np.uint64


class Priorities(NamedTuple):
    """Buffers of prioritized replay (headrace.data.priorities). depth: of its tree, float64 [2^(depth + 1)]; 0 where
    rows are drawn uniformly. ahead: rows of an n-step return. beta: float32 [1]; highest: float64 [1]. rows, found:
    memory for the rows of G minibatches, int64, and their new priorities, float64."""

    depth: np.uint64
    ahead: np.uint64
    tree: np.ndarray
    alpha: float
    beta: np.ndarray
    highest: np.ndarray
    rows: np.ndarray
    found: np.ndarray


class Ring(NamedTuple):
    """A replay buffer (headrace.data.replay): columns [length, N, ...], and written, int64 [N]."""

    observation: np.ndarray
    valid: np.ndarray
    action: np.ndarray
    choice: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    written: np.ndarray
    length: np.uint64
    envs: np.uint64
    features: np.uint64
    actions: np.uint64
    priorities: Priorities


class Minibatches(NamedTuple):
    """Settings of the draws of G minibatches of `rows` rows, and columns for them [G, room, ...]. The first rows of
    each minibatch are written.

    seed: of the draws. n_steps, gamma: of the returns. draws: count of uniform numbers of a row for the losses, in
    random. One of action (float32) and choice (int32) is empty. weight: of a row in the loss's mean, 0 for a masked
    row; times its importance weight with prioritized replay. Other columns are float32.
    """

    steps: np.uint64
    rows: np.uint64
    room: np.uint64
    seed: np.uint64
    n_steps: np.uint64
    gamma: np.float32
    draws: np.uint64
    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    choice: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    weight: np.ndarray
    random: np.ndarray


class Learning(NamedTuple):
    """The learning call of G gradient steps: (kernels.runtime.native) its entry point, its argument slots, a run of
    `slots` for each worker, uint64; its work queue's state.

    since: the slot with the number of gradient steps taken, modulo `period`, which losses with a delay need. follow:
    float32 [G], the fraction by which the target moves after each step: tau after every `interval`, else 0; empty where
    that is constant. metrics: float32 [G, M], 0 where one was not measured. error: float32 [G, room], TD errors for
    priorities; or empty. sums: float64 [M + 1], sums of the metrics, and last the number of gradient steps that they
    are sums of.
    """

    entry: np.uint64
    slots: np.uint64
    words: np.ndarray
    state: np.ndarray
    since: np.uint64
    period: np.int64
    follow: np.ndarray
    tau: np.float32
    interval: np.int64
    metrics: np.ndarray
    error: np.ndarray
    sums: np.ndarray


class Steps(NamedTuple):
    """Arguments of T steps. span: int64 [4], see above. every: steps from learning to learning. actor, actor_words:
    entry point and argument slots of the program that acts for a row of environments; moving: int64 [n, 3], a slot of
    it, the address that it has in the first row, and bytes from row to row. entry, words: of the environments' step,
    whose last slot is the time. spent: uint64 [PARTS], see above."""

    span: np.ndarray
    every: np.int64
    actor: np.uint64
    actor_words: np.ndarray
    moving: np.ndarray
    entry: np.uint64
    words: np.ndarray
    spent: np.ndarray
