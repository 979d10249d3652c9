"""Arguments of the kernel of DQN's learning call (headrace.kernels.off_policy.dqn)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.off_policy.off_policy_arguments import Weights

SHARES = np.uint64(4)  # of each layer, where parts are rows of layers: kernels.off_policy.dqn_rows adds four
SCALE, EPS, TAU = (np.uint64(i) for i in (0, 3, 4))  # indices in DQNArguments.numbers; scales take three


class DQNArguments(NamedTuple):
    """What stays from call to call, and buffers; float32 where nothing else is said.

    double: 1 for double DQN. blocks: B, of 64 samples, of a minibatch. lanes: L, the samples of a part: 16, 32 or 64.
    parts: those that have samples. features, actions: F and A. layers: the network's layer table, the actions' values
    last. state_value: of a dueling network the layer that is the value of the state, else NOWHERE; the last one's
    outputs are then advantages. chunks: see stepwise_layout.weight_chunks. observation, next_observation [G, B, F, 64]:
    encoded, flat. action, reward, discount, loss_weight [G, B, 64], flat: action counted from 0; loss_weight is the
    sample's weight / number of valid samples.
    gradient [P]. scratch [B * 64 / L + workers, *]: a row for each part of a minibatch, and for each worker.
    gradient_scratch: a row for each worker. sums [chunks]. numbers [16]: Adam's scale, eps, tau of the target's update.
    task: int64 [8]: task, minibatch, layer, whether a part is a pair of shares. value, error [G, B, 64], flat: of the
    actions taken.
    For parts that are rows of layers (kernels.off_policy.dqn_rows) B is 1, L all samples of the block, scratch [3, *]:
    a row for each pass through a network, and partial [2 * SHARES, *]: sums over a share's rows, of which its outputs'
    gradients are the shares' sum.
    """

    double: np.uint64
    blocks: np.uint64
    lanes: np.uint64
    parts: np.uint64
    features: np.uint64
    actions: np.uint64
    layers: np.ndarray
    state_value: np.uint64
    chunks: np.ndarray
    weights: Weights
    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    loss_weight: np.ndarray
    gradient: np.ndarray
    scratch: np.ndarray
    partial: np.ndarray
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
