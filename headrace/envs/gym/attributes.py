"""Attributes of a Gymnasium environment under its wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium

from headrace.core.packages import of_headrace

LIBRARIES = ("gymnasium", "stable_baselines3")  # packages whose wrappers read no new attributes


def set_attribute(env: gymnasium.Env, name: str, value: Any) -> None:
    """Set an attribute on the outermost wrapper that has it, or on the environment. A new attribute is set on the
    user's outermost wrapper, if any, as Gymnasium's set_wrapper_attr() does if there are no other wrappers."""
    every = [*_layers(env)]
    has = next((layer for layer in every if hasattr(layer, name)), None)
    setattr(has or next(filter(_is_of_users, every), every[-1]), name, value)


def _is_of_users(layer: Any) -> bool:
    kind = type(layer)
    return not of_headrace(kind) and kind.__module__.partition(".")[0] not in LIBRARIES


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment from the outermost on, and it itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env
