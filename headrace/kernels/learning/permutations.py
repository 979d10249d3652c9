"""Permutations compiled: torch.randperm's, which are Fisher and Yates' shuffle by the Mersenne Twister MT19937.

Matsumoto and Nishimura 1998, ACM TOMACS 8(1), 3-30: 624 words of 32 bits, renewed all at once.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.jit import ENTRY, INNER, njit

F, U, W = np.float64, np.uint64, np.uint32
_WORDS, _MIDDLE, _0, _1 = U(624), U(397), U(0), U(1)
_UPPER, _LOWER, _MATRIX = W(0x80000000), W(0x7FFFFFFF), W(0x9908B0DF)
_GROWTH, _ONE = W(1812433253), W(1)


@njit(**INNER)
def _begin(state, seed):
    state[_0] = seed
    for i in range(_1, _WORDS):
        state[i] = _GROWTH * (state[i - _1] ^ (state[i - _1] >> W(30))) + W(i)


@njit(**INNER)
def _mixed(own, following, middle):
    y = (own & _UPPER) | (following & _LOWER)
    return middle ^ (y >> _ONE) ^ (_MATRIX if y & _ONE else W(0))


@njit(**INNER)
def _renew(state):
    # two loops without the remainder of an index by 624, which LLVM vectorises
    for i in range(_0, _WORDS - _MIDDLE):
        state[i] = _mixed(state[i], state[i + _1], state[i + _MIDDLE])
    for i in range(_WORDS - _MIDDLE, _WORDS - _1):
        state[i] = _mixed(state[i], state[i + _1], state[i + _MIDDLE - _WORDS])
    state[_WORDS - _1] = _mixed(state[_WORDS - _1], state[_0], state[_MIDDLE - _1])


@njit(**INNER)
def _tempered(y):
    y ^= y >> W(11)
    y ^= (y << W(7)) & W(0x9D2C5680)
    y ^= (y << W(15)) & W(0xEFC60000)
    return y ^ (y >> W(18))


@njit(**INNER)
def _remainder(x, divisor):
    """Compute x % divisor of words by a division in float64, eight in a vector. The quotient's rounding error is less
    than its distance to the next whole number, which is 1 / divisor or more."""
    return x - W(F(x) / F(divisor)) * divisor


@njit(**ENTRY)
def permutations(seed, state, order):
    """Each row of order [number, size] becomes a permutation of range(size): one generator for all, of this seed.

    state: uint32 [2 * 624], written: the generator's, and how far from each row the one that it changes places with is.
    """
    number, size = U(order.shape[0]), U(order.shape[1])
    _begin(state, seed)
    used = _WORDS
    for row in range(number):
        for i in range(size):
            order[row, i] = np.int64(i)
        done = _0
        while done + _1 < size:
            if used == _WORDS:
                _renew(state)
                used = _0
            count = min(_WORDS - used, size - _1 - done)
            for k in range(_0, count):
                state[_WORDS + k] = _remainder(_tempered(state[used + k]), W(size - done - k))
            for k in range(_0, count):
                at = done + k
                other = at + U(state[_WORDS + k])
                order[row, at], order[row, other] = order[row, other], order[row, at]
            done, used = done + count, used + count
