"""Dependence of numbers in a trace on the number of rows, found by traces with several."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from headrace.kernels.rows.row_program import Count

PRIMES = (1009, 3, 65537)  # far from each other: a loss that chooses by the number of rows is one that differs
MARKS = (100_003, 10_007, 3_000_017)  # counts of rows that truth values choose are primes from here on
LESS = 64  # largest number that is subtracted from the number of rows


def of_rows(numbers: Sequence[float], rows: Sequence[int] = PRIMES) -> Count | None:
    """Find how numbers depend on the rows of their traces: c * rows^k, or plus + c / (rows - less). None for any other
    dependence. rows: the number of rows, or another count, in each trace."""
    for power in (1, -1, 2, -2):
        factors = [number / float(count) ** power for number, count in zip(numbers, rows, strict=True)]
        if max(factors) - min(factors) <= 2e-7 * abs(factors[0]) and (factor := _simple(factors)) is not None:
            return Count(factor, power)
    first, second, _ = numbers
    if first != second:
        slope = (first - second) / (rows[0] - rows[1])
        more = first - slope * rows[0]
        if more == round(more) and all(n == slope * r + more for n, r in zip(numbers, rows, strict=True)):
            return Count(slope, 1, -more / slope)
    for plus in (0.0, 1.0):
        first, second, _ = (number - plus for number in numbers)
        if first == second:
            continue
        less = Fraction((first * rows[0] - second * rows[1]) / (first - second)).limit_denominator(256)
        if abs(less) > LESS:
            continue
        factors = [(number - plus) * float(count - less) for number, count in zip(numbers, rows, strict=True)]
        if max(factors) - min(factors) <= 2e-7 * abs(factors[0]) and (factor := _simple(factors)) is not None:
            return Count(factor, -1, float(less), plus)
    return None


def _simple(factors: list[float]) -> float | None:
    """Number that these factors are to float32's rounding: whole, a fraction of small numbers, or a short decimal."""
    middle = sorted(factors)[1]
    near = Fraction(middle).limit_denominator(4096)
    if near and abs(float(near) - middle) <= 2e-7 * abs(middle):
        return float(near)
    decimal = float(f"{middle:.6g}")
    return decimal if abs(decimal - middle) <= 2e-7 * abs(middle) else None
