"""How numbers in a trace depend on the number of rows, by traces with several."""

from __future__ import annotations

from fractions import Fraction

from headrace.kernels.rows.row_program import Count

PRIMES = (1009, 3, 65537)  # far from each other: a loss that chooses by the number of rows is one that differs
LESS = 64  # what is taken from the number of rows, at most


def of_rows(numbers: list[float]) -> Count | None:
    """How numbers depend on the rows of their traces: c * rows^k, or plus + c / (rows - less); None where otherwise."""
    for power in (1, -1, 2, -2):
        factors = [number / float(rows) ** power for number, rows in zip(numbers, PRIMES, strict=True)]
        if max(factors) - min(factors) <= 2e-7 * abs(factors[0]) and (factor := _simple(factors)) is not None:
            return Count(factor, power)
    first, second, _ = numbers
    if first != second:
        slope = (first - second) / (PRIMES[0] - PRIMES[1])
        before = PRIMES[0] - first / slope
        if before == round(before) and all(n == slope * (r - before) for n, r in zip(numbers, PRIMES, strict=True)):
            return Count(slope, 1, before)
    for plus in (0.0, 1.0):
        first, second, _ = (number - plus for number in numbers)
        if first == second:
            continue
        less = Fraction((first * PRIMES[0] - second * PRIMES[1]) / (first - second)).limit_denominator(256)
        if abs(less) > LESS:
            continue
        factors = [(number - plus) * float(rows - less) for number, rows in zip(numbers, PRIMES, strict=True)]
        if max(factors) - min(factors) <= 2e-7 * abs(factors[0]) and (factor := _simple(factors)) is not None:
            return Count(factor, -1, float(less), plus)
    return None


def _simple(factors: list[float]) -> float | None:
    """The number that these are to float32's rounding: whole, a fraction of small numbers, or a short decimal."""
    middle = sorted(factors)[1]
    near = Fraction(middle).limit_denominator(4096)
    if near and abs(float(near) - middle) <= 2e-7 * abs(middle):
        return float(near)
    decimal = float(f"{middle:.6g}")
    return decimal if abs(decimal - middle) <= 2e-7 * abs(middle) else None
