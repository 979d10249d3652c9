"""The arithmetic of the ops, written once, in float32 and without branches.

In this file it runs as plain Python on NumPy scalars, for a debugger. `ops.prelude` writes the same functions out for
Numba (CPU and CUDA), `ops_torch` binds the same code to tensors. The functions use only the primitives at the top, of
which each target may have its own version, so that every target performs the same operations in the same order.

Polynomials: Cephes mathematical library (Moshier 1992); tanh: the rational of the Eigen library; inverse error
function: Giles 2010, "Approximating the erfinv function". Random words: Philox4x32-10, see headrace.core.rng.
"""

# Annotations name kinds, which each target has its own types for:
# mypy: ignore-errors
from __future__ import annotations

import numpy as np

# What annotations say ...
f32 = np.float32
i32 = np.int32
u32 = np.uint32

# ... and conversions.
F32, I32, U32, U64, BOOL = np.float32, np.int32, np.uint32, np.uint64, np.bool_


def _product(a, b):
    """a * b, rounded before anything is added to it: draws stay bit-equal where a compiler would fuse multiply-add."""
    return a * b


def select(condition: bool, a, b):
    """a where the condition holds, b elsewhere; both are computed."""
    return a if condition else b


def _as_int(x):
    """The bits of a float32 as an int32."""
    return np.float32(x).view(np.int32)


def _as_float(n):
    """The float32 that has these int32 bits."""
    return np.int32(n).view(np.float32)


def sqrt(x: f32) -> f32:
    """Square root in float32."""
    return np.sqrt(F32(x))


def power(a: f32, b: f32) -> f32:
    """a to the b, in float32."""
    return F32(F32(a) ** F32(b))


# Functions below this line are shared by every target; those above a target may replace.


def clip(x, low, high):
    """x, not below low nor above high. NaN stays NaN."""
    return select(x < low, low, select(x > high, high, x))


def floor(x: f32) -> f32:
    """Largest whole number not above x, in float32."""
    x = F32(x)
    small = absolute(x) < F32(8388608.0)  # 2^23: no fraction from there on
    whole = F32(I32(select(small, x, F32(0.0))))
    return select(small, whole - select(whole > x, F32(1.0), F32(0.0)), x)


def floor_divide(a: f32, b: f32) -> f32:
    """a // b of floats: floor(a / b)."""
    return floor(F32(a) / F32(b))


def floor_mod(a: f32, b: f32) -> f32:
    """a % b of floats, with the sign of b: a - floor(a / b) * b."""
    a, b = F32(a), F32(b)
    return a - floor(a / b) * b


def ceil(x: f32) -> f32:
    """Smallest whole number not below x, in float32."""
    return -floor(-F32(x))


def absolute(x: f32) -> f32:
    """|x|, of a float."""
    x = F32(x)
    return select(x < F32(0.0), -x, x)


def sign(x: f32) -> f32:
    """-1, 0 or 1, in float32."""
    x = F32(x)
    return select(x > F32(0.0), F32(1.0), select(x < F32(0.0), F32(-1.0), F32(0.0)))


def _nearest(x):
    """Nearest whole number, half to even, for |x| < 2^22: adding 1.5 * 2^23 pushes the fraction out of a float32."""
    return (x + F32(12582912.0)) - F32(12582912.0)


def _parity(x):
    """0 for an even whole number, 1 for an odd one, |x| < 2^22."""
    rest = x - F32(2.0) * _nearest(x * F32(0.5))
    return rest * rest


def _sine_of_rest(x, halves):
    """Compute sin(x - halves * pi/2) for a difference within pi/2, by four parts of pi/2: each product is exact."""
    r = x - halves * F32(1.5703125)
    r = r - halves * F32(4.837512969970703e-4)
    r = r - halves * F32(7.549533620476723e-8)
    r = r - halves * F32(2.5633440682570896e-12)
    s = r * r
    p = F32(2.60831598e-6)
    p = p * s + F32(-1.98106907e-4)
    p = p * s + F32(8.33307858e-3)
    p = p * s + F32(-1.66666597e-1)
    return r + r * (s * p)


def sin(x: f32) -> f32:
    """Sine, x in rad. Within 1e-7 for |x| <= 10,000."""
    x = F32(x)
    turns = _nearest(x * F32(0.318309886))
    return _sine_of_rest(x, turns + turns) * (F32(1.0) - F32(2.0) * _parity(turns))


