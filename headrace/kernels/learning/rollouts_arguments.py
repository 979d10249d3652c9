"""Arguments of the kernel of a learning call on a rollout (headrace.kernels.learning.rollouts)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.layout import Head, Normalizer, ScratchOffsets

PARTS, PART = 8, 128  # parts of a minibatch at most, and samples that make a part worth its own gradient
TASK, DONE, STEPS = np.uint64(0), np.uint64(5), np.uint64(7)  # indices in RolloutArguments.batch
ADDED_BY_OTHERS = 4  # the task at which a call with several learners, or for a gradient alone, returns
CLIPPED_RATIO, LOG_PROB = np.uint64(0), np.uint64(1)  # the policy's losses: PPO's, and the policy gradient's
SUMS = 16  # numbers of a minibatch's sums: one vector
SHUFFLE_WORDS = 2 * 624  # uint32 of memory for permutations: see kernels.learning.permutations


class Columns(NamedTuple):
    """A rollout of R rows, float32. observation: [inputs, R], flat, its rows `stride` apart, and
    after them those of an action mask. action: [K, R]. The rest
    [R]; valid is 1 or 0."""

    observation: np.ndarray
    stride: np.uint64
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    advantage: np.ndarray
    returns: np.ndarray
    valid: np.ndarray


class Collected(NamedTuple):
    """A rollout of T steps of N environments as it was collected, from which a call fills in Columns: flat arrays of
    T * N entries. Their sizes are not read, but for whether there are choices.

    choice, number: actions [K, T * N], int32 or float32; the other is empty. start: int32 [K], the number of each
    choice's first option. value: has N entries more, those of the last observations, where advantages are estimated.
    normalize: 1 to bring advantages to mean 0 and variance 1 over valid rows. estimate: 1 where advantages and returns
    follow from rewards and values by GAE(gamma, gae_lambda), and the order of rows from seed, purpose and counter (see
    headrace.core.rng.permutations), with 2 * 624 words of memory; 0 where they are given. order: int64 [epochs, T * N].
    """

    choice: np.ndarray
    number: np.ndarray
    start: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    valid: np.ndarray
    advantage: np.ndarray
    returns: np.ndarray
    order: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    normalize: np.uint64
    estimate: np.uint64
    envs: np.uint64
    gamma: float
    gae_lambda: float
    seed: np.uint64
    purpose: np.uint64
    counter: np.uint64
    words: np.ndarray


class Loss(NamedTuple):
    """The policy's loss, CLIPPED_RATIO or LOG_PROB, and coefficients, float32: as in PPOConfig; value = center + scale
    * the critic's output."""

    kind: np.uint64
    clip: np.float32
    value_clip: np.float32
    value_coef: np.float32
    entropy_coef: np.float32
    center: np.float32
    scale: np.float32


class RolloutArguments(NamedTuple):
    """What is the same for every minibatch, and buffers for what is not.

    layers: the network. subnetworks: uint64 [1 or 2, 5], its parts that share no layers: first layer, end, offset and
    size in a gradient, and ACTOR, CRITIC or both. ranges: uint64 [*, 3], see layout.ranges(). permutation: int32
    [epochs, R]. parameters, mean, square, flat: float32 [P]; flat holds the gradient in the parameters' order.
    scratch: float32, one row for each worker. gradient: one row for each part. sums: float32 [parts * subnetworks,
    SUMS]. batch: int64 [8], zeros at first: task, epoch, start, size, parts, minibatches done, whether KL stopped it,
    steps taken. numbers: float32 [16]: 1 / valid rows, the step's scale (adam_step.scales), eps, beta2 and 1 - beta2,
    the sum of squares of each sub-network's gradient. weights: float32 [minibatches], 1 / valid rows of all learners in
    each; empty for one learner. summary: float32 [3, SUMS]: means of the minibatches' sums, those over the last epoch,
    and the explained variance, where advantages are estimated.
    """

    layers: np.ndarray
    subnetworks: np.ndarray
    ranges: np.ndarray
    head: Head
    offsets: ScratchOffsets
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
    weights: np.ndarray
    summary: np.ndarray
