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

import numpy as np

from headrace.kernels.nn.simd import either, exponent, fma, mantissa, power_of_two, select, splat
from headrace.kernels.runtime.jit import INLINE, njit

F = np.float32

_LOG2_E = F(1.44269504088896341)
# their sum is ln 2; the first has few bits, so n * high is exact
_LN2_HIGH, _LN2_LOW = F(0.693359375), F(-2.12194440e-4)
_TO_INTEGER = F(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_EXP_LOWEST, _EXP_HIGHEST = F(-87.33), F(88.37)
_SQRT_2 = F(1.41421356)
_TANH_ONE = F(7.90531110763549805)  # tanh rounds to 1 from here on
_INFINITY, _ZERO, _HALF, _ONE, _TWO = F(np.inf), F(0), F(0.5), F(1), F(2)


@njit(**INLINE)
def exp(x):
    """e^x, by 2^n times a polynomial of the rest (Cephes' expf)."""
    shifted = fma(x, splat(_LOG2_E), splat(_TO_INTEGER))
    n = shifted - _TO_INTEGER
    rest = fma(n, splat(-_LN2_HIGH), x)
    rest = fma(n, splat(-_LN2_LOW), rest)
    p = fma(splat(F(1.9875691500e-4)), rest, splat(F(1.3981999507e-3)))
    p = fma(p, rest, splat(F(8.3334519073e-3)))
    p = fma(p, rest, splat(F(4.1665795894e-2)))
    p = fma(p, rest, splat(F(1.6666665459e-1)))
    p = fma(p, rest, splat(F(5.0000001201e-1)))
    y = fma(p, rest * rest, rest + _ONE) * power_of_two(shifted)
    return select(x < _EXP_LOWEST, splat(_ZERO), select(x > _EXP_HIGHEST, splat(_INFINITY), y))


@njit(**INLINE)
def log(x):
    """Natural logarithm of a positive normal number (Cephes' logf)."""
    m, e = mantissa(x), exponent(x)
    large = m > _SQRT_2
    m, e = select(large, m * _HALF, m), select(large, e + _ONE, e)
    f = m - _ONE
    p = fma(splat(F(7.0376836292e-2)), f, splat(F(-1.1514610310e-1)))
    p = fma(p, f, splat(F(1.1676998740e-1)))
    p = fma(p, f, splat(F(-1.2420140846e-1)))
    p = fma(p, f, splat(F(1.4249322787e-1)))
    p = fma(p, f, splat(F(-1.6668057665e-1)))
    p = fma(p, f, splat(F(2.0000714765e-1)))
    p = fma(p, f, splat(F(-2.4999993993e-1)))
    p = fma(p, f, splat(F(3.3333331174e-1)))
    square = f * f
    y = fma(e, splat(_LN2_LOW), f * square * p)
    y = fma(e, splat(_LN2_HIGH), f + fma(square, splat(-_HALF), y))
    return select(x == x, y, x)


@njit(**INLINE)
def tanh(x):
    """Hyperbolic tangent: an odd polynomial over an even one, clamped where it rounds to 1."""
    x = select(x > _TANH_ONE, splat(_TANH_ONE), x)
    x = select(x < -_TANH_ONE, splat(-_TANH_ONE), x)
    s = x * x
    p = fma(splat(F(-2.76076847742355e-16)), s, splat(F(2.00018790482477e-13)))
    p = fma(p, s, splat(F(-8.60467152213735e-11)))
    p = fma(p, s, splat(F(5.12229709037114e-08)))
    p = fma(p, s, splat(F(1.48572235717979e-05)))
    p = fma(p, s, splat(F(6.37261928875436e-04)))
    p = fma(p, s, splat(F(4.89352455891786e-03)))
    q = fma(splat(F(1.19825839466702e-06)), s, splat(F(1.18534705686654e-04)))
    q = fma(q, s, splat(F(2.26843463243900e-03)))
    q = fma(q, s, splat(F(4.89352518554385e-03)))
    return x * p / q


@njit(**INLINE)
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return _ONE / (_ONE + exp(_ZERO - x))


@njit(**INLINE)
def normal_cdf(x):
    """(Phi(x), phi(x)): distribution and density of the standard normal. Abramowitz & Stegun 7.1.26."""
    size = select(x < _ZERO, _ZERO - x, x) * F(0.70710678118654752)
    t = _ONE / fma(size, splat(F(0.3275911)), splat(_ONE))
    p = fma(splat(F(1.061405429)), t, splat(F(-1.453152027)))
    p = fma(p, t, splat(F(1.421413741)))
    p = fma(p, t, splat(F(-0.284496736)))
    p = fma(p, t, splat(F(0.254829592)))
    bell = exp(_ZERO - size * size)
    tail = _HALF * p * t * bell
    return select(x < _ZERO, tail, _ONE - tail), bell * F(0.39894228040143268)


@njit(**INLINE)
def sincos(x):
    """(cos, sin) of 2 pi x, x in [0, 1]: by the nearest quarter, and polynomials of the rest (Cephes' sinf, cosf)."""
    shifted = fma(x, splat(F(4)), splat(_TO_INTEGER))
    quarter = shifted - _TO_INTEGER
    a = fma(quarter, splat(F(-0.25)), x) * F(6.283185307179586)
    z = a * a
    s = fma(splat(F(-1.9515295891e-4)), z, splat(F(8.3321608736e-3)))
    s = fma(s, z, splat(F(-1.6666654611e-1)))
    s = fma(s * z, a, a)
    c = fma(splat(F(2.443315711809948e-5)), z, splat(F(-1.388731625493765e-3)))
    c = fma(c, z, splat(F(4.166664568298827e-2)))
    c = fma(c * z, z, fma(z, splat(-_HALF), splat(_ONE)))
    odd = either(quarter == _ONE, quarter == F(3))
    cosine, sine = select(odd, s, c), select(odd, c, s)
    left, below = either(quarter == _ONE, quarter == _TWO), either(quarter == _TWO, quarter == F(3))
    return select(left, _ZERO - cosine, cosine), select(below, _ZERO - sine, sine)
