"""Schedules of settings: their values over the progress of a training, the fraction 0 .. 1 that is done.

A schedule is a text or a function of the progress. Texts are `linear`, `cosine` and `constant`, each with the value at
the end, 0 by default, as in `cosine:1e-5`, or with the values at the start and at the end, as in `linear:0.2:0.05`.
`warmup:0.1+` before one of them lets the value rise linearly from 0 over that fraction of the training. A function is
named as `file.py:function` or `package.module:function`, or given itself, and returns the value.

Imports no torch, so that a command line can be read and its help printed at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, get_args

from headrace.core.setting_types import fit, hints_of
from headrace.core.types import MADE_WITH

Schedule: TypeAlias = str | Callable[[Any], Any]  # a text, or a function of the progress
ADAPTIVE = "adaptive"  # of the learning rate: it follows the KL divergence of minibatches
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
TEXT = re.compile(rf"(?:warmup:(?P<rise>{NUMBER})\+?)?(?P<shape>constant|linear|cosine)?(?P<ends>(?::{NUMBER}){{0,2}})")
FORMS = "constant, linear, cosine, linear:END, linear:START:END, warmup:0.1+cosine, or file.py:function"
FIXED = {  # settings that have no schedule -> why
    **dict.fromkeys(("utd_ratio", "gradient_steps", "learning_starts"), "the number of gradient steps follows from it"),
    **dict.fromkeys(("batch_size", "target_interval", "policy_delay"), "learning is planned by it"),
    "learning_rate": "`schedule` is that of the learning rate",
    "exploration_fraction": "give exploration_final a schedule, and exploration_fraction=0",
}


class Curve(NamedTuple):
    """A schedule by its text. Called with the progress, a number or a tensor, it returns the value."""

    shape: str
    start: float
    end: float
    rise: float  # fraction of the training over which the value rises from 0 to its start

    def __call__(self, progress: Any) -> Any:
        """The value."""
        value: Any = self.start
        if self.shape != "constant":
            done = _within((progress - self.rise) / (1 - self.rise)) if self.rise else progress
            value = self.end + (self.start - self.end) * (1 - done if self.shape == "linear" else _half_cosine(done))
        return value * _within(progress / self.rise) if self.rise else value

    def text(self) -> str:
        """The text with both values, which needs no other setting."""
        rise = f"warmup:{self.rise!r}+" if self.rise else ""
        return f"{rise}{self.shape}:{self.start!r}:{self.end!r}"


def _within(x: Any) -> Any:
    return min(max(x, 0.0), 1.0) if isinstance(x, float | int) else x.clamp(0.0, 1.0)


def _half_cosine(done: Any) -> Any:
    """Fall from 1 to 0 as half a period of a cosine. done: from 0 to 1."""
    angle = done * math.pi
    return 0.5 * (1 + (math.cos(angle) if isinstance(angle, float) else angle.cos()))


def curve(name: str, text: str, start: float) -> Curve | None:
    """The curve of a schedule's text; None for the name of a function. start: of the value, where the text has none.

    Raises ValueError for a text that is neither."""
    found = TEXT.fullmatch(text)
    if found is None or not text:
        if ":" in text:
            return None
        raise ValueError(f"the schedule of {name} is {text!r}: give {FORMS}")
    rise, shape = float(found["rise"] or 0.0), found["shape"] or "constant"
    ends = [float(x) for x in found["ends"].split(":")[1:]]
    if not 0 <= rise < 1 or (found["shape"] is None and ends):
        raise ValueError(
            f"the schedule of {name} is {text!r}: warmup takes a fraction in [0, 1), as in warmup:0.1+cosine"
        )
    if shape == "constant" and ends and len({*ends}) > 1:
        raise ValueError(f"the schedule of {name} is {text!r}: a constant has one value")
    if shape == "constant":
        return Curve(shape, ends[0] if ends else start, ends[0] if ends else start, rise)
    return Curve(shape, ends[0] if len(ends) == 2 else start, ends[-1] if ends else 0.0, rise)


class Named:
    """A function of the user's, by its name: `file.py:function` or `package.module:function`."""

    def __init__(self, name: str, of: str) -> None:
        # here, so that digests of plain functions do not depend on which files of the user's were loaded
        from headrace.core.user_names import member

        self.name, self.of = name, of
        self.function = member(name, f"the schedule of {of}")

    def __call__(self, progress: Any) -> Any:
        """The value."""
        return self.function(progress)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return Named, (self.name, self.of)


def value_at(name: str, schedule: Schedule, start: float, progress: Any) -> Any:
    """The value of a setting at a progress, a number or a scalar tensor. start: the setting as it was given."""
    function: Any = curve(name, schedule, start) if isinstance(schedule, str) else schedule
    return function(progress)


