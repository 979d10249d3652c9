"""Environments stepped one after another in this process: Gymnasium's, or PettingZoo's of several agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from headrace.envs.gym.inline import InlineEnv
from headrace.envs.gym.pettingzoo import PettingZooEnv


def inline(factory: Callable[[], gymnasium.Env], num_copies: int, name: str, **part: Any) -> InlineEnv:
    """An InlineEnv of what factory makes, or a PettingZooEnv of several agents. part: arguments of InlineEnv."""
    env = factory()
    kind = InlineEnv if isinstance(env, gymnasium.Env) else PettingZooEnv
    return kind(factory, num_copies, name, env=env, **part)
