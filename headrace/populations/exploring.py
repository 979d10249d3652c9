"""Exploit and explore: choose the members of a population that copies of better ones replace, and their settings.

Population Based Training (Jaderberg et al. 2017, arXiv:1711.09846), section 4.1.1: truncation selection; perturbation
by a factor, or resampling.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

from headrace import setting_schedules
from headrace.core.setting_types import fit, hints_of
from headrace.core.types import MADE_WITH, DataclassInstance, Json
from headrace.tuning import search_space
from headrace.tuning.search_space import LOGARITHMIC, Range

FACTORS = (0.8, 1.2)  # of explore(), those of the paper
Values: TypeAlias = Sequence[Any]  # of a setting, in order: explore() moves to a neighbour
Mutations: TypeAlias = Mapping[str, Range | Values]  # by setting


@dataclass(frozen=True)
class Selection:
    """Settings of exploiting and exploring."""

    quantile: float = 0.2  # share of members that are replaced by copies of the same share of best ones
    resample: float = 0.25  # probability that a copy's setting is drawn again instead of perturbed
    seed: int = 0

    def generator(self, interval: int) -> np.random.Generator:
        """The random numbers of an interval, which depend only on the population's seed and the interval."""
        return np.random.Generator(np.random.Philox(key=[self.seed, interval]))


def mutations(mutate: Mapping[str, str], algorithm: str, config: DataclassInstance) -> Mutations:
    """The ranges and values of settings that a population changes.

    mutate: "LOW..HIGH" or "A,B,C" by the name of a setting. config: the algorithm's, with all other settings.
    Raises ValueError for text that is not a range, and for a setting that cannot change during a training.
    """
    own = {setting.name for setting in fields(config)}
    space = search_space.parsed([f"{name}={text}" for name, text in mutate.items()], algorithm, "mutate")
    found: dict[str, Range | Values] = {}
    for name, what in space.items():
        if name in MADE_WITH or name not in own:
            why = "networks and buffers are made by it" if name in own else f"it is no setting of {algorithm} alone"
            raise ValueError(f"mutate names {name}, which cannot change during a training: {why}")
        if name in getattr(config, "schedules", {}) or (
            name == "learning_rate" and setting_schedules.is_adaptive(config)
        ):
            raise ValueError(f"mutate names {name}, which follows a schedule: leave one of them out")
        hint = hints_of(type(config))[name]
        found[name] = what if isinstance(what, Range) else [fit(name, _typed(text), hint) for text in what.values]
        ends = (what.low, what.high) if isinstance(what, Range) else found[name]
        for value in ends:  # type: ignore[union-attr]
            replace(config, **{name: fit(name, value, hint)})  # raises ValueError for one out of the setting's range
    return found


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def draw(what: Range | Values, generator: np.random.Generator) -> Any:
    """Draw a value of a setting uniformly, on a logarithmic scale if the ends have a ratio of 10 or more."""
    if not isinstance(what, Range):
        return what[int(generator.integers(len(what)))]
    low, high = what.low, what.high
    if low > 0 and high / low >= LOGARITHMIC:
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        value = generator.uniform(low, high)
    return _within(what, value)


def perturb(what: Range | Values, value: Any, generator: np.random.Generator) -> Any:
    """Multiply a value by 0.8 or 1.2, within its range, or move to the neighbour in a list of values. A whole number
    changes by at least 1. 0, which no factor changes, is drawn again."""
    if isinstance(what, Range) and not value:
        return draw(what, generator)
    up = int(generator.integers(2))
    if isinstance(what, Range):
        found = _within(what, value * FACTORS[up])
        return found if found != value or not what.whole else _within(what, value + (1 if up else -1))
    place = what.index(value) + (1 if up else -1)
    return what[min(max(place, 0), len(what) - 1)]


def _within(what: Range, value: float) -> float | int:
    value = min(max(value, what.low), what.high)
    return round(value) if what.whole else value


def begin(space: Mutations, members: int, selection: Selection) -> list[Json]:
    """Draw the settings that members begin with from their ranges."""
    generator = selection.generator(0)
    return [{name: draw(what, generator) for name, what in space.items()} for _ in range(members)]


def decide(
    scores: Sequence[float | None], settings: Sequence[Json], space: Mutations, selection: Selection, interval: int
) -> list[tuple[int, Json]]:
    """Choose for each member the member that it continues from, and its settings.

    scores: of each member; None for a failed one, which is always replaced. Other members are replaced if they are
    among the lowest. At least one must have a score.
    """
    generator = selection.generator(interval)
    ranked = sorted(range(len(scores)), key=lambda member: (scores[member] is None, -(scores[member] or 0.0), member))
    failed = sum(score is None for score in scores)
    share = max(1, int(selection.quantile * len(scores))) if selection.quantile else 0
    best = ranked[: max(1, min(share, len(scores) - failed))]
    replaced = {*ranked[len(scores) - max(share, failed) :]} - {*best}
    found = []
    for member in range(len(scores)):
        if member not in replaced:
            found.append((member, settings[member]))
            continue
        source = best[int(generator.integers(len(best)))]
        found.append((source, _explored(settings[source], space, selection, generator)))
    return found


def _explored(settings: Json, space: Mutations, selection: Selection, generator: np.random.Generator) -> Json:
    found = {}
    for name, what in space.items():
        again = generator.random() < selection.resample
        found[name] = draw(what, generator) if again else perturb(what, settings[name], generator)
    return found
