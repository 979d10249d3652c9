"""Random numbers, permutations and advantages compiled for CUDA: each one launch, where plain torch takes a hundred.

Counters may be scalars on the device, so that a captured graph draws again at every replay.
"""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from headrace.core.device import Device
from headrace.core.rng import word
from headrace.kernels.language.ops import prelude
from headrace.kernels.runtime import cache
from headrace.kernels.targets.cuda.codegen_cuda import DEVICE, cuda_ops
from headrace.kernels.targets.cuda.launch import array, launch, simulated

BLOCK = 128
KERNELS = '''
@cuda.jit(cache=True)
def fill(out, first_step, seed, purpose, first_env):
    """out [T, D, N]: a thread for each step, Philox block of four draws, and environment."""
    steps, draws, envs = np.uint64(out.shape[0]), np.uint64(out.shape[1]), np.uint64(out.shape[2])
    blocks = (draws + np.uint64(3)) // np.uint64(4)
    i = np.uint64(cuda.grid(1))
    if i < steps * blocks * envs:
        n, block, t = i % envs, (i // envs) % blocks, i // (envs * blocks)
        step, env = np.uint64(first_step[0]) + t, U32(n + np.uint64(first_env))
        words = _philox(U32(seed), U32(purpose), env, U32(step >> np.uint64(32)), U32(step), U32(block))
        d = block * np.uint64(4)
        out[t, d, n] = _to_uniform(words[0])
        if d + np.uint64(1) < draws:
            out[t, d + np.uint64(1), n] = _to_uniform(words[1])
        if d + np.uint64(2) < draws:
            out[t, d + np.uint64(2), n] = _to_uniform(words[2])
        if d + np.uint64(3) < draws:
            out[t, d + np.uint64(3), n] = _to_uniform(words[3])


@cuda.jit(device=True)
def _to_uniform(word):
    return _product(F32(I32(word >> U32(8))), F32(5.9604644775390625e-8))


@cuda.jit(cache=True)
def scatter(out, counter, seed, purpose, digits):
    """out [number, 2^digits]: a thread for each entry."""
    size, i = np.uint64(out.shape[1]), np.uint64(cuda.grid(1))
    if i < np.uint64(out.shape[0]) * size:
        row, place, step = i // size, U32(i % size), np.uint64(counter[0])
        words = _philox(U32(seed), U32(purpose), U32(row), U32(step >> np.uint64(32)), U32(step), U32(0))
        upper = U32(digits) // U32(2)
        lower = U32(U32(digits) - upper)
        above, below = U32((U64(1) << U64(upper)) - U64(1)), U32((U64(1) << U64(lower)) - U64(1))
        high, low = U32(U64(place) >> U64(lower)), place & below
        for turn in range(0, 8, 4):
            high = high ^ (_hashed(low, words[0], turn) & above)
            low = low ^ (_hashed(high, words[1], turn + 1) & below)
            high = high ^ (_hashed(low, words[2], turn + 2) & above)
            low = low ^ (_hashed(high, words[3], turn + 3) & below)
        out[row, i % size] = np.int64((U64(high) << U64(lower)) | U64(low))


@cuda.jit(device=True)
def _hashed(x, key, turn):
    x = x ^ U32(U64(key) + U64(turn) * U64(0x9E3779B9))
    product = U64(0xD2511F53) * U64(x)
    product = U64(0xCD9E8D57) * U64(U32(product >> U64(32)) ^ U32(product))
    return U32(product >> U64(32)) ^ U32(product)


@cuda.jit(cache=True)
def advantages(out, reward, value, next_value, terminated, truncated, gamma, decay):
    """out [T, N]: a thread for each environment, from the last step to the first. gamma, decay: float32."""
    n = np.uint64(cuda.grid(1))
    if n < np.uint64(out.shape[1]):
        following = F32(0.0)
        for k in range(out.shape[0]):
            t = np.uint64(out.shape[0] - 1 - k)
            ahead = F32(0.0) if terminated[t, n] else next_value[t, n]
            delta = reward[t, n] + gamma * ahead - value[t, n]
            following = delta if terminated[t, n] or truncated[t, n] else delta + decay * following
            out[t, n] = following
'''


def uniform(
    seed: int, purpose: int, first: int | Tensor, steps: int, envs: int, draws: int, device: Device, first_env: int = 0
) -> Tensor:
    """headrace.core.rng.uniform, bit for bit."""
    counter = _on_device(first, device)
    drawn = torch.empty(steps, draws, envs, device=device)
    threads = steps * ((draws + 3) // 4) * envs
    numbers = (word(seed), int(purpose), first_env)
    launch(_module().fill, threads, BLOCK, drawn.device, array(drawn), array(counter.view(1)), *numbers)
    return drawn.transpose(1, 2)


def scattered(seed: int, purpose: int, counter: int | Tensor, number: int, digits: int, device: Device) -> Tensor:
    """headrace.core.rng.scattered, bit for bit."""
    found = torch.empty(number, 1 << digits, dtype=torch.int64, device=device)
    given = array(found), array(_on_device(counter, device).view(1)), word(seed), int(purpose), digits
    launch(_module().scatter, found.numel(), BLOCK, found.device, *given)
    return found


def _on_device(counter: int | Tensor, device: Device) -> Tensor:
    return counter if isinstance(counter, Tensor) else torch.full((), counter, device=device)


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, mix: float
) -> Tensor:
    """headrace.core.returns.gae, within rounding."""
    advantage = torch.empty(reward.shape, dtype=reward.dtype, device=reward.device)
    columns = [array(x) for x in (advantage, reward, value, next_value, terminated, truncated)]
    numbers = (np.float32(gamma), np.float32(gamma * mix))
    launch(_module().advantages, reward.shape[1], BLOCK, reward.device, *columns, *numbers)
    return advantage


def text() -> str:
    """The text of the kernels."""
    return prelude(DEVICE, cuda_ops(simulated())) + KERNELS


@functools.cache
def _module() -> ModuleType:
    return cache.load("numbers_cuda", text())
