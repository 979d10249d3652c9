"""Launches of the kernels in this folder, on torch's tensors and its stream."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.cuda.actor_critic_text import Architecture, actor_critic_text, tile_of
from headrace.kernels.cuda.adam_text import ADAM, PARAMETERS, THREADS
from headrace.kernels.cuda.layers_text import Tile
from headrace.kernels.language.ops import prelude
from headrace.kernels.runtime import cache
from headrace.kernels.targets.cuda.codegen_cuda import DEVICE, cuda_ops
from headrace.kernels.targets.cuda.launch import DeviceArray, array, launch, on_device, simulated

KERNELS = ("act", "gradient")
BLOCKS = 4  # of a multiprocessor, that a minibatch is divided among
ANNOUNCEMENT = "compiling the networks for the GPU (once, about 4 s for each kernel) ..."

Argument: TypeAlias = DeviceArray | float | np.float32


class Inputs(NamedTuple):
    """Inputs of the networks. observation: [F, rows]. center, scale [F], limit: of the normaliser. spread: of a
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
    """Columns that PPO learns from. action [K, rows]; the other columns [rows]; order [epochs * rows]."""

    order: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    valid: Tensor
    share: Tensor  # [minibatches]: 1 / number of valid rows


class Step(NamedTuple):
    """Buffers and settings of a step of Adam: see headrace.algorithms.adam.Adam."""

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


def act(
    architecture: Architecture,
    inputs: Inputs,
    columns: tuple[int, int, int],
    random: Tensor,
    t: int,
    sampled: bool,
    outputs: tuple[Tensor, Tensor, Tensor],
    values_alone: bool = False,
) -> None:
    """Compute actions [K, *], log-probabilities [*] and values [*] into `outputs`. columns: the first observation,
    their number, and the first column of the outputs. random: [T, draws, number]; those of step t are used."""
    nets, device = 1 if values_alone else 2, inputs.weights.device
    module, tile = _kernel(architecture, "act", columns[1], device)
    blocks = -(-columns[1] // tile.rows) * nets
    seen = (inputs.weights, inputs.observation), (inputs.center, inputs.scale)
    arguments: list[Argument] = [*map(array, seen[0]), *columns[:2], *map(array, seen[1]), np.float32(inputs.limit)]
    arguments += [array(inputs.spread), array(random), t, sampled, *map(array, outputs)]
    arguments += [array(inputs.value_center), array(inputs.value_scale), columns[2], 2 - nets, nets]
    _launch(module, "act", blocks, tile.threads, device, arguments)


def learn(
    architecture: Architecture,
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
    own_module, tile = _kernel(architecture, "gradient", size, device)
    workers = min(-(-size // tile.rows), max(1, multiprocessors(device) * BLOCKS // 2))
    blocks = -(-number // PARAMETERS)
    new = functools.partial(torch.empty, device=device)
    totals = new(len(starts), 5)
    buffers = (new(workers, number), new(workers, 5), new(number), new(blocks), totals)
    partial, sums, gradient, squares, added = map(array, buffers)
    weights, mean, square, steps, learning_rate, skip = map(array, adam[:6])
    max_norm, eps, beta1, beta2 = map(np.float32, adam[6:])
    order, *columns = map(array, batches)
    seen, units = map(array, inputs[1:4]), map(array, inputs[6:])
    read = (*seen, np.float32(inputs.limit), array(inputs.spread), *columns, *units, *map(np.float32, coefficients))
    module, divergence = _adam(), np.float32(most_divergence)
    stepped = (weights, gradient, mean, square, squares, max_norm, learning_rate, eps, beta1, beta2, steps, skip)
    for minibatch, start in enumerate(starts):
        learned = (weights, partial, sums, order, start, size, minibatch, *read)
        _launch(own_module, "gradient", 2 * workers, tile.threads, device, learned)
        added_up = (partial, gradient, squares, sums, added, minibatch, steps, skip, divergence)
        _launch(module, "add_up", blocks, THREADS, device, added_up)
        _launch(module, "step", -(-number // THREADS), THREADS, device, stepped)
    return totals


def _kernel(architecture: Architecture, name: str, rows: int, device: torch.device) -> tuple[ModuleType, Tile]:
    """A kernel for about so many rows, and how its blocks divide them."""
    tile = tile_of(architecture, rows, multiprocessors(device))
    assert tile is not None, "what does not fit is refused before"
    return _actor_critic(architecture, tile, name), tile


def text(architecture: Architecture, device: torch.device) -> str:
    """The text of all kernels of an architecture, in the tiles of few and of many rows."""
    tiles = {tile_of(architecture, rows, multiprocessors(device)) for rows in (1, 2**30)}
    parts = [actor_critic_text(architecture, tile, name) for tile in sorted(filter(None, tiles)) for name in KERNELS]
    return _header() + "".join(parts) + ADAM


@functools.cache
def _actor_critic(architecture: Architecture, tile: Tile, kernel: str) -> ModuleType:
    return cache.load(f"{kernel}_cuda", _header() + actor_critic_text(architecture, tile, kernel))


@functools.cache
def _adam() -> ModuleType:
    return cache.load("adam_cuda", _header() + ADAM)


def _header() -> str:
    return prelude(DEVICE, cuda_ops(simulated())) + "\n\n"


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU; 0 in the simulator."""
    return 0 if simulated() else torch.cuda.get_device_properties(device).multi_processor_count


def _launch(
    module: ModuleType, kernel: str, blocks: int, threads: int, device: torch.device, arguments: Sequence[Argument]
) -> None:
    """Launch a kernel of a module; the first time it is compiled, or loaded where any process has compiled it."""
    if not simulated():
        with on_device(device):
            cache.compile_once(module, {kernel: tuple(map(_type, arguments))}, ANNOUNCEMENT)
    launch(getattr(module, kernel), blocks * threads, threads, device, *arguments)


def _type(argument: Any) -> Any:
    """Numba's type of an argument, as a launch finds it."""
    from numba import types

    if isinstance(argument, bool):
        return types.boolean
    if isinstance(argument, int):
        return types.int64
    return types.float32 if isinstance(argument, np.float32) else argument._numba_type_
