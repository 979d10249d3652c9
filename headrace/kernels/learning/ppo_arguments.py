"""What the kernel of PPO's learning call is handed, and where it leaves word of what it did."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.layout import Head, Normalizer, Places

PARTS, PART = 8, 128  # parts at most, and samples a part is worth
DONE, STEPS = np.uint64(5), np.uint64(7)  # places in Job.batch
SUMS = 16  # numbers of a minibatch's sums: one vector


class Columns(NamedTuple):
    """A rollout of R rows, float32. observation: [inputs, R], flat, its rows `stride` apart. action: [K, R]. The rest
    [R]; valid is 1 or 0."""

    observation: np.ndarray
    stride: np.uint64
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    advantage: np.ndarray
    returns: np.ndarray
    valid: np.ndarray


class Loss(NamedTuple):
    """Coefficients of the loss, float32: as in PPOConfig; value = center + scale * the critic's output."""

    clip: np.float32
    value_clip: np.float32
    value_coef: np.float32
    entropy_coef: np.float32
    center: np.float32
    scale: np.float32


class Job(NamedTuple):
    """All that is the same for every minibatch, and room for what is not.

    layers: the network. trees: uint64 [1 or 2, 5], its parts that share no layers: first layer, end, place and size in
    a gradient, and what it ends in, ACTOR, CRITIC or both. ranges: uint64 [*, 3], runs of parameters: whose tree's,
    where they begin, how many. permutation: int64 [epochs, R]. parameters, mean, square,
    flat: float32 [P]; flat is room for the gradient in the parameters' order. scratch: float32, one row a worker.
    gradient: one row a part. sums: float32 [parts * trees, SUMS]. batch: int64 [8], zeros at
    first: the task that is on, epoch, start, size, parts, minibatches done, whether KL stopped it, steps taken.
    numbers: float32 [8]: 1 / valid rows, the step's scale (adam_cpu.scales) and eps, squares of each tree's gradient.
    """

    layers: np.ndarray
    trees: np.ndarray
    ranges: np.ndarray
    head: Head
    places: Places
    loss: Loss
    normalizer: Normalizer
    columns: Columns
    permutation: np.ndarray
    parameters: np.ndarray
    mean: np.ndarray
    square: np.ndarray
    flat: np.ndarray
    scratch: np.ndarray
    gradient: np.ndarray
    sums: np.ndarray
    numbers: np.ndarray
    batch: np.ndarray
