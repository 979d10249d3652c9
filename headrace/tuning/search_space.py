"""Parse the search space of a sweep: `learning_rate=1e-4..1e-2`, `clip=0.1,0.2,0.3`, `hidden=64x64,256x256`."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from headrace.algorithms.base import algorithm_classes, algorithms_with
from headrace.core.setting_types import no_setting
from headrace.training.config import TrainConfig

if TYPE_CHECKING:
    from optuna.trial import Trial

LOGARITHMIC = 10.0  # least ratio of a positive range's ends for which it is searched on a logarithmic scale


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, which are included."""

    low: float
    high: float
    whole: bool  # of a setting of whole numbers

    def suggest(self, trial: Trial, name: str) -> str:
        """The value of a trial, as a flag takes it."""
        logarithmic = self.low > 0 and self.high / self.low >= LOGARITHMIC
        if self.whole:
            return str(trial.suggest_int(name, int(self.low), int(self.high), log=logarithmic))
        return repr(trial.suggest_float(name, self.low, self.high, log=logarithmic))


@dataclass(frozen=True)
class Choice:
    """Some values, as flags take them."""

    values: tuple[str, ...]

    def suggest(self, trial: Trial, name: str) -> str:
        """The value of a trial, as a flag takes it."""
        return str(trial.suggest_categorical(name, self.values))


Space = Mapping[str, Range | Choice]


def parsed(words: Sequence[str], algorithm: str, flag: str = "--search") -> Space:
    """Parse the words of a flag: settings of a training by name, and the range or values to search. flag: its name, for
    errors.

    Raises ValueError for unknown settings, and for text that is not a range."""
    hints = typing.get_type_hints(TrainConfig) | typing.get_type_hints(algorithm_classes(algorithm).config)
    space: dict[str, Range | Choice] = {}
    for word in words:
        given, equals, text = word.partition("=")
        name = given.replace("-", "_")
        if not (equals and text):
            raise ValueError(f"{flag} takes NAME=LOW..HIGH or NAME=A,B,C, got {word!r}")
        if name not in hints:
            raise ValueError(no_setting(name, hints, owners=algorithms_with(name)))
        if name in space:
            raise ValueError(f"{flag} names {name} twice")
        space[name] = _range(name, text, hints[name]) if ".." in text else _choice(name, text)
    if not space:
        raise ValueError(f"{flag} says which settings to search, such as learning_rate=1e-4..1e-2 clip=0.1,0.2")
    return space


def _range(name: str, text: str, hint: Any) -> Range:
    kinds = typing.get_args(hint) or (hint,)
    if not {int, float} & {*kinds} or bool in kinds:
        raise ValueError(f"{name} is no number: name its values, {name}=A,B")
    try:
        low, high = map(float, text.split(".."))
    except ValueError as error:
        raise ValueError(f"{name}={text} is no range: write two numbers, {name}=0.1..0.9") from error
    whole = float not in kinds
    if not low < high:
        raise ValueError(f"{name}={text} ends before it begins")
    if whole and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{name} is a whole number, and its range is {text}")
    return Range(low, high, whole)


def _choice(name: str, text: str) -> Choice:
    values = tuple(text.split(","))
    if len(set(values)) < 2 or len(set(values)) < len(values):
        raise ValueError(
            f"{name}={text} is neither a range, {name}=LOW..HIGH, nor a list of two different values or more, "
            f"{name}=A,B,C, each once"
        )
    return Choice(values)


def combinations(space: Space, trials: int) -> Iterator[dict[str, str]]:
    """Iterate over combinations of values of the lists in a space, some of them twice: those that have each value, then
    all, unless there are more than trials and a range, in which a search gains more."""
    lists = {name: what.values for name, what in space.items() if isinstance(what, Choice)}
    for i in range(max(map(len, lists.values()), default=0)):
        yield {name: values[i % len(values)] for name, values in lists.items()}
    if lists and (len(lists) == len(space) or prod(map(len, lists.values())) <= trials):
        yield from (dict(zip(lists, values, strict=True)) for values in product(*lists.values()))


def flags(values: Mapping[str, str]) -> list[str]:
    """Write a trial's values as flags of `headrace train`. 64x64 becomes two values of one flag."""
    words: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if value in ("true", "false"):
            words.append(f"--{flag}" if value == "true" else f"--no-{flag}")
        else:
            words += [f"--{flag}", *(value.split("x") if value.replace("x", "").isdecimal() else [value])]
    return words
