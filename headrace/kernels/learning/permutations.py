"""Permutations compiled: torch.randperm's, which are Fisher and Yates' shuffle by the Mersenne Twister MT19937.

Matsumoto and Nishimura 1998, ACM TOMACS 8(1), 3-30: 624 words of 32 bits, renewed all at once.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.jit import ENTRY, INNER, njit

U, W = np.uint64, np.uint32
_WORDS, _MIDDLE, _0, _1 = U(624), U(397), U(0), U(1)
_UPPER, _LOWER, _MATRIX = W(0x80000000), W(0x7FFFFFFF), W(0x9908B0DF)
_GROWTH, _ONE = W(1812433253), W(1)


@njit(**INNER)
def _begin(state, seed):
    state[_0] = seed
    for i in range(_1, _WORDS):
        state[i] = _GROWTH * (state[i - _1] ^ (state[i - _1] >> W(30))) + W(i)


@njit(**INNER)
def _renew(state):
    for i in range(_0, _WORDS):
        y = (state[i] & _UPPER) | (state[(i + _1) % _WORDS] & _LOWER)
        state[i] = state[(i + _MIDDLE) % _WORDS] ^ (y >> _ONE) ^ (_MATRIX if y & _ONE else W(0))


@njit(**INNER)
def _tempered(y):
    y ^= y >> W(11)
    y ^= (y << W(7)) & W(0x9D2C5680)
    y ^= (y << W(15)) & W(0xEFC60000)
    return y ^ (y >> W(18))


@njit(**ENTRY)
def permutations(seed, state, order):
    """Each row of order [number, size] becomes a permutation of range(size): one generator for all, of this seed.

    state: uint32 [624], written.
    """
    number, size = order.shape
    _begin(state, seed)
    used = _WORDS
    for row in range(U(number)):
        for i in range(U(size)):
            order[row, i] = np.int64(i)
        for i in range(_0, U(size) - _1):
            if used == _WORDS:
                _renew(state)
                used = _0
            other = i + U(_tempered(state[used]) % W(U(size) - i))
            used += _1
            order[row, i], order[row, other] = order[row, other], order[row, i]
