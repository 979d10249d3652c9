"""Launches of the kernels in this folder, on torch's tensors and its stream."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.cuda.actor_critic_text import Architecture, actor_critic_text, tile_of
from headrace.kernels.cuda.adam_text import ADAM, PARAMETERS, THREADS
from headrace.kernels.cuda.layers_text import Tile
from headrace.kernels.language.ops import CONVERSIONS
from headrace.kernels.runtime import cache
from headrace.kernels.targets.cuda.launch import array, launch, simulated

HEADER = CONVERSIONS + "from numba import cuda\nimport math\n"
BLOCKS = 4  # of a multiprocessor, that a minibatch is divided among


class Inputs(NamedTuple):
    """What the networks read. observation: [F, rows]. center, scale [F], limit: of the normaliser. spread: of a
    GaussianHead, [2, K]. value_center, value_scale: [1]."""

    weights: Tensor
    observation: Tensor
    center: Tensor
    scale: Tensor
    limit: float
    spread: Tensor
    value_center: Tensor
    value_scale: Tensor


class Minibatches(NamedTuple):
    """What PPO learns from. action [K, rows]; the other columns [rows]; order [epochs * rows]."""

    order: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    valid: Tensor
    share: Tensor  # [minibatches]: 1 / number of valid rows


class Step(NamedTuple):
    """What Adam changes and is told, see headrace.algorithms.adam.Adam."""

    weights: Tensor
    mean: Tensor
    square: Tensor
    steps: Tensor  # [1], as learning_rate and skip
    learning_rate: Tensor
    skip: Tensor
    max_norm: float
    eps: float
    beta1: float
    beta2: float


class Networks:
    """The kernels of an actor and a critic. Raises ValueError where these do not fit in a block's shared memory."""

    def __init__(self, architecture: Architecture) -> None:
        tile = tile_of(architecture, simulated())
        if tile is None:
            raise ValueError(f"{architecture.entries()} numbers a row do not fit in a block's shared memory")
        self.tile: Tile = tile
        self._module = _module("actor_critic_cuda", actor_critic_text(architecture, tile))

    def act(
        self,
        inputs: Inputs,
        columns: tuple[int, int, int],
        random: Tensor,
        t: int,
        sampled: bool,
        outputs: tuple[Tensor, Tensor, Tensor],
        values_alone: bool = False,
    ) -> None:
        """Actions [K, *], log-probabilities [*] and values [*] into `outputs`. columns: the first observation, their
        number, and the first column of the outputs; random: [T, draws, number], of which step t's are used."""
        nets = 1 if values_alone else 2
        blocks = -(-columns[1] // self.tile.rows) * nets
        seen = (inputs.weights, inputs.observation), (inputs.center, inputs.scale)
        launch(
            *(self._module.act, blocks * self.tile.threads, self.tile.threads, inputs.weights.device),
            *(*map(array, seen[0]), *columns[:2], *map(array, seen[1]), np.float32(inputs.limit)),
            *(array(inputs.spread), array(random), t, sampled, *map(array, outputs)),
            *(array(inputs.value_center), array(inputs.value_scale), columns[2], 2 - nets, nets),
        )

    def learn(
        self,
        inputs: Inputs,
        batches: Minibatches,
        size: int,
        starts: list[int],
        coefficients: tuple[float, ...],
        adam: Step,
        most_divergence: float,
    ) -> Tensor:
        """A step on each minibatch, of `size` rows from each of `starts` on in the order. coefficients: PPO's clip,
        value_clip, value_coef, entropy_coef. Returns sums [minibatches, 5]: gain, error of values, entropy, clipped,
        divergence."""
        device, number = inputs.weights.device, len(inputs.weights)
        workers = min(-(-size // self.tile.rows), _multiprocessors(device) * BLOCKS // 2)
        blocks = -(-number // PARAMETERS)
        new = functools.partial(torch.empty, device=device)
        partial, sums, gradient, squares = new(workers, number), new(workers, 5), new(number), new(blocks)
        totals = new(len(starts), 5)
        read = [array(x) for x in inputs[:4]]
        rest = *(array(x) for x in batches[1:]), array(inputs.value_center), array(inputs.value_scale)
        own = [array(x) for x in (partial, sums, gradient, squares, totals)]
        state = [array(x) for x in adam[:6]]
        settings = [np.float32(x) for x in (adam.max_norm, adam.eps, adam.beta1, adam.beta2)]
        order, spread, limit = array(batches.order), array(inputs.spread), np.float32(inputs.limit)
        module = _module("adam_cuda", ADAM)
        for minibatch, start in enumerate(starts):
            launch(
                *(self._module.gradient, 2 * workers * self.tile.threads, self.tile.threads, device),
                *(read[0], *own[:2], order, start, size, minibatch, *read[1:], limit, spread),
                *(*rest, *map(np.float32, coefficients)),
            )
            launch(
                *(module.add_up, blocks * THREADS, THREADS, device),
                *(own[0], own[2], own[3], own[1], own[4], minibatch, state[3], state[5], np.float32(most_divergence)),
            )
            launch(
                *(module.step, number, THREADS, device),
                *(state[0], own[2], *state[1:3], own[3], settings[0], state[4], *settings[1:], state[3], state[5]),
            )
        return totals


@functools.cache
def networks(architecture: Architecture) -> Networks:
    """The kernels of this architecture: made once."""
    return Networks(architecture)


@functools.cache
def _module(name: str, text: str) -> ModuleType:
    return cache.load(name, HEADER + text)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 1 if simulated() else torch.cuda.get_device_properties(device).multi_processor_count
