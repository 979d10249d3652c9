"""Philox4x32-10 compiled, the same words as headrace.core.rng's."""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.jit import INNER, njit

U = np.uint64
_ROUNDS = 10
_A, _B = U(0xD2511F53), U(0xCD9E8D57)  # multipliers
_C, _D = U(0x9E3779B9), U(0xBB67AE85)  # what the key grows by in each round
_MASK, _HALF, _8 = U(0xFFFFFFFF), U(32), U(8)


@njit(**INNER)
def words(k0, k1, c0, c1, c2, c3):
    """Four random words of a key and a counter, all uint64 below 2^32."""
    for _ in range(_ROUNDS):
        first, second = _A * c0, _B * c2
        c0, c1 = (second >> _HALF) ^ c1 ^ k0, second & _MASK
        c2, c3 = (first >> _HALF) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + _C) & _MASK, (k1 + _D) & _MASK
    return c0, c1, c2, c3


@njit(**INNER)
def uniforms(seed, purpose, step, env, lane):
    """Draws 4 lane .. 4 lane + 3 of environment env at a step, float32 in [0, 1): see headrace.core.rng.uniform.

    All uint64; seed, purpose, env and lane below 2^32."""
    a, b, c, d = words(seed, purpose, env, step >> _HALF, step & _MASK, lane)
    return _unit(a), _unit(b), _unit(c), _unit(d)


@njit(**INNER)
def mixed(seed, purpose, counter):
    """The lower 32 bits of headrace.core.rng's seed from three numbers, uint64; seed and purpose below 2^32."""
    a, b, _, _ = words(seed, purpose, counter & _MASK, counter >> _HALF, U(0), U(0))
    return ((a << U(31)) ^ b) & _MASK


@njit(**INNER)
def _unit(word):
    return np.float32(np.int32(word >> _8)) * np.float32(2.0**-24)
