"""The functions of core.rng and core.returns by the CPU's kernels: the same bits as plain functions'."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.arguments import draws_fit, fits, gae_columns_fit, whole
from headrace.bindings.digests import DIGESTS
from headrace.core import rng
from headrace.core.device import Device
from headrace.core.fused import register
from headrace.core.rng import MASK, word
from headrace.kernels.language.ops import INNER, prelude
from headrace.kernels.learning.processing_arguments import SHUFFLE_WORDS
from headrace.kernels.runtime import cache
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, SharedCall, float_slot

KEPT = 64  # shapes of arrays, of which each function keeps the call
MOST_SHUFFLED = 2**32 // 20  # entries from which torch draws words of 64 bits
INLINE = f'@njit(error_model="numpy", forceinline=True, {INNER})'
KERNELS = f'''
@njit(error_model="numpy", nogil=True, {INNER})
def fill(out, blocks, alone, seed, purpose, first_high, first_low, first_env):
    """Rows 0 .. 4 * blocks - 1 of out [T, D, N]: all four words of each Philox block. alone: 1 for one more row, with
    the first word of the next block alone, which costs less to keep and a little less to compute."""
    for t in range(np.uint64(0), np.uint64(out.shape[0])):
        low = np.uint64(first_low) + t
        high, step = U32(np.uint64(first_high) + (low >> np.uint64(32))), U32(low)
        for block in range(np.uint64(0), np.uint64(blocks)):
            d = np.uint64(4) * block
            for n in range(np.uint64(0), np.uint64(out.shape[2])):
                a, b, c, e = _philox(seed, purpose, U32(n + np.uint64(first_env)), high, step, U32(block))
                out[t, d, n] = to_uniform(a)
                out[t, d + np.uint64(1), n] = to_uniform(b)
                out[t, d + np.uint64(2), n] = to_uniform(c)
                out[t, d + np.uint64(3), n] = to_uniform(e)
        if alone:
            d = np.uint64(4) * np.uint64(blocks)
            for n in range(np.uint64(0), np.uint64(out.shape[2])):
                env = U32(n + np.uint64(first_env))
                out[t, d, n] = to_uniform(_philox(seed, purpose, env, high, step, U32(blocks))[0])


{INLINE}
def to_uniform(word):
    return F32(I32(word >> U32(8))) * F32(5.9604644775390625e-8)
'''


def _serves(
    seed: int, purpose: int, first: int | Tensor, steps: int, envs: int, draws: int, device: Device, first_env: int = 0
) -> bool:
    on_cpu = torch.device(device).type == "cpu" and draws_fit(seed, purpose, steps, envs, draws, first_env)
    return on_cpu and not isinstance(first, Tensor) and whole(first) and 0 <= first < 1 << 63


@register("rng.uniform", _serves, DIGESTS["rng.uniform"])
def uniform(
    seed: int, purpose: int, first: int, steps: int, envs: int, draws: int, device: Device, first_env: int = 0
) -> Tensor:
    """headrace.core.rng.uniform on the CPU. Where `draws` is not 4 k or 4 k + 1, words up to the next 4 k are made."""
    alone = draws % 4 == 1
    blocks = draws // 4 if alone else (draws + 3) // 4
    drawn = torch.empty(steps, 4 * blocks + alone, envs)
    numbers = (word(seed), int(purpose), first >> 32, first & MASK, first_env)
    _fill(*drawn.shape)(drawn.data_ptr(), blocks, alone, *numbers)
    return drawn[:, :draws].transpose(1, 2)


@functools.lru_cache(KEPT)
def _fill(steps: int, draws: int, envs: int) -> SharedCall:
    text = "from numba import njit\n" + prelude(INLINE) + KERNELS
    numbers: tuple[Argument, ...] = (0, 0, *(np.uint32(0) for _ in range(5)))
    example = (np.zeros((steps, draws, envs), np.float32), *numbers)
    announcement = "compiling random numbers for the CPU (once, about 1 s) ..."
    return SharedCall(cache.entry("random", text, "fill", example, announcement), example)


def shuffles(seed: int, number: int, size: int) -> bool:
    """Tell whether the kernel gives torch's permutations of this size."""
    return whole(seed, number, size) and number > 0 and 0 < size < MOST_SHUFFLED and _shuffles_as_torch()


@register("rng.shuffled", shuffles, DIGESTS["rng.shuffled"])
def shuffled(seed: int, number: int, size: int) -> Tensor:
    """headrace.core.rng.shuffled: the same permutations."""
    order, state = torch.empty(number, size, dtype=torch.int64), torch.empty(SHUFFLE_WORDS, dtype=torch.int32)
    _shuffle(number, size)(seed & MASK, state.data_ptr(), order.data_ptr())
    return order


