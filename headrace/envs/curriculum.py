"""Curricula: the environments' parameters change to the next level when the episodes of a level succeed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from headrace.core.text import did_you_mean
from headrace.core.types import Settings, StateDict
from headrace.envs.base import Env

DEFAULTS = {"by": "return", "episodes": 100}
SUCCESS = "is_success"  # the entry of infos whose mean is the success rate


class Curriculum:
    """The levels of parameters, and the present one.

    settings: the values of each parameter by level, {"gravity": [9.8, 12, 15]}, the same number for all parameters.
    `above`: the mean at which the next level begins, over the last `episodes` (100) episodes that ended in the present
    level. `by`: the value that is averaged, "return" or "success_rate", which needs `is_success` in infos. env: its
    set_params() is called. Raises ValueError, AttributeError for wrong settings, and for parameters that the
    environments do not have.
    """

    def __init__(self, settings: Settings, env: Env, infos: Sequence[str]) -> None:
        own = {**DEFAULTS, **settings}
        self.env, self.level = env, 0
        self.above, self.by, episodes = own.pop("above", None), own.pop("by"), own.pop("episodes")
        self.levels: Mapping[str, Sequence[Any]] = own
        _check(self.levels, self.above, self.by, episodes, infos)
        self.scores: deque[float] = deque(maxlen=episodes)
        self._set()

    def _set(self) -> None:
        self.env.set_params(**self.values())

    def values(self) -> dict[str, Any]:
        """The parameters of the present level."""
        return {name: values[self.level] for name, values in self.levels.items()}

    def follow(self, returns: Sequence[float], infos: Mapping[str, Sequence[float]]) -> None:
        """Add finished episodes, and go to the next level if they succeed."""
        scores = infos[SUCCESS] if self.by == "success_rate" else returns
        self.scores.extend(score for score in scores if not isnan(score))
        last = min(map(len, self.levels.values())) - 1
        full = len(self.scores) == self.scores.maxlen
        if full and self.level < last and sum(self.scores) / len(self.scores) >= self.above:
            self.level += 1
            self.scores.clear()
            self._set()

    def row(self) -> dict[str, float]:
        """The present level and its parameters, as metrics."""
        numbers = {name: float(x) for name, x in self.values().items() if isinstance(x, int | float)}
        return {"curriculum/level": float(self.level), **{f"curriculum/{name}": x for name, x in numbers.items()}}

    def state_dict(self) -> StateDict:
        """The present level, and the scores of its episodes."""
        return {"level": self.level, "scores": list(self.scores)}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). A curriculum with fewer levels continues at its last one."""
        self.level = min(state["level"], min(map(len, self.levels.values())) - 1)
        self.scores.extend(state["scores"])
        self._set()


def _check(levels: Mapping[str, Any], above: Any, by: Any, episodes: Any, infos: Sequence[str]) -> None:
    """Raise ValueError for wrong settings."""
    lengths = {name: len(x) if isinstance(x, list | tuple) else 0 for name, x in levels.items()}
    if not lengths or min(lengths.values()) < 2 or len({*lengths.values()}) > 1:
        hint = "".join(did_you_mean(name, (*DEFAULTS, "above")) for name, length in lengths.items() if not length)
        raise ValueError(
            f"curriculum has the values of each parameter by level, two or more and of all parameters as many, such as "
            f"gravity=[9.8, 12, 15], got {dict(levels)}{hint}"
        )
    if isinstance(above, bool) or not isinstance(above, int | float):
        raise ValueError(f"curriculum needs `above`, the mean {by} at which the next level begins, got {above!r}")
    if by not in ("return", "success_rate"):
        raise ValueError(f"curriculum goes by 'return' or 'success_rate', got by={by!r}")
    if by == "success_rate" and SUCCESS not in infos:
        raise ValueError("a curriculum by success_rate takes is_success of infos: give log_info=['is_success'] too")
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise ValueError(f"episodes of a curriculum must be a whole number from 1 on, got {episodes!r}")
