"""Attributes of a Gymnasium environment under its wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium

NOT_OF_USERS = ("gymnasium", "headrace", "stable_baselines3")  # packages whose wrappers read no new attributes


def set_attribute(env: gymnasium.Env, name: str, value: Any) -> None:
    """Set an attribute on the outermost wrapper that has it, or on the environment. A new attribute is set on the
    user's outermost wrapper, if any, as Gymnasium's set_wrapper_attr() does if there are no other wrappers."""
    every = [*_layers(env)]
    has = next((layer for layer in every if hasattr(layer, name)), None)
    of_user = next((layer for layer in every if type(layer).__module__.split(".")[0] not in NOT_OF_USERS), every[-1])
    setattr(has or of_user, name, value)


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment from the outermost on, and it itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env
