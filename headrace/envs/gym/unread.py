"""Report infos and agents of an environment that nothing reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from gymnasium.spaces import Space

from headrace.core.terminal import tell
from headrace.data.flat_action import component_sizes, flat_action
from headrace.data.flat_dict import ACTION_MASK

FINALS = ("terminal_observation", "final_observation", "final_obs")  # names of final observations in infos
IN_OBSERVATIONS = "give it as a member 'action_mask' of a Dict observation, and policies take what it allows"
INFO_MASK = "with info_mask=True (--info-mask) policies take the actions that it allows"
LOG_INFO = "log_info=['is_success'] (--log-info is_success) logs the success rate"
LATE = "return truncated=True and terminated=False there, or the value of the last state counts as 0"
OWN_RESET = "return that one from step(), and begin the next episode in reset()"

_told: set[tuple[str, str]] = set()


class Unread(NamedTuple):
    """Entry that an environment reports and that is not read, and what to do about it."""

    found: str
    advice: str


STILL_LISTED = Unread(
    "an agent that has ended is still among `agents`, and its steps are masked",
    "step() should take it out of `agents`; where it is put in again later, it acts again",
)

_collecting: ContextVar[dict[Unread, None] | None] = ContextVar("collecting", default=None)


@contextmanager
def collected() -> Iterator[dict[Unread, None]]:
    """Collect unread entries within this block, each once and in order, instead of printing them."""
    kept: dict[Unread, None] = {}
    token = _collecting.set(kept)
    try:
        yield kept
    finally:
        _collecting.reset(token)


def unread_mask(info: Mapping[str, Any], observation: Space, action: Space, instead: str = INFO_MASK) -> list[Unread]:
    """An action mask in an info, if observations have none. instead: how to have it read."""
    seen = ACTION_MASK in getattr(observation, "spaces", getattr(observation, "slices", ()))
    if ACTION_MASK not in info or seen or not component_sizes(flat_action(action)):
        return []
    return [Unread(f"info has {ACTION_MASK!r}, which is not read", instead)]


def unread_end(info: Mapping[str, Any], truncated: bool, logs: Collection[str] = ()) -> list[Unread]:
    """Unread entries in the info of an episode's last step. logs: names of infos that are logged."""
    found = []
    if info.get("TimeLimit.truncated") is True and not truncated:
        found.append(Unread("an episode ended with info['TimeLimit.truncated'] and truncated=False", LATE))
    found += [
        Unread(f"an episode's final observation is in info[{name!r}]", OWN_RESET) for name in FINALS if name in info
    ]
    if "is_success" in info and "is_success" not in logs:
        found.append(Unread("info has 'is_success', which is not logged", LOG_INFO))
    return found


def tell_unread(name: str, found: Collection[Unread]) -> None:
    """Print a line about each, once in this process. Within collected() they are collected instead."""
    kept = _collecting.get()
    if kept is not None:
        kept.update(dict.fromkeys(found))
        return
    for one in found:
        if (name, one.found) not in _told:
            _told.add((name, one.found))
            tell(f"{name}: {one.found}: {one.advice}")
