"""Functions of float32 values, as LLVM assembly: polynomials on all numbers of a vector at once.

Every product that is added is an explicit fma, and nothing is left to be contracted or reordered, so that results have
the same bits whatever registers the machine has. NaN gives NaN: comparisons with it are false, and the value selected
then is NaN. Errors against float64 are in tests/kernels/rows/test_llvm_math.py.
"""

from __future__ import annotations

import math

from headrace.kernels.rows.targets.llvm_text import Body

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has few bits, so n * high is exact
TO_INTEGER = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
EXP_LOWEST, EXP_HIGHEST = -87.33, 88.72283
EXPM1_LOWEST = -17.5
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
TANH_ODD = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
TANH_EVEN = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
ERF_TAIL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)  # Abramowitz & Stegun 7.1.26
ERF_SERIES = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(6, -1, -1))
LGAMMA = tuple(b / (2 * n * (2 * n - 1)) for n, b in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66), 1))
DIGAMMA = tuple(b / (2 * n) for n, b in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66), 1))
TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66)
SHIFTS = 6  # Stirling's series begins where it has all of float32's digits: so much above 0


def polynomial(b: Body, x: str, coefficients: tuple[float, ...]) -> str:
    """A polynomial, the highest power's coefficient first, by Horner's rule."""
    y = b.number(coefficients[0])
    for coefficient in coefficients[1:]:
        y = b.fma(y, x, b.number(coefficient))
    return y


def compare(b: Body, how: str, x: str, y: str) -> str:
    """A comparison of float32 values, as fcmp names it."""
    return b.new(f"fcmp {how} {b.f32} {x}, {y}")


def select(b: Body, condition: str, yes: str, no: str, kind: str | None = None) -> str:
    """`yes` where the condition holds, else `no`."""
    kind = kind or b.f32
    return b.new(f"select {b.i1} {condition}, {kind} {yes}, {kind} {no}")


def bits(b: Body, x: str) -> str:
    return b.new(f"bitcast {b.f32} {x} to {b.i32}")


def from_bits(b: Body, x: str) -> str:
    return b.new(f"bitcast {b.i32} {x} to {b.f32}")


def maximum(b: Body, x: str, y: str) -> str:
    """The larger; NaN where one is."""
    return _extreme(b, "ogt", x, y)


def minimum(b: Body, x: str, y: str) -> str:
    """The smaller; NaN where one is."""
    return _extreme(b, "olt", x, y)


def _extreme(b: Body, how: str, x: str, y: str) -> str:
    if _is_number(x) or _is_number(y):  # one instruction: where the other is NaN, the comparison is false
        number, other = (x, y) if _is_number(x) else (y, x)
        return select(b, compare(b, how, number, other), number, other)
    found = select(b, compare(b, how, x, y), x, y)
    return select(b, compare(b, "uno", x, x), x, found)


def _is_number(x: str) -> bool:
    """True if an operand is a constant, and not NaN."""
    return not x.startswith("%") and "0x7FF8" not in x


def clamp(b: Body, x: str, low: float, high: float) -> str:
    """x, at least low and at most high; NaN stays."""
    x = select(b, compare(b, "ogt", x, b.number(high)), b.number(high), x)
    return select(b, compare(b, "olt", x, b.number(low)), b.number(low), x)


def exp(b: Body, x: str) -> str:
    """Compute e^x as 2^n times a polynomial of the rest (Cephes' expf). 2^n is two factors, both normal numbers."""
    shifted, rest = _reduced(b, x)
    square = b.floats("fmul", rest, rest)
    y = b.fma(polynomial(b, rest, EXP), square, b.floats("fadd", rest, b.number(1)))
    half = b.ints("ashr", b.ints("sub", bits(b, shifted), b.integer(0x4B400000)), b.integer(1))
    other = b.ints("sub", b.ints("sub", bits(b, shifted), b.integer(0x4B400000)), half)
    for exponent in (half, other):
        power = from_bits(b, b.ints("shl", b.ints("add", exponent, b.integer(127)), b.integer(23)))
        y = b.floats("fmul", y, power)
    y = select(b, compare(b, "ogt", x, b.number(EXP_HIGHEST)), b.number(math.inf), y)
    return select(b, compare(b, "olt", x, b.number(EXP_LOWEST)), b.number(0), y)


