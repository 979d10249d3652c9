"""The functions of Map by their names; among them are those that first take multiples of a number off their argument.

These take them off exactly, whatever their number, in float32 and in integers: a GPU has few units for float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.kernels.rows.targets.llvm_math import (
    atanh,
    bits,
    compare,
    digamma,
    erf,
    exp,
    expm1,
    from_bits,
    lgamma,
    log,
    log1p,
    maximum,
    minimum,
    negative,
    polynomial,
    pow_,
    reciprocal,
    select,
    sigmoid,
    sign,
    sqrt,
    tanh,
    trigamma,
    with_sign,
)
from headrace.kernels.rows.targets.llvm_text import Body

SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
HALF_PI = (1.57079637050628662109375, -4.37113900018624283e-8)  # their sum is pi / 2; each is a float32
# The binary digits of 2 / pi, 32 at a time, after as many zeros
TWO_BY_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
FIRST = 120  # exponent, as float32 has it, of numbers whose product with 2 / pi is below 4 from the first digit on
DIGITS = 22  # of a quotient that a turn of fmod() takes off
TURNS = 13  # which are as many digits as a quotient of float32 can have


def sine(b: Body, x: str, quarters: int) -> str:
    """Compute sin(x + quarters * pi / 2): by the nearest quarter, and polynomials of the rest (Cephes' sinf and
    cosf)."""
    quarter, rest = _quarter(b, x)
    square = b.floats("fmul", rest, rest)
    s = b.fma(b.floats("fmul", polynomial(b, square, SIN), square), rest, rest)
    one = b.fma(square, b.number(-0.5), b.number(1))
    c = b.fma(b.floats("fmul", polynomial(b, square, COS), square), square, one)
    number = b.ints("add", quarter, b.integer(quarters))
    odd, below = (b.new(f"icmp ne {b.i32} {b.ints('and', number, b.integer(n))}, {b.integer(0)}") for n in (1, 2))
    y = select(b, odd, c, s)
    y = select(b, below, negative(b, y), y)
    known = compare(b, "olt", b.intrinsic("fabs", "float", x), b.number(math.inf))
    return select(b, known, y, b.number(math.nan))


def _quarter(b: Body, x: str) -> tuple[str, str]:
    """n and r, of x = n pi / 2 + r with |r| at most pi / 4; of n only x / (2 pi) modulo 1 is known.

    The product of |x| and those 96 digits of 2 / pi that decide about it (Payne and Hanek 1983). Its first two digits
    are whole quarters, the next 62 the rest: none of 2^31 numbers is so near to a quarter that they are too few.
    """
    word = bits(b, x)
    size = b.ints("and", word, b.integer(0x7FFFFFFF))
    mantissa = b.ints("or", b.ints("and", word, b.integer(0x7FFFFF)), b.integer(0x800000))
    high, low = _times_digits(b, mantissa, b.ints("sub", b.ints("lshr", size, b.integer(23)), b.integer(FIRST)))
    quarter = b.ints("lshr", b.ints("add", high, b.integer(1 << 29)), b.integer(30))
    high, low = b.intrinsic("fshl", "i32", high, low, b.integer(2)), b.ints("shl", low, b.integer(2))
    above = b.ints("ashr", high, b.integer(31))  # all ones where the nearest quarter is above
    high, low = (b.ints("xor", part, above) for part in (high, low))
    middle = b.ints("shl", b.ints("and", high, b.integer(0xFF)), b.integer(16))
    middle = b.ints("or", middle, b.ints("lshr", low, b.integer(16)))
    parts = b.ints("lshr", high, b.integer(8)), middle, b.ints("and", low, b.integer(0xFFFF))
    first, second, third = (b.new(f"sitofp {b.i32} {part} to {b.f32}") for part in parts)  # exact: of at most 24 digits
    first = b.floats("fmul", first, b.number(2.0**-24))
    second = b.fma(third, b.number(2.0**-64), b.floats("fmul", second, b.number(2.0**-48)))
    rest = b.fma(first, b.number(HALF_PI[1]), b.floats("fmul", second, b.number(HALF_PI[0])))
    rest = b.fma(first, b.number(HALF_PI[0]), rest)
    flipped = b.ints("and", b.ints("xor", above, word), _word(b, 0x80000000))
    rest = from_bits(b, b.ints("xor", bits(b, rest), flipped))
    below_zero = b.ints("ashr", word, b.integer(31))
    quarter = b.ints("sub", b.ints("xor", quarter, below_zero), below_zero)
    small = compare(b, "olt", from_bits(b, size), b.number(math.pi / 4))
    return select(b, small, b.integer(0), quarter, b.i32), select(b, small, x, rest)


def _times_digits(b: Body, mantissa: str, begin: str) -> tuple[str, str]:
    """The product of a mantissa and the digits of 2 / pi from `begin` on: the first two words of the last three."""
    word = [_word(b, one) for one in TWO_BY_PI[:4]]
    for n in range(1, len(TWO_BY_PI) - 3):
        later = b.new(f"icmp sge {b.i32} {begin}, {b.integer(32 * n)}")
        word = [select(b, later, _word(b, new), old, b.i32) for new, old in zip(TWO_BY_PI[n:], word, strict=False)]
    high, middle, low = (b.intrinsic("fshl", "i32", *word[i : i + 2], begin) for i in range(3))
    carried = _words_of_product(b, mantissa, low)[0]
    middle, low = _words_of_product(b, mantissa, middle, carried)
    return b.ints("add", b.ints("mul", mantissa, high), middle), low


def _words_of_product(b: Body, x: str, y: str, more: str | None = None) -> tuple[str, str]:
    """The high and the low word of x * y + more, of unsigned numbers."""
    i64 = b.kind("i64")
    wide = [b.new(f"zext {b.i32} {part} to {i64}") for part in (x, y, *([more] if more else []))]
    product = b.new(f"mul {i64} {wide[0]}, {wide[1]}")
    if more:
        product = b.new(f"add {i64} {product}, {wide[2]}")
    high = b.new(f"lshr {i64} {product}, {b.splat('i64 32')}")
    return b.new(f"trunc {i64} {high} to {b.i32}"), b.new(f"trunc {i64} {product} to {b.i32}")


def _word(b: Body, number: int) -> str:
    """An unsigned number of 32 bits as an int32."""
    return b.integer(number - ((number >> 31) << 32))


def fmod(b: Body, x: str, y: str) -> str:
    """x - y trunc(x / y), with the sign of x. Exact: each turn takes multiples of y 2^n off, fewer than float32 has
    whole numbers, so that the rest is a float32. Turns do nothing whose y 2^n is none."""
    rest, step = (b.intrinsic("fabs", "float", value) for value in (x, y))
    size, infinite = rest, b.number(math.inf)
    for turn in reversed(range(TURNS)):
        scaled, left = step, DIGITS * turn
        while left:
            power = min(left, 120)
            scaled, left = b.floats("fmul", scaled, b.number(2.0**power)), left - power
        quotient = b.intrinsic("trunc", "float", b.floats("fdiv", rest, scaled))
        new = b.fma(negative(b, quotient), scaled, rest)
        new = select(b, compare(b, "olt", new, b.number(0)), b.floats("fadd", new, scaled), new)  # it was rounded up
        rest = select(b, compare(b, "oeq", scaled, infinite), rest, new)
    return select(b, compare(b, "olt", size, infinite), with_sign(b, rest, x), b.number(math.nan))


def _instruction(name: str) -> Callable[..., str]:
    return lambda b, *values: b.floats(name, *values)


def _intrinsic(name: str) -> Callable[..., str]:
    return lambda b, x: b.intrinsic(name, "float", x)


FLOATS: dict[str, Callable[..., str]] = {
    **{"add": _instruction("fadd"), "sub": _instruction("fsub"), "mul": _instruction("fmul")},
    **{"div": _instruction("fdiv"), "maximum": maximum, "minimum": minimum, "pow": pow_, "fmod": fmod},
    **{"neg": negative, "abs": _intrinsic("fabs"), "sign": sign, "exp": exp, "expm1": expm1, "log": log},
    **{"log1p": log1p, "sqrt": sqrt, "rsqrt": lambda b, x: reciprocal(b, sqrt(b, x)), "reciprocal": reciprocal},
    **{
        "tanh": tanh,
        "atanh": atanh,
        "sigmoid": sigmoid,
        "erf": erf,
        "lgamma": lgamma,
        "digamma": digamma,
        "trigamma": trigamma,
    },
    **{"sin": lambda b, x: sine(b, x, 0), "cos": lambda b, x: sine(b, x, 1)},
    **{"floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"), "trunc": _intrinsic("trunc")},
    "round": _intrinsic("roundeven"),
}