def cos(x: f32) -> f32:
    """Cosine, x in rad. Within 1e-7 for |x| <= 10,000."""
    x = F32(x)
    turns = _nearest(x * F32(0.318309886) - F32(0.5))
    return _sine_of_rest(x, turns + turns + F32(1.0)) * (F32(2.0) * _parity(turns) - F32(1.0))


def tan(x: f32) -> f32:
    """Tangent, x in rad, for |x| <= 10,000."""
    return sin(x) / cos(x)


def atan2(y: f32, x: f32) -> f32:
    """Angle of the point (x, y), in [-pi, pi]; 0 at the origin."""
    y, x = F32(y), F32(x)
    width, height = absolute(x), absolute(y)
    steep = height > width
    long = select(steep, height, width)
    ratio = select(steep, width, height) / select(long == F32(0.0), F32(1.0), long)
    past = ratio > F32(0.414213562)  # tan(pi / 8)
    r = select(past, (ratio - F32(1.0)) / (ratio + F32(1.0)), ratio)
    s = r * r
    p = F32(8.05374449538e-2)
    p = p * s + F32(-1.38776856032e-1)
    p = p * s + F32(1.99777106478e-1)
    p = p * s + F32(-3.33329491539e-1)
    angle = r + r * (s * p) + select(past, F32(0.785398163), F32(0.0))
    angle = select(steep, F32(1.57079633) - angle, angle)
    angle = select(x < F32(0.0), F32(3.14159265) - angle, angle)
    return select(y < F32(0.0), -angle, angle)


def exp(x: f32) -> f32:
    """e to the x: 0 below -104, infinity above 89."""
    x = clip(F32(x), F32(-104.0), F32(89.0))
    n = _nearest(x * F32(1.44269504))
    r = x - n * F32(0.693359375)
    r = r - n * F32(-2.12194440e-4)
    p = F32(1.9875691500e-4)
    p = p * r + F32(1.3981999507e-3)
    p = p * r + F32(8.3334519073e-3)
    p = p * r + F32(4.1665795894e-2)
    p = p * r + F32(1.6666665459e-1)
    p = p * r + F32(5.0000001201e-1)
    y = r + r * (r * p) + F32(1.0)
    # 2^n in two factors, because n reaches below and above what one exponent holds
    half = _nearest(n * F32(0.5))
    return y * _power_of_two(half) * _power_of_two(n - half)


def _power_of_two(n):
    """2^n for a whole n in -126 .. 127."""
    return _as_float(I32(I32(n + F32(127.0)) << I32(23)))


def log(x: f32) -> f32:
    """Natural logarithm: -infinity at 0, NaN below. The same bits on every target."""
    x = F32(x)
    tiny = x < F32(1.17549435e-38)
    bits = _as_int(x * select(tiny, F32(8388608.0), F32(1.0)))
    mantissa = _as_float(I32(I32(bits & I32(0x007FFFFF)) | I32(0x3F800000)))
    upper = mantissa > F32(1.41421356)
    exponent = F32(I32(I32(bits >> I32(23)) - I32(127))) + select(upper, F32(1.0), F32(0.0))
    exponent = exponent - select(tiny, F32(23.0), F32(0.0))
    f = select(upper, F32(0.5) * mantissa, mantissa) - F32(1.0)
    p = F32(7.0376836292e-2)
    p = _product(p, f) + F32(-1.1514610310e-1)
    p = _product(p, f) + F32(1.1676998740e-1)
    p = _product(p, f) + F32(-1.2420140846e-1)
    p = _product(p, f) + F32(1.4249322787e-1)
    p = _product(p, f) + F32(-1.6668057665e-1)
    p = _product(p, f) + F32(2.0000714765e-1)
    p = _product(p, f) + F32(-2.4999993993e-1)
    p = _product(p, f) + F32(3.3333331174e-1)
    s = _product(f, f)
    y = _product(_product(p, f), s) + _product(exponent, F32(-2.12194440e-4)) - _product(F32(0.5), s)
    y = f + y + _product(exponent, F32(0.693359375))
    y = select(x <= F32(3.4028234e38), y, x)  # infinity and NaN
    return select(x > F32(0.0), y, select(x == F32(0.0), F32(-np.inf), F32(np.nan)))


def _byte(gray):
    """A gray level as a byte, int32: rounded, half up; 0 below 0 and for NaN, 255 above 255."""
    gray = F32(gray)
    inside = select(gray > F32(0.0), select(gray < F32(255.0), gray, F32(255.0)), F32(0.0))
    return I32(inside + F32(0.5))


