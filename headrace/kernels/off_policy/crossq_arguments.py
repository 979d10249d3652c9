"""Arguments of the kernel of CrossQ's learning call (headrace.kernels.off_policy.crossq)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.off_policy.batch_renorm_layout import Renorm
from headrace.kernels.off_policy.off_policy_arguments import Batches, Weights

ACTOR, LAYER = (np.uint64(i) for i in (3, 4))  # further indices in task
ACTOR_BETA, CRITICS_BETA = (np.uint64(i) for i in (12, 14))  # and in numbers: Adam's first beta, and 1 - that


class Nets(NamedTuple):
    """Networks of one shape, side by side, with batch renormalisation.

    layers: uint64 [C, L, columns], their layer tables. norms [C, L, 8]: see batch_renorm_layout. chunks: see
    stepwise_layout.weight_chunks. gradient: float32 [P], of the norms' weights and biases, laid out as the parameters.
    blocks: how many of a block's samples the moments are of. factor: of the samples' weights, which then sum to 1.
    """

    layers: np.ndarray
    norms: np.ndarray
    chunks: np.ndarray
    weights: Weights
    renorm: Renorm
    gradient: np.ndarray
    blocks: np.uint64
    factor: np.float32


class CrossQArguments(NamedTuple):
    """What stays from call to call, and buffers; as OffPolicyArguments where nothing else is said.

    stochastic, quantiles: 1. scratch: float32 [2 B, *], a row for each block of current samples, then one for each of
    next ones. weight_row: where that has the samples' weights. actor: the actor's layer table. actors, pair: the actor
    as Nets, and the critics, whose tables are `critics`. task: int64 [8]: task, batch, nothing, whether it is about the
    actor, and the layer.
    """

    stochastic: np.uint64
    quantiles: np.uint64
    blocks: np.uint64
    features: np.uint64
    actions: np.uint64
    extra_rows: np.uint64
    weight_row: np.uint64
    actor: np.ndarray
    critics: np.ndarray
    actors: Nets
    pair: Nets
    batches: Batches
    scratch: np.ndarray
    gradient_scratch: np.ndarray
    sums: np.ndarray
    numbers: np.ndarray
    task: np.ndarray
