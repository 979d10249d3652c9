"""`--fail-if "evaluation>0.3"`: conditions on the figures of a diagnosis, for continuous integration."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
CONDITION = re.compile(r"\s*([\w.-]+)\s*(>=|<=|>|<)\s*([\d.eE+-]+)\s*")
SPEED = "steps_per_second"


def check(text: str, names: set[str]) -> None:
    """Raise ValueError if a text is no list of conditions on these names."""
    _read(text, names)


def holding(text: str, shares: Mapping[str, float], speed: float | None, names: set[str]) -> list[str]:
    """The conditions that hold, with the figures: ["evaluation > 0.3: it is 0.56"].

    text: conditions with commas between. Raises ValueError, also where the speed is asked for but was not counted.
    """
    found = []
    for name, comparison, limit in _read(text, names):
        value = speed if name == SPEED else shares.get(name, 0.0)
        if value is None:
            raise ValueError(
                f"--fail-if {text!r}: steps per second were not counted, since no learner of the script counts them"
            )
        if COMPARISONS[comparison](value, limit):
            found.append(f"{name} {comparison} {limit:g}: it is {value:.3g}")
    return found


def _read(text: str, names: set[str]) -> list[tuple[str, str, float]]:
    conditions = []
    for part in text.split(","):
        match = CONDITION.fullmatch(part)
        try:
            name, comparison, limit = match.groups() if match else ("", "", "")
            conditions.append((name, comparison, float(limit)))
        except ValueError:
            raise ValueError(f'--fail-if {part!r}: write a condition such as "evaluation>0.3"') from None
        if name not in names:
            raise ValueError(f"--fail-if {part!r}: there is no figure {name!r}; there are {', '.join(sorted(names))}")
    return conditions
