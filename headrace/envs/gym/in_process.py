"""Environments stepped one after another in this process: Gymnasium's, or PettingZoo's of several agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from headrace.envs.gym.agent_groups import Grouping
from headrace.envs.gym.inline import InlineEnv
from headrace.envs.gym.pettingzoo import PettingZooEnv


def inline(
    factory: Callable[[], gymnasium.Env], num_copies: int, name: str, *, group_by: Grouping = "spaces", **part: Any
) -> InlineEnv:
    """An InlineEnv of the environments that factory makes, or a PettingZooEnv of several agents. part: see InlineEnv.

    Raises ValueError for a group_by where there is one agent.
    """
    env = factory()
    if not isinstance(env, gymnasium.Env):
        return PettingZooEnv(factory, num_copies, name, env=env, group_by=group_by, **part)
    if group_by != "spaces":
        env.close()
        raise ValueError(f"{name} has one agent, and group_by={group_by!r} is for several: leave it out")
    return InlineEnv(factory, num_copies, name, env=env, **part)