def tanh(x: f32) -> f32:
    """Hyperbolic tangent."""
    x = clip(F32(x), F32(-7.90531110763549805), F32(7.90531110763549805))
    s = x * x
    p = F32(-2.76076847742355e-16)
    p = p * s + F32(2.00018790482477e-13)
    p = p * s + F32(-8.60467152213735e-11)
    p = p * s + F32(5.12229709037114e-08)
    p = p * s + F32(1.48572235717979e-05)
    p = p * s + F32(6.37261928875436e-04)
    p = p * s + F32(4.89352455891786e-03)
    q = F32(1.19825839466702e-06)
    q = q * s + F32(1.18534705686654e-04)
    q = q * s + F32(2.26843463243900e-03)
    q = q * s + F32(4.89352518554385e-03)
    return x * p / q


def _philox(k0, k1, c0, c1, c2, c3):
    """Four random words, uint32, of a key and a counter: Philox4x32-10."""
    for _ in range(10):
        a = U64(0xD2511F53) * U64(c0)
        b = U64(0xCD9E8D57) * U64(c2)
        c0, c1, c2, c3 = U32(b >> U64(32)) ^ c1 ^ k0, U32(b), U32(a >> U64(32)) ^ c3 ^ k1, U32(a)
        k0, k1 = U32(U64(k0) + U64(0x9E3779B9)), U32(U64(k1) + U64(0xBB67AE85))
    return c0, c1, c2, c3


def bits(key, draw: i32) -> u32:
    """32 random bits, uint32, for this draw number. key: (seed, purpose, env, episode, step)."""
    draw = U32(draw)
    words = _philox(U32(key[0]), U32(key[1]), U32(key[2]), U32(key[3]), U32(key[4]), draw >> U32(2))
    lane = draw & U32(3)
    low = select(lane == U32(0), words[0], words[1])
    high = select(lane == U32(2), words[2], words[3])
    return select(lane < U32(2), low, high)


def uniform(key, draw: i32, low: f32, high: f32) -> f32:
    """A float32 in [low, high), evenly spread; the same bits on every target."""
    u = _product(F32(I32(bits(key, draw) >> U32(8))), F32(5.9604644775390625e-8))  # 24 bits * 2^-24
    return F32(low) + _product(F32(F32(high) - F32(low)), u)


def randint(key, draw: i32, n: i32) -> i32:
    """A whole number in 0 .. n - 1, int32."""
    return I32((U64(bits(key, draw)) * U64(n)) >> U64(32))


def normal(key, draw: i32, mean: f32, std: f32) -> f32:
    """A float32 from the normal distribution, by inversion: within 5.2 std; the same bits on every target."""
    odd = I32(bits(key, draw) >> U32(9)) * I32(2) + I32(1)
    x = _product(F32(odd), F32(1.1920928955078125e-7)) - F32(1.0)  # odd multiples of 2^-23 in (-1, 1)
    w = -log(_product(F32(1.0) - x, F32(1.0) + x))
    return F32(mean) + _product(F32(F32(std) * F32(1.41421356)), _product(_erfinv_over_x(w), x))


def _erfinv_over_x(w):
    """erfinv(x) / x for w = -log(1 - x^2)."""
    v = w - F32(2.5)
    p = F32(2.81022636e-08)
    p = _product(p, v) + F32(3.43273939e-07)
    p = _product(p, v) + F32(-3.5233877e-06)
    p = _product(p, v) + F32(-4.39150654e-06)
    p = _product(p, v) + F32(0.00021858087)
    p = _product(p, v) + F32(-0.00125372503)
    p = _product(p, v) + F32(-0.00417768164)
    p = _product(p, v) + F32(0.246640727)
    p = _product(p, v) + F32(1.50140941)
    t = sqrt(w) - F32(3.0)
    q = F32(-0.000200214257)
    q = _product(q, t) + F32(0.000100950558)
    q = _product(q, t) + F32(0.00134934322)
    q = _product(q, t) + F32(-0.00367342844)
    q = _product(q, t) + F32(0.00573950773)
    q = _product(q, t) + F32(-0.0076224613)
    q = _product(q, t) + F32(0.00943887047)
    q = _product(q, t) + F32(1.00167406)
    q = _product(q, t) + F32(2.83297682)
    return select(w < F32(5.0), p, q)
