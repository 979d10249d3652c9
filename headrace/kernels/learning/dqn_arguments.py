"""Arguments of the kernel of DQN's learning call (headrace.kernels.learning.dqn)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.learning.off_policy_arguments import Weights


class DQNArguments(NamedTuple):
    """What stays from call to call, and buffers; float32 where nothing else is said.

    double: 1 for double DQN. blocks: B, of 64 samples, of a minibatch. features, actions: F and A. layers: the
    network's layer table. chunks: see stepwise_layout.weight_chunks. weights: the target network is updated apart from
    Adam. observation, next_observation [G, B, F, 64]: encoded, flat. action, reward, discount, loss_weight [G, B, 64],
    flat: action counted from 0; loss_weight is the sample's weight / number of valid samples. target_values [batches,
    B, A, 64], flat: the target network's, of several minibatches. gradient [P]. scratch [2 B + workers, *]: a row for
    each block of observations, of next observations, and for each worker. gradient_scratch: a row for each worker.
    sums [chunks]. numbers [16]: Adam's scale, eps. task: int64 [8]: task, unused, layer, first batch in target_values.
    value, error [G, B, 64], flat: of the actions taken.
    """

    double: np.uint64
    blocks: np.uint64
    features: np.uint64
    actions: np.uint64
    layers: np.ndarray
    chunks: np.ndarray
    weights: Weights
    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    loss_weight: np.ndarray
    target_values: np.ndarray
    gradient: np.ndarray
    scratch: np.ndarray
    gradient_scratch: np.ndarray
    sums: np.ndarray
    numbers: np.ndarray
    task: np.ndarray
    value: np.ndarray
    error: np.ndarray


class Settings(NamedTuple):
    """Of a call, float64: Adam's steps before it, learning rate, and the norm to which gradients are clipped."""

    steps: float
    learning_rate: float
    max_norm: float
