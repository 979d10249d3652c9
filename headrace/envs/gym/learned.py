"""Wrappers that learn statistics: read and set their numbers, and report them.

The numbers of Gymnasium's NormalizeObservation and NormalizeReward, and of subclasses, are known. Evaluations and
videos use the pooled numbers of all environments of the training, and do not learn. A resumed training has the numbers
of each environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers.utils import update_mean_var_count_from_moments

from headrace.core.packages import of_headrace
from headrace.core.terminal import tell
from headrace.core.text import shown
from headrace.core.types import Json

Statistics = Sequence[Json]  # of each such wrapper, the outermost first: mean, var, count
KNOWN: dict[type, tuple[str, str]] = {  # attribute with the numbers, and the setting to use instead
    NormalizeObservation: ("obs_rms", "normalize_observation"),
    NormalizeReward: ("return_rms", "normalize_return"),
}
MOMENTS = ("mean", "var", "count")
LEARNS = re.compile(r"(^|_)(running|moving|ema|rms)(_|$)")  # in the names of attributes that are learned
OF_REWARDS = re.compile(r"rew|ret")
KIND = re.compile(r"(^|_)(?:(mean|mu)|(var|std|m2|variance)|(count|n|num|steps))$")

_told: set[tuple[str, str, bool]] = set()


class Learned(NamedTuple):
    """A wrapper that learns statistics."""

    wrapper: str  # its class
    attribute: str  # the attribute that has them
    setting: str  # the setting to use instead
    known: bool  # whether its numbers can be copied


def layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment, or of a vector of them, from outside in, and the environment itself."""
    while isinstance(env, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        yield env
        env = env.env
    yield env


def learned_of(env: Any) -> tuple[Learned, ...]:
    """The wrappers of an environment that learn, or seem to by the names of their attributes."""
    return tuple(found for layer in layers(env) if (found := _learned(layer)) is not None)


def _learned(layer: Any) -> Learned | None:
    name = type(layer).__name__
    for kind, (attribute, setting) in KNOWN.items():
        if isinstance(layer, kind):
            return Learned(name, attribute, setting, True)
        if kind.__name__ in {base.__name__ for base in type(layer).__mro__}:  # that of vectors
            return Learned(name, attribute, setting, False)
    if of_headrace(type(layer)) or type(layer).__module__.partition(".")[0] in ("gymnasium", "pettingzoo"):
        return None
    values = {key: value for key, value in getattr(layer, "__dict__", {}).items() if _is_numbers(value)}
    kinds = {match.lastindex for key in values if (match := KIND.search(key))}
    all_kinds = {2, 3, 4} <= kinds
    is_wrapper = isinstance(layer, gymnasium.Wrapper | gymnasium.vector.VectorWrapper)  # else names mean other things
    attributes = [
        key
        for key in values
        if _is_running(values[key]) or (is_wrapper and (LEARNS.search(key) or (all_kinds and KIND.search(key))))
    ]
    if not attributes:
        return None
    rewards = any(OF_REWARDS.search(key) for key in attributes)
    return Learned(name, ", ".join(attributes), "normalize_return" if rewards else "normalize_observation", False)


def _is_numbers(value: Any) -> bool:
    return (isinstance(value, np.ndarray | float | int) and not isinstance(value, bool)) or _is_running(value)


def _is_running(value: Any) -> bool:
    """Tell whether an object has running moments, as Gymnasium's RunningMeanStd. In arrays these are methods."""
    mean, count, spread = (getattr(value, name, None) for name in ("mean", "count", "var"))
    spread = getattr(value, "std", None) if spread is None else spread
    return all(moment is not None and not callable(moment) for moment in (mean, count, spread))


def tell_learned(name: str, learned: Iterable[Learned], carried: bool = True) -> None:
    """Print a line about each of the wrappers of `name`, once in this process. carried: whether known numbers are
    copied."""
    for one in learned:
        taken_over = one.known and carried
        if (name, one.wrapper, taken_over) in _told:
            continue
        _told.add((name, one.wrapper, taken_over))
        if taken_over:
            what = "learns in each environment alone, and evaluations, videos and resumed runs take its numbers over"
        else:
            what = f"has {one.attribute}: where that is learned, evaluations, videos and resumed runs begin without it"
        tell(f"{name}: {one.wrapper} {what}; {one.setting}=True in its place learns once, in the policy")


def statistics_of(env: Any) -> Statistics:
    """The numbers of an environment's known wrappers, copied."""
    found = []
    for layer, moments in _moments(env):
        numbers = {name: np.array(getattr(moments, name), np.float64) for name in MOMENTS}
        found.append({"wrapper": type(layer).__name__, **numbers})
    return found


def give(env: Any, statistics: Statistics, learns: bool = True) -> None:
    """Set the numbers of an environment's known wrappers to those of statistics_of() or pooled(). An environment
    without such wrappers does not change. learns: whether they continue to learn.

    Raises ValueError for numbers of other wrappers, or of other shapes."""
    found = list(_moments(env))
    if not found or not statistics:
        return
    names = [type(layer).__name__ for layer, _ in found]
    if names != [one["wrapper"] for one in statistics]:
        raise ValueError(f"statistics of {', '.join(x['wrapper'] for x in statistics)} are not for {', '.join(names)}")
    for (layer, moments), numbers in zip(found, statistics, strict=True):
        for name in MOMENTS:
            before, value = np.asarray(getattr(moments, name)), np.asarray(numbers[name], np.float64)
            if value.shape != before.shape:
                wrong = f"{type(layer).__name__} has a {name} of shape {before.shape}"
                raise ValueError(f"{wrong}, and what was learned is {shown(value, 60)}")
            setattr(moments, name, float(value) if name == "count" else value.astype(before.dtype))
        layer.update_running_mean = learns


def pooled(each: Sequence[Statistics]) -> Statistics:
    """The pooled numbers of several environments, in JSON's types; none if their wrappers differ."""
    if len({tuple(one["wrapper"] for one in statistics) for statistics in each}) > 1:
        return []
    together = []
    for of_one in zip(*each, strict=True):
        moments = tuple(of_one[0][name] for name in MOMENTS)
        for other in of_one[1:]:
            moments = update_mean_var_count_from_moments(*moments, *(other[name] for name in MOMENTS))
        numbers = {name: np.asarray(value).tolist() for name, value in zip(MOMENTS, moments, strict=True)}
        together.append({"wrapper": of_one[0]["wrapper"], **numbers})
    return together


def _moments(env: Any) -> Iterator[tuple[Any, Any]]:
    for layer in layers(env):
        for kind, (attribute, _) in KNOWN.items():
            if isinstance(layer, kind):
                yield layer, getattr(layer, attribute)


@dataclass(frozen=True)
class Carried:
    """A function used as a wrapper, which sets an environment's numbers to those of a training and stops their
    learning."""

    statistics: Statistics

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        """Set the numbers, and return the same environment."""
        give(env, self.statistics, learns=False)
        return env


def carried(policy: object) -> tuple[Carried, ...]:
    """Wrappers for the environments of an evaluation, with the numbers that were learned along with a policy."""
    statistics = getattr(policy, "wrapper_statistics", None)
    return (Carried(statistics),) if statistics else ()