def _reduced(b: Body, x: str) -> tuple[str, str]:
    """n + TO_INTEGER and r, of x = n ln 2 + r with |r| at most ln 2 / 2."""
    shifted = b.fma(x, b.number(math.log2(math.e)), b.number(TO_INTEGER))
    n = b.floats("fsub", shifted, b.number(TO_INTEGER))
    rest = b.fma(n, b.number(-LN2_HIGH), x)
    return shifted, b.fma(n, b.number(-LN2_LOW), rest)


def log(b: Body, x: str) -> str:
    """Natural logarithm (Cephes' logf); NaN below 0, -infinity at 0."""
    small = compare(b, "olt", x, b.number(2.0**-126))
    scaled = select(b, small, b.floats("fmul", x, b.number(2.0**23)), x)
    word = bits(b, scaled)
    m = from_bits(b, b.ints("or", b.ints("and", word, b.integer(0x007FFFFF)), b.integer(0x3F800000)))
    exponent = b.ints("sub", b.ints("lshr", word, b.integer(23)), b.integer(127))
    exponent = b.ints("sub", exponent, select(b, small, b.integer(23), b.integer(0), b.i32))
    e = b.new(f"sitofp {b.i32} {exponent} to {b.f32}")
    large = compare(b, "ogt", m, b.number(math.sqrt(2)))
    m = select(b, large, b.floats("fmul", m, b.number(0.5)), m)
    e = select(b, large, b.floats("fadd", e, b.number(1)), e)
    f = b.floats("fsub", m, b.number(1))
    square = b.floats("fmul", f, f)
    y = b.floats("fmul", b.floats("fmul", f, square), polynomial(b, f, LOG))
    y = b.fma(e, b.number(LN2_LOW), y)
    y = b.floats("fadd", f, b.fma(square, b.number(-0.5), y))
    y = b.fma(e, b.number(LN2_HIGH), y)
    y = select(b, compare(b, "oeq", x, b.number(math.inf)), x, y)
    y = select(b, compare(b, "oeq", x, b.number(0)), b.number(-math.inf), y)
    return select(b, compare(b, "oge", x, b.number(0)), y, b.number(math.nan))


def tanh(b: Body, x: str) -> str:
    """Hyperbolic tangent: an odd polynomial over an even one, clamped where it rounds to 1."""
    x = clamp(b, x, -9, 9)
    square = b.floats("fmul", x, x)
    odd = b.floats("fmul", x, polynomial(b, square, TANH_ODD))
    return clamp(b, b.floats("fdiv", odd, polynomial(b, square, TANH_EVEN)), -1, 1)


def sigmoid(b: Body, x: str) -> str:
    """1 / (1 + e^-x)."""
    return b.floats("fdiv", b.number(1), b.floats("fadd", b.number(1), exp(b, negative(b, x))))


def negative(b: Body, x: str) -> str:
    return b.new(f"fneg {b.f32} {x}")


def expm1(b: Body, x: str) -> str:
    """e^x - 1, near 0 with all digits: 2^n (e^r - 1) + 2^n - 1 for x = n ln 2 + r. It is computed of 2^(n - 1), since
    2^128 is no float32, and of x >= EXPM1_LOWEST, where it rounds to -1."""
    low = select(b, compare(b, "olt", x, b.number(EXPM1_LOWEST)), b.number(EXPM1_LOWEST), x)
    shifted, rest = _reduced(b, low)
    y = b.fma(polynomial(b, rest, EXP), b.floats("fmul", rest, rest), rest)
    exponent = b.ints("sub", bits(b, shifted), b.integer(0x4B400000 - 126))
    half = from_bits(b, b.ints("shl", exponent, b.integer(23)))
    y = b.fma(half, y, b.floats("fsub", half, b.number(0.5)))
    y = b.floats("fadd", y, y)
    return select(b, compare(b, "ogt", x, b.number(EXP_HIGHEST)), b.number(math.inf), y)


