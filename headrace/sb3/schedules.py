"""Schedules as files have them: functions of the remaining fraction of a training, 1 .. 0, by their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

POINTS = 1000  # parts of the training at whose ends a function is asked for its value
STRAIGHT = 1e-9  # of the largest value: a smaller bend is rounding
_NUMBER = r"([-+.\deE]+)"
CONSTANT = re.compile(rf"ConstantSchedule\(val={_NUMBER}\)")
LINEAR = re.compile(rf"LinearSchedule\(start={_NUMBER}, end={_NUMBER}, end_fraction={_NUMBER}\)")


class Constant(float):
    """A number that is a schedule, too."""

    def __call__(self, remaining: float) -> float:
        """The number."""
        return float(self)


class Interpolated:
    """A schedule by its values at some remaining fractions, in rising order, and straight lines between them.

    name: of the function that it was, or of its class.
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
    """A function by its values, as few as describe them; None where it has no finite value at some of the points."""
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
    """A schedule of Stable-Baselines3 by its text; None for one that the text does not tell."""
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
