"""The settings of an environment's wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium
from gymnasium.spaces import Dict, Space
from gymnasium.wrappers import TimeLimit

from headrace.core.setting_types import fit_fields


@dataclass(frozen=True)
class Wrapping:
    """Settings for wrapping an environment. Raises TypeError, ValueError for a wrong value."""

    frame_stack: int = 1  # observations stacked, the newest last
    time_limit: int | None = None  # steps after which an episode is truncated; None for the environment's own
    reward_scale: float = 1.0  # a factor of rewards, but not of reported returns
    ignore: tuple[str, ...] = ()  # members of a Dict observation that are left out
    info_mask: bool = False  # info["action_mask"] becomes a member of observations
    with_state: bool = False  # observations of several agents get the state() of the environment, where it has one

    def __post_init__(self) -> None:
        fit_fields(self)
        if self.frame_stack < 1:
            raise ValueError(f"frame_stack must be 1 (off) or more, got {self.frame_stack}")
        if self.time_limit is not None and self.time_limit < 1:
            raise ValueError(f"time_limit must be at least 1 step, got {self.time_limit}; None for the env's own")
        if not 0 < self.reward_scale < float("inf"):
            raise ValueError(f"reward_scale must be above 0 and finite, got {self.reward_scale}")

    def asked(self, *names: str) -> str:
        """The settings that differ from their defaults: "frame_stack=4, reward_scale=0.1"."""
        asked = {name: getattr(self, name) for name in names or self.__dataclass_fields__}
        return ", ".join(f"{name}={value}" for name, value in asked.items() if value != getattr(UNWRAPPED, name))


UNWRAPPED = Wrapping()


def members_left(space: Space, ignore: Sequence[str], env: object) -> list[str]:
    """The members of observations that are not ignored. Raises ValueError for unknown members, or if none is left. env:
    the environment's name, for messages."""
    members = list(space.spaces) if isinstance(space, Dict) else []
    if missing := [name for name in ignore if name not in members]:
        has = f"members {', '.join(members)}" if members else f"no members: they are {space}"
        advice = "" if members else "; wrappers come first: leave ignore out, or registered ones (--no-registered)"
        raise ValueError(f"ignore has {', '.join(missing)}, and the observations of {env} have {has}{advice}")
    if not (left := [name for name in members if name not in ignore]):
        raise ValueError(f"ignore has all members of the observations of {env}: {', '.join(members)}")
    return left


def time_limit_of(env: gymnasium.Env) -> int | None:
    """Steps after which episodes are truncated, by a wrapper or by gymnasium.make(); None for never.

    An environment that was made without gymnasium.make() has no spec, whatever it is wrapped in.
    """
    limits, inner = [getattr(env.spec, "max_episode_steps", None)], env
    while isinstance(inner, gymnasium.Wrapper):
        limits += [inner._max_episode_steps] if isinstance(inner, TimeLimit) else []
        inner = inner.env
    return min((limit for limit in limits if limit is not None), default=None)