def log1p(b: Body, x: str) -> str:
    """log(1 + x), near 0 with all digits: log(u) x / (u - 1) for u = 1 + x. Kahan."""
    u = b.floats("fadd", b.number(1), x)
    less = b.floats("fsub", u, b.number(1))
    y = b.floats("fmul", log(b, u), b.floats("fdiv", x, less))
    y = select(b, compare(b, "oeq", less, b.number(0)), x, y)
    limit = b.new(f"or {b.i1} {compare(b, 'oeq', u, b.number(math.inf))}, {compare(b, 'oeq', u, b.number(0))}")
    return select(b, limit, log(b, u), y)


def atanh(b: Body, x: str) -> str:
    """log1p(2 x / (1 - x)) / 2, of the size of x."""
    size = b.intrinsic("fabs", "float", x)
    ratio = b.floats("fdiv", b.floats("fadd", size, size), b.floats("fsub", b.number(1), size))
    return with_sign(b, b.floats("fmul", b.number(0.5), log1p(b, ratio)), x)


def with_sign(b: Body, size: str, sign: str) -> str:
    """A value with the sign of another."""
    return b.intrinsic("copysign", "float", size, sign)


def erf(b: Body, x: str) -> str:
    """The error function: its series near 0, 1 - t p(t) e^(-x^2) beyond."""
    size = b.intrinsic("fabs", "float", x)
    t = b.floats("fdiv", b.number(1), b.fma(size, b.number(0.3275911), b.number(1)))
    square = b.floats("fmul", x, x)
    tail = b.floats("fmul", b.floats("fmul", polynomial(b, t, ERF_TAIL), t), exp(b, negative(b, square)))
    far = with_sign(b, b.floats("fsub", b.number(1), tail), x)
    near = b.floats("fmul", x, polynomial(b, square, ERF_SERIES))
    return select(b, compare(b, "olt", size, b.number(0.7)), near, far)


def to_integer(b: Body, x: str) -> str:
    """Convert to int32, toward zero. Numbers beyond its range give the nearest one there is, NaN gives 0."""
    suffix = "i32.f32" if b.width == 1 else f"v{b.width}i32.v{b.width}f32"
    b.intrinsics.add(f"declare {b.i32} @llvm.fptosi.sat.{suffix}({b.f32})")
    return b.new(f"call {b.i32} @llvm.fptosi.sat.{suffix}({b.f32} {x})")


def shifted_up(b: Body, x: str, rational: bool) -> tuple[str, str]:
    """x + SHIFTS, and what that takes: the product of x, x + 1, ..., or the sum of their reciprocals."""
    found, at = b.number(0 if rational else 1), x
    for _ in range(SHIFTS):
        found = b.floats("fadd", found, reciprocal(b, at)) if rational else b.floats("fmul", found, at)
        at = b.floats("fadd", at, b.number(1))
    return at, found


def series(b: Body, z: str, coefficients: tuple[float, ...]) -> str:
    """c0 + c1 z + c2 z^2 ..."""
    return polynomial(b, z, coefficients[::-1])


