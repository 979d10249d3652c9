"""Counter-based randomness: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

Every draw is a function of (seed, purpose) and (env, episode, step, draw) alone. The same seed gives the same bits in a
Numba kernel, in a CUDA thread and here on batched tensors, in whatever order and batches draws are made.
"""

from __future__ import annotations

import os
from enum import IntEnum
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.fused import fused

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
ROUNDS = 10


class Purpose(IntEnum):
    """The use of draws; each purpose has a random stream of its own."""

    RESET = 0
    STEP = 1
    ACTION = 2
    SHUFFLE = 3
    WEIGHTS = 4
    EVALUATE = 5
    REPLAY = 6
    AGENT_INFO = 7
    RESUME = 8
    INTRINSIC = 9
    OPPONENT = 10


def word(seed: int) -> int:
    """A seed as the word of 32 bits that draws are made from. Raises ValueError for one that does not fit: without its
    upper bits it would draw what another seed draws."""
    if not isinstance(seed, Integral) or not 0 <= seed <= MASK:
        raise ValueError(f"a seed must be a whole number from 0 to 2^32 - 1 = {MASK}, got {seed!r}")
    return int(seed)


def philox(
    key: tuple[int | Tensor, int | Tensor], counter: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Four random words in [0, 2^32) for each entry: int64, since torch cannot add or shift uint32."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIERS[0], c0)
        high1, low1 = _multiply(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a * b, a in [2^31, 2^32): by (a - 2^32) * b, which unlike a * b fits in int64."""
    product = (a - (1 << 32)) * b
    return (product >> 32) + b, product & MASK


def to_uniform(words: Tensor) -> Tensor:
    """Words -> float32 in [0, 1), from their top 24 bits, so that every value is exact."""
    return (words >> 8).to(torch.float32) * 2.0**-24


@fused("rng.uniform", "headrace.bindings.rng_returns_cpu")
def uniform(
    seed: int,
    purpose: int,
    first_step: int | Tensor,
    num_steps: int,
    num_envs: int,
    num_draws: int,
    device: torch.device | str,
    first_env: int = 0,
) -> Tensor:
    """Uniform draws in [0, 1) for a block of steps and environments: float32 [T, N, D], in memory [T, D, N].

    Draw d of env n at step t is the same in every block that contains it. first_step: steps taken before, below 2^63;
    in a CUDA graph an int64 scalar on the device. first_env: number of the block's first environment.
    """
    counter = torch.arange(num_steps, device=device).view(-1, 1, 1) + first_step
    env = torch.arange(first_env, first_env + num_envs, device=device).view(1, 1, -1)
    lane = torch.arange((num_draws + 3) // 4, device=device).view(1, -1, 1)
    shape = (num_steps, lane.numel(), num_envs)
    high, low = (counter >> 32).expand(shape), (counter & MASK).expand(shape)
    words = philox((word(seed), int(purpose)), (env.expand(shape), high, low, lane.expand(shape)))
    draws = torch.stack(words, dim=2).view(num_steps, -1, num_envs)[:, :num_draws]
    return to_uniform(draws).transpose(1, 2)


def uniform_of_agents(
    seed: int,
    purpose: int,
    first_step: int | Tensor,
    num_steps: int,
    num_agents: int,
    num_copies: int,
    num_draws: int,
    device: torch.device | str,
    first_copy: int = 0,
    of: int | None = None,
) -> Tensor:
    """Same as uniform(), for columns agent * num_copies + copy: draws of the copies from first_copy on among `of`."""
    of = of or num_copies
    if of == num_copies:
        return uniform(seed, purpose, first_step, num_steps, num_agents * num_copies, num_draws, device)
    firsts = range(first_copy, first_copy + num_agents * of, of)
    parts = [uniform(seed, purpose, first_step, num_steps, num_copies, num_draws, device, first) for first in firsts]
    return parts[0] if num_agents == 1 else torch.cat([part.transpose(1, 2) for part in parts], 2).transpose(1, 2)


def permutations(
    seed: int, purpose: int, counter: int | Tensor, number: int, size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Permutations of range(size), int64 [number, size], that depend on (seed, purpose, counter) alone.

    On the CPU by torch.randperm. On other devices by sorting counted draws, which gives other permutations without
    waiting for the device; in a CUDA graph counter is an int64 scalar on the device. With HEADRACE_BIJECTION=1 without
    a sort, which was not measured yet.
    """
    if not isinstance(counter, Tensor) and torch.device(device).type == "cpu":
        return shuffled(_mix(seed, int(purpose), counter), number, size)
    if os.environ.get("HEADRACE_BIJECTION", "0") == "1":
        found = scattered(seed, purpose, counter, number, (size - 1).bit_length(), device)
        kept = found < size
        places = torch.where(kept, kept.cumsum(1) - 1, size)  # the last place is for what is too large
        return found.new_empty(number, size + 1).scatter_(1, places, found)[:, :size].contiguous()
    keys = uniform(seed, purpose, counter, 1, size, number, device)[0].t()
    return keys.argsort(dim=1, stable=True)


@fused("rng.scattered")
def scattered(
    seed: int, purpose: int, counter: int | Tensor, number: int, digits: int, device: torch.device | str
) -> Tensor:
    """Permutations of range(2^digits), int64 [number, 2^digits]: each entry by itself, by eight rounds of a Feistel
    network (Luby and Rackoff 1988). digits: 32 at most."""
    step = torch.as_tensor(counter, device=device)
    row = torch.arange(number, device=device).view(-1, 1)
    words = philox((word(seed), int(purpose)), (row, step >> 32, step & MASK, torch.zeros_like(row)))
    upper, lower = digits // 2, digits - digits // 2
    place = torch.arange(1 << digits, device=device)
    high, low = place >> lower, place & ((1 << lower) - 1)
    for turn in range(0, 8, 2):
        keys = [(words[(turn + k) % 4] + (turn + k) * WEYL[0]) & MASK for k in range(2)]
        high = high ^ (_hashed(low ^ keys[0]) & ((1 << upper) - 1))
        low = low ^ (_hashed(high ^ keys[1]) & ((1 << lower) - 1))
    return (high << lower) | low


def _hashed(words: Tensor) -> Tensor:
    """Words of 32 bits that depend on all bits of these."""
    for multiplier in MULTIPLIERS:
        high, low = _multiply(multiplier, words)
        words = high ^ low
    return words


@fused("rng.shuffled", "headrace.bindings.rng_returns_cpu")
def shuffled(seed: int, number: int, size: int) -> Tensor:
    """Permutations of range(size) by a CPU generator of this seed, int64 [number, size]."""
    source = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(size, generator=source) for _ in range(number)])


def generator(seed: int, purpose: int, counter: int = 0) -> torch.Generator:
    """A CPU generator for library code that needs one, such as the initialisation of weights."""
    return torch.Generator().manual_seed(_mix(seed, int(purpose), counter))


def seed(seed: int, purpose: int, counter: int = 0) -> int:
    """Another seed, of 31 bits, which follows from one."""
    return _mix(seed, int(purpose), counter) % 2**31


def env_seed(seed: int, index: int, times_remade: int = 0) -> int:
    """Seed of environment `index` in a run: 32 bits, far apart for neighbouring seeds.

    times_remade: how often the environment had to be made again.
    """
    words = (seed % 2**64, index, times_remade) if times_remade else (seed % 2**64, index)
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def _mix(seed: int, purpose: int, counter: int) -> int:
    """One 63-bit seed from three numbers: two words of a Philox block."""
    # on Python integers this is fifty times as fast as on tensors of one entry
    words: Any = philox((word(seed), purpose), (counter & MASK, (counter >> 32) & MASK, 0, 0))  # type: ignore[arg-type]
    return (words[0] << 31) ^ words[1]
