"""Schedules for files: functions of the remaining fraction of a training, 1 .. 0, represented by values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

POINTS = 1000  # parts of the training at whose ends a function is evaluated
STRAIGHT = 1e-9  # relative to the largest value: smaller deviations from a line are rounding
_NUMBER = r"([-+.\deE]+)"
CONSTANT = re.compile(rf"ConstantSchedule\(val={_NUMBER}\)")
LINEAR = re.compile(rf"LinearSchedule\(start={_NUMBER}, end={_NUMBER}, end_fraction={_NUMBER}\)")


class Constant(float):
    """A number that can also be called as a schedule."""

    def __call__(self, remaining: float) -> float:
        """The number."""
        return float(self)


class Interpolated:
    """A piecewise linear schedule: values at some remaining fractions, in rising order.

    name: of the original function, or of its class.
    """

    def __init__(self, at: Sequence[float], values: Sequence[float], name: str = "Interpolated") -> None:
        self.at, self.values, self.__name__ = [*at], [*values], name

    def __call__(self, remaining: float) -> float:
        """The value at a remaining fraction."""
        return float(np.interp(remaining, self.at, self.values))

    def __repr__(self) -> str:
        shown = ", ".join(f"{x:g}" for x in self.values[:-5:-1])
        return f"Interpolated({shown}{', ...' if len(self.values) > 4 else ''})"


def interpolated(function: Callable[[float], float]) -> Interpolated | None:
    """Represent a function by as few values as describe it; None if its value at some point is not finite."""
    at = np.linspace(0.0, 1.0, POINTS + 1)
    try:
        values = np.array([float(function(float(x))) for x in at])
    except (ArithmeticError, ValueError):
        return None
    if not np.isfinite(values).all():
        return None
    bent = np.abs(np.diff(values, 2)) > STRAIGHT * np.abs(values).max()
    kept = np.concatenate(([True], bent, [True]))
    name = getattr(function, "__name__", type(function).__name__)
    return Interpolated(at[kept].tolist(), values[kept].tolist(), name)


def of_text(text: str) -> Interpolated | float | None:
    """Read a schedule of Stable-Baselines3 from its text; None if the text does not determine it."""
    if match := CONSTANT.search(text):
        return float(match[1])
    if not (match := LINEAR.search(text)):
        return None
    start, end, fraction = map(float, match.groups())
    return (
        Interpolated([0.0, 1.0], [end, start])
        if fraction >= 1
        else Interpolated([0.0, 1.0 - fraction, 1.0], [end, end, start])
    )