def lgamma(b: Body, x: str) -> str:
    """log of the gamma function, of positive numbers, by Stirling's series; NaN of others. Near its zeros, 1 and 2, the
    error is 1e-6 and not of the size of the result."""
    at, product = shifted_up(b, x, rational=False)
    inverse = b.floats("fdiv", b.number(1), at)
    logarithm = log(b, at)
    y = b.fma(b.floats("fsub", at, b.number(0.5)), logarithm, negative(b, at))
    y = b.floats("fadd", y, b.number(0.5 * math.log(2 * math.pi)))
    y = b.fma(inverse, series(b, b.floats("fmul", inverse, inverse), LGAMMA), y)
    y = b.floats("fsub", y, log(b, product))
    large = b.fma(b.floats("fsub", x, b.number(0.5)), log(b, x), negative(b, x))
    large = b.floats("fadd", large, b.number(0.5 * math.log(2 * math.pi)))
    y = select(b, compare(b, "ogt", x, b.number(1e4)), large, y)
    y = select(b, compare(b, "oeq", x, b.number(math.inf)), x, y)
    return only_positive(b, x, y, b.number(math.inf))


def digamma(b: Body, x: str) -> str:
    """The derivative of lgamma, of positive numbers; NaN of negative ones, -infinity at 0."""
    at, total = shifted_up(b, x, rational=True)
    inverse = b.floats("fdiv", b.number(1), at)
    square = b.floats("fmul", inverse, inverse)
    y = b.fma(inverse, b.number(-0.5), log(b, at))
    y = b.fma(negative(b, square), series(b, square, DIGAMMA), y)
    return only_positive(b, x, b.floats("fsub", y, total), negative(b, with_sign(b, b.number(math.inf), x)))


def trigamma(b: Body, x: str) -> str:
    """The derivative of digamma, of positive numbers; NaN of negative ones."""
    at, total = x, b.number(0)
    for _ in range(SHIFTS):
        inverse = reciprocal(b, at)
        total, at = b.fma(inverse, inverse, total), b.floats("fadd", at, b.number(1))
    inverse = reciprocal(b, at)
    square = b.floats("fmul", inverse, inverse)
    y = b.fma(b.floats("fmul", inverse, square), series(b, square, TRIGAMMA), b.fma(square, b.number(0.5), inverse))
    return only_positive(b, x, b.floats("fadd", y, total), b.number(math.inf))


def only_positive(b: Body, x: str, y: str, at_zero: str) -> str:
    y = select(b, compare(b, "oeq", x, b.number(0)), at_zero, y)
    return select(b, compare(b, "oge", x, b.number(0)), y, b.number(math.nan))


def pow_(b: Body, x: str, y: str) -> str:
    """x^y = e^(y log |x|), with the sign of x where y is odd; NaN of a negative x where y is no integer."""
    size = b.intrinsic("fabs", "float", x)
    found = exp(b, b.floats("fmul", y, log(b, size)))
    unit = b.new(f"and {b.i1} {compare(b, 'oeq', size, b.number(1))}, {compare(b, 'ord', y, y)}")
    found = select(b, unit, b.number(1), found)  # of an infinite power too
    whole = compare(b, "oeq", b.intrinsic("trunc", "float", y), y)
    half = b.floats("fmul", y, b.number(0.5))
    even = compare(b, "oeq", b.intrinsic("trunc", "float", half), half)
    signed = select(b, even, found, with_sign(b, found, x))
    signed = select(b, whole, signed, b.number(math.nan))
    found = select(b, compare(b, "olt", x, b.number(0)), signed, found)
    found = select(b, compare(b, "oeq", x, b.number(1)), b.number(1), found)
    return select(b, compare(b, "oeq", y, b.number(0)), b.number(1), found)


def sign(b: Body, x: str) -> str:
    """-1, 0 or 1; NaN of NaN as torch gives 0."""
    one = with_sign(b, b.number(1), x)
    return select(b, compare(b, "one", x, b.number(0)), one, b.number(0))


def reciprocal(b: Body, x: str) -> str:
    return b.floats("fdiv", b.number(1), x)


def sqrt(b: Body, x: str) -> str:
    return b.intrinsic("sqrt", "float", x)
