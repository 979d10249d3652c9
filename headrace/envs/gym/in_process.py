"""Environments stepped one after another in this process: Gymnasium's, or PettingZoo's of several agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from headrace.envs.gym.inline import InlineEnv
from headrace.envs.gym.pettingzoo import PettingZooEnv


def inline(factory: Callable[[], Any], num_copies: int, name: str, *, group_by: Any = "spaces", **part: Any) -> Any:
    """An InlineEnv of factory's worlds, or a PettingZooEnv where several agents share one. part: see InlineEnv.

    Raises ValueError for a group_by where there is one agent.
    """
    world = factory()
    if not isinstance(world, gymnasium.Env):
        return PettingZooEnv(factory, num_copies, name, world=world, group_by=group_by, **part)
    if group_by != "spaces":
        world.close()
        raise ValueError(f"{name} has one agent, and group_by={group_by!r} is for several: leave it out")
    return InlineEnv(factory, num_copies, name, world=world, **part)
