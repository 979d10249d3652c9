"""Trainings in which none of the user's code runs between the first iteration and the last one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.algorithms.base import ALGORITHMS
from headrace.core.fused import functions_unchanged
from headrace.policies.examination import examined_once
from headrace.training.trainer import Trainer

COMPILED = ("cpu", "cuda")  # backends of environments that run no Python
PLAIN = (int, float, Path, type(None))


@contextmanager
def looked_at_once(trainer: Trainer, given: Iterable[Any]) -> Iterator[None]:
    """Within this block, of a whole training, functions and modules are looked at once rather than before each call of
    a kernel, where nothing of the user's can change them. given: the options of the training.

    That is where environments are compiled, algorithm and policy are the package's, and no option is a function or an
    object of the user's.
    """
    own = trainer.plan.algorithm not in ALGORITHMS or trainer.config.policy is not None
    if own or trainer.env.backend not in COMPILED or not all(map(_is_plain, given)):
        yield
        return
    with functions_unchanged(), examined_once():
        yield


def _is_plain(value: Any) -> bool:
    """True for settings that are numbers and text, also in lists and dicts, but for names of what is in a file."""
    if isinstance(value, str):
        return ".py:" not in value
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, PLAIN)
