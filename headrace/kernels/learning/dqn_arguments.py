"""What the kernel of DQN's learning call is handed (headrace.kernels.learning.dqn)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.learning.off_policy_arguments import Weights


class Job(NamedTuple):
    """All that stays, and room for what does not; float32 where nothing else is said.

    double: 1 where the network chooses the next action. blocks: B, of 64 samples, of a minibatch. features, actions: F
    and A. chain: the network's layers. pieces: see chain_tables.pieces. weights: its target follows by itself.
    now, later [G, B, F, 64]: encoded observations, flat. action, reward, discount, share [G, B, 64], flat: action as
    its number from 0; share is 1 / number of samples that count, times their weight. coming [together, B, A, 64], flat:
    what the target says. gradient [P]. scratch [2 B + workers, *]: blocks of now, of later, a row for each worker.
    room: a row for each worker. sums [pieces]. numbers [16]: Adam's scale, eps. task: int64 [8]: task, batch, layer,
    first batch of those whose aims are known. value, error [G, B, 64], flat: of the actions taken.
    """

    double: np.uint64
    blocks: np.uint64
    features: np.uint64
    actions: np.uint64
    chain: np.ndarray
    pieces: np.ndarray
    weights: Weights
    now: np.ndarray
    later: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    share: np.ndarray
    coming: np.ndarray
    gradient: np.ndarray
    scratch: np.ndarray
    room: np.ndarray
    sums: np.ndarray
    numbers: np.ndarray
    task: np.ndarray
    value: np.ndarray
    error: np.ndarray


class Settings(NamedTuple):
    """Of a call: gradient steps before, learning rate, and the norm to which gradients are clipped; float64."""

    steps: float
    learning_rate: float
    max_norm: float