def is_adaptive(config: Any) -> bool:
    """True if the learning rate follows the KL divergence of minibatches."""
    return getattr(config, "schedule", "constant") == ADAPTIVE


def learning_rate(config: Any, progress: Any) -> Any:
    """The learning rate at a progress, a number or a scalar tensor; None where it does not follow the progress."""
    schedule = getattr(config, "schedule", "constant")
    if schedule in ("constant", ADAPTIVE):
        return None
    return value_at("learning_rate", schedule, config.learning_rate, progress)


def check(config: Any, check_range: Callable[[str, Any, str], None]) -> None:
    """Write the values at their starts into the schedules of a new config, since its settings change; raise ValueError
    for a schedule that a setting cannot have. check_range: of a setting's name, a value and where that is from."""
    _check_learning_rate(config)
    found: dict[str, Schedule] = {}
    for name, schedule in config.schedules.items():
        now = getattr(config, name, None)
        if not _has_numbers(config, name, now) or name in {*MADE_WITH, *FIXED}:
            why = FIXED.get(name, "schedules are for numbers that are read again in each iteration")
            raise ValueError(f"schedules has {name}={schedule!r}: {why}")
        known = None if callable(schedule) else curve(name, str(schedule), now)  # type: ignore[arg-type]
        if known is not None and known.start is None:
            raise ValueError(
                f"schedules has {name}={schedule!r}, and {name} is None: give both values, linear:START:END"
            )
        found[name] = _function(name, schedule) if known is None else known.text()
        for value in () if known is None else (known(0.0), known(1.0)):
            check_range(name, round(value) if isinstance(now, int) else value, f" by its schedule {found[name]}")
    object.__setattr__(config, "schedules", found)


def _has_numbers(config: Any, name: str, now: Any) -> bool:
    """True if values of a setting are numbers, also of one that may be None and is."""
    if now is None:
        return float in get_args(hints_of(config.__class__).get(name))
    return isinstance(now, int | float) and not isinstance(now, bool)


def _function(name: str, schedule: Schedule) -> Schedule:
    return Named(schedule, name) if isinstance(schedule, str) else schedule


def _check_learning_rate(config: Any) -> None:
    schedule, start = config.schedule, config.learning_rate
    if schedule == ADAPTIVE:
        if not hasattr(config, "desired_kl"):
            raise ValueError(
                "schedule='adaptive' follows the KL divergence of PPO's minibatches: give another schedule"
            )
        if config.target_kl:
            raise ValueError(
                f"schedule='adaptive' holds the KL divergence at desired_kl, {config.desired_kl:g}, and target_kl="
                f"{config.target_kl:g} stops learning at it: give target_kl=0, or another schedule"
            )
        return
    found = None if callable(schedule) else curve("learning_rate", schedule, start)
    if found is None:
        object.__setattr__(config, "schedule", _function("learning_rate", schedule))
    if found is not None and (found.start != start or found.end < 0):
        raise ValueError(f"schedule is {schedule!r}: it begins at learning_rate, {start:g}; give its end, 0 or more")


def at(config: Any, progress: Any) -> Any:
    """The config, with the values that its schedules have at this progress. Raises ValueError for one out of range."""
    schedules: Mapping[str, Schedule] = getattr(config, "schedules", {})
    if not schedules:
        return config
    hints, values = hints_of(config.__class__), dict[str, Any]()
    for name, schedule in schedules.items():
        now = getattr(config, name)
        value = float(value_at(name, schedule, now, progress))
        values[name] = fit(name, round(value) if isinstance(now, int) else value, hints[name])
    return config if all(getattr(config, name) == x for name, x in values.items()) else replace(config, **values)


def values(config: Any, progress: float) -> dict[str, float]:
    """Values at this progress of the training, by name: the learning rate, settings with schedules, and epsilon-greedy
    exploration."""
    now = at(config, progress)
    found = {name: float(getattr(now, name)) for name in getattr(config, "schedules", {})}
    if (rate := learning_rate(config, progress)) is not None:
        found["learning_rate"] = float(rate)
    if hasattr(now, "exploration_rate"):
        found["exploration_rate"] = float(now.exploration_rate(progress))
    return found


def following(config: Any) -> list[str]:
    """Names of the settings that change with the progress of the training, for a message."""
    schedule = getattr(config, "schedule", "constant")
    rate = [] if schedule in ("constant", ADAPTIVE) else ["the learning rate (or take schedule='constant')"]
    return [*rate, *getattr(config, "schedules", {})]
