"""exp, log, tanh and the activations on sixteen float32 at once (headrace.kernels.nn.simd).

Largest errors against float64, over all inputs tried in tests/kernels/nn/test_vector_math.py:

    exp        2 ulp; 0 below -87.33, infinite above 88.37
    log        2 ulp on positive normal numbers
    tanh       3e-7
    sigmoid    1.5e-7
    normal_cdf 3e-7
    sincos     1.5e-7

All of them give NaN for NaN: comparisons with NaN are false, and the value selected then is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from headrace.kernels.nn.simd import (
    either,
    exponent,
    fma,
    fma_vector,
    lanes,
    mantissa,
    power_of_two,
    select,
    splat,
    vector,
)
from headrace.kernels.runtime.intrinsics import operation
from headrace.kernels.runtime.jit import INLINE, njit

F = np.float32

_LOG2_E = F(1.44269504088896341)
# their sum is ln 2; the first has few bits, so n * high is exact
_LN2_HIGH, _LN2_LOW = F(0.693359375), F(-2.12194440e-4)
_TO_INTEGER = F(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_EXP_LOWEST, _EXP_HIGHEST = F(-87.33), F(88.37)
_SQRT_2 = F(1.41421356)
_TANH_ONE = F(9)  # tanh rounds to 1 from here on, and so does the quotient
_INFINITY, _ZERO, _HALF, _ONE, _TWO = F(np.inf), F(0), F(0.5), F(1), F(2)


def _polynomial(*coefficients: float) -> Callable[..., ir.Value]:
    """A polynomial of these float32 coefficients, the highest power's first, by Horner's rule with one fma a power."""

    @operation(lanes, lanes)
    def polynomial(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
        first, *others = (ir.Constant(vector, [float(F(coefficient))] * 16) for coefficient in coefficients)
        y: ir.Value = first
        for constant in others:
            y = fma_vector(builder, y, x, constant)
        return y

    return polynomial


_EXP = _polynomial(
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
_LOG = _polynomial(
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_TANH_ODD = _polynomial(
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
_TANH_EVEN = _polynomial(1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_CDF = _polynomial(1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_SIN = _polynomial(-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = _polynomial(2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


@njit(**INLINE)
def clamp(x, low, high):
    """x, at least low and at most high; NaN stays."""
    x = select(x > high, splat(high), x)
    return select(x < low, splat(low), x)


@njit(**INLINE)
def maximum(x, y):
    """The larger; NaN where one is, as torch's."""
    return select(y == y, select(y > x, y, x), y)


@njit(**INLINE)
def minimum(x, y):
    """The smaller; NaN where one is, as torch's."""
    return select(y == y, select(y < x, y, x), y)


@njit(**INLINE)
def exp(x):
    """e^x, by 2^n times a polynomial of the rest (Cephes' expf)."""
    shifted = fma(x, splat(_LOG2_E), splat(_TO_INTEGER))
    n = shifted - _TO_INTEGER
    rest = fma(n, splat(-_LN2_HIGH), x)
    rest = fma(n, splat(-_LN2_LOW), rest)
    y = fma(_EXP(rest), rest * rest, rest + _ONE) * power_of_two(shifted)
    return select(x < _EXP_LOWEST, splat(_ZERO), select(x > _EXP_HIGHEST, splat(_INFINITY), y))


@njit(**INLINE)
def log(x):
    """Natural logarithm of a positive normal number (Cephes' logf)."""
    m, e = mantissa(x), exponent(x)
    large = m > _SQRT_2
    m, e = select(large, m * _HALF, m), select(large, e + _ONE, e)
    f = m - _ONE
    square = f * f
    y = fma(e, splat(_LN2_LOW), f * square * _LOG(f))
    y = fma(e, splat(_LN2_HIGH), f + fma(square, splat(-_HALF), y))
    return select(x == x, y, x)


@njit(**INLINE)
def tanh(x):
    """Hyperbolic tangent: an odd polynomial over an even one, clamped where it rounds to 1.

    It is exactly 1 from there on, so that its derivative 1 - y^2 is 0: Adam, which divides by their size, follows the
    smallest slopes. The quotient may be above 1 by its rounding."""
    x = clamp(x, -_TANH_ONE, _TANH_ONE)
    s = x * x
    return clamp(x * _TANH_ODD(s) / _TANH_EVEN(s), -_ONE, _ONE)


@njit(**INLINE)
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return _ONE / (_ONE + exp(_ZERO - x))


@njit(**INLINE)
def normal_cdf(x):
    """(Phi(x), phi(x)): distribution and density of the standard normal. Abramowitz & Stegun 7.1.26."""
    size = select(x < _ZERO, _ZERO - x, x) * F(0.70710678118654752)
    t = _ONE / fma(size, splat(F(0.3275911)), splat(_ONE))
    bell = exp(_ZERO - size * size)
    tail = _HALF * _CDF(t) * t * bell
    return select(x < _ZERO, tail, _ONE - tail), bell * F(0.39894228040143268)


@njit(**INLINE)
def sincos(x):
    """(cos, sin) of 2 pi x, x in [0, 1]: by the nearest quarter, and polynomials of the rest (Cephes' sinf, cosf)."""
    shifted = fma(x, splat(F(4)), splat(_TO_INTEGER))
    quarter = shifted - _TO_INTEGER
    a = fma(quarter, splat(F(-0.25)), x) * F(6.283185307179586)
    z = a * a
    s = fma(_SIN(z) * z, a, a)
    c = fma(_COS(z) * z, z, fma(z, splat(-_HALF), splat(_ONE)))
    odd = either(quarter == _ONE, quarter == F(3))
    cosine, sine = select(odd, s, c), select(odd, c, s)
    left, below = either(quarter == _ONE, quarter == _TWO), either(quarter == _TWO, quarter == F(3))
    return select(left, _ZERO - cosine, cosine), select(below, _ZERO - sine, sine)