@functools.lru_cache(KEPT)
def _shuffle(number: int, size: int) -> SharedCall:
    example = (np.uint32(0), np.zeros(SHUFFLE_WORDS, np.uint32), np.zeros((number, size), np.int64))
    announcement = "compiling permutations (once, about 1 s) ..."
    return SharedCall(entry("learning.permutations", "permutations", example, announcement), example)


@functools.cache
def _shuffles_as_torch() -> bool:
    """Tell whether this version of torch shuffles in the way that the kernel does."""
    return torch.equal(shuffled(7, 2, 1_000), rng.shuffled.plain(7, 2, 1_000))  # type: ignore[attr-defined]


ANNOUNCEMENT = "compiling advantages (once, about 1 s) ..."


def _serves_gae(*call: Any) -> bool:
    return gae_columns_fit("cpu", call[:5], call[5:])


@register("returns.gae", _serves_gae, DIGESTS["returns.gae"])
def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, mix: float
) -> Tensor:
    """headrace.core.returns.gae of float32 columns on the CPU: the same operations in the same order, the same bits."""
    advantage = torch.empty(reward.shape)
    reward, value, next_value, *ends = (x.contiguous() for x in (reward, value, next_value, terminated, truncated))
    columns = (x.data_ptr() for x in (reward, value, next_value))
    others = (x.data_ptr() for x in (*ends, advantage))
    _gae()(*reward.shape, *columns, 0, *others, float_slot(gamma), float_slot(mix))
    return advantage


def _explains(prediction: Tensor, target: Tensor, valid: Tensor) -> bool:
    return gae_columns_fit("cpu", (prediction, target, target, valid), ())


@register("returns.explained_variance", _explains, DIGESTS["returns.explained_variance"])
def explained_variance(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """headrace.core.returns.explained_variance of float32 columns on the CPU, within rounding."""
    fraction = torch.empty(())
    columns = [x.contiguous() for x in (prediction, target, valid)]
    _explained()(valid.numel(), *(x.data_ptr() for x in columns), fraction.data_ptr())
    return fraction


def _normalizes(x: Tensor, valid: Tensor) -> bool:
    return fits(x, torch.float32, *valid.shape) and fits(valid, torch.bool, *x.shape) and not x.requires_grad


@register("returns.normalized", _normalizes, DIGESTS["returns.normalized"])
def normalized(x: Tensor, valid: Tensor) -> Tensor:
    """headrace.core.returns.normalized of float32 columns on the CPU, within rounding."""
    x, valid = x.contiguous(), valid.contiguous()
    found = torch.empty(x.shape)
    _normalized()(x.numel(), x.data_ptr(), valid.data_ptr(), found.data_ptr())
    return found


def shares(valid: Tensor, order: Tensor, size: int) -> Tensor:
    """1 / number of valid rows of each minibatch of so many rows. valid: float32 [R], order: int64 [epochs, R], both
    contiguous on the CPU."""
    found = torch.empty(len(order) * (order.shape[1] // size))
    _share(*order.shape)(valid.data_ptr(), order.data_ptr(), size, found.data_ptr())
    return found


@functools.cache
def _normalized() -> SharedCall:
    numbers, valid = np.zeros(1, np.float32), np.zeros(1, np.bool_)
    example = (0, numbers, valid, numbers)
    return SharedCall(entry("learning.processing", "normalize", example, ANNOUNCEMENT), example)


@functools.lru_cache(KEPT)
def _share(epochs: int, rows: int) -> SharedCall:
    numbers, order = np.zeros(1, np.float32), np.zeros((epochs, rows), np.int64)
    example = (numbers, order, 0, numbers)
    return SharedCall(entry("learning.processing", "share", example, ANNOUNCEMENT), example)


@functools.cache
def _gae() -> SharedCall:
    reward, value, terminated = (np.zeros(1, kind) for kind in (np.float32, np.float32, np.bool_))
    example = (0, 0, reward, value, value, 0, terminated, terminated, reward, 0.0, 0.0)
    return SharedCall(entry("learning.advantage", "gae", example, ANNOUNCEMENT), example)


@functools.cache
def _explained() -> SharedCall:
    numbers, valid = np.zeros(1, np.float32), np.zeros(1, np.bool_)
    example = (0, numbers, numbers, valid, numbers)
    return SharedCall(entry("learning.advantage", "explained", example, ANNOUNCEMENT), example)
