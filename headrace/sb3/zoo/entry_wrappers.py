"""Translate wrappers, frame stacking and callbacks of an entry to settings of make()."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

import gymnasium

from headrace.core.types import Json

ATARI = ("stable_baselines3.common.atari_wrappers.AtariWrapper", "AtariWrapper")
TIME_LIMITS = {"gymnasium.wrappers.time_limit.TimeLimit", "gymnasium.wrappers.TimeLimit", "gym.wrappers.TimeLimit"}
CALLBACKS = {"EvalCallback": ("eval_freq", "eval_freq", 10_000), "CheckpointCallback": ("save_freq", "save_freq", None)}


@dataclass(frozen=True)
class Wrapping:
    """The wrappers of an entry's environments."""

    wrapper: tuple[str, ...] = ()
    frame_stack: int = 1
    time_limit: int | None = None
    env_kwargs: Any = None

    def settings(self) -> Json:
        """Settings of a training."""
        named = self.of_make()
        return {"wrapper": named.pop("wrappers"), **named}

    def of_make(self) -> Json:
        """Arguments of make()."""
        found = {"wrappers": self.wrapper, "frame_stack": self.frame_stack, "time_limit": self.time_limit}
        in_python = bool(self.wrapper or self.env_kwargs or self.frame_stack > 1)  # not for compiled environments
        found |= {"backend": "inline"} if in_python else {}
        return {**found, "env_kwargs": self.env_kwargs} if self.env_kwargs else found


def wrapping_of(own: Json, env: str, where: str) -> Wrapping:
    """The wrapping of an entry. Raises ValueError for wrappers without counterpart, ImportError for missing ones."""
    if own.get("vec_env_wrapper"):
        raise ValueError(f"{where}: vec_env_wrapper={own['vec_env_wrapper']!r}: environments are Headrace's own vector")
    if own.get("monitor_kwargs"):
        raise ValueError(f"{where}: monitor_kwargs={own['monitor_kwargs']!r}: there is no Monitor; log_info logs infos")
    names, time_limit, is_atari = [], None, False
    for path, kwargs in _paths(own.get("env_wrapper"), where):
        if path in ATARI and env.startswith("ALE/"):
            is_atari = True
            print(
                f"{path}: games of ALE/ have Headrace's preprocessing, whose rewards are not clipped", file=sys.stderr
            )
        elif path in TIME_LIMITS:
            time_limit = int(kwargs["max_episode_steps"])
        else:
            names.append(_class(path, kwargs, where))
    frames = 1 if is_atari else int(own.get("frame_stack", 1))
    return Wrapping(tuple(names), frames, time_limit, own.get("env_kwargs"))


def _paths(given: Any, where: str) -> list[tuple[str, Json]]:
    """Paths of classes, the innermost first, with their arguments."""
    found = []
    for one in given if isinstance(given, list) else [given] if given else []:
        pair = (one, {}) if isinstance(one, str) else next(iter(one.items()), None) if isinstance(one, dict) else None
        if pair is None or not isinstance(pair[0], str) or (isinstance(one, dict) and len(one) > 1):
            raise ValueError(
                f"{where}: env_wrapper has {one!r}: give a path package.module.Class, or one with arguments"
            )
        found.append((pair[0], dict(pair[1] or {})))
    return found


def _class(path: str, kwargs: Json, where: str) -> str:
    """The name of a wrapper for make(). Raises ValueError for a class that is not a wrapper, and for arguments."""
    module, _, name = path.rpartition(".")
    package = module.partition(".")[0]
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{where}: env_wrapper {path} cannot be imported ({error}): install {package}, or give a wrapper of your "
            "own by --wrapper file.py:Class"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper)):
        raise ValueError(f"{where}: env_wrapper {path} is no gymnasium.Wrapper")
    if kwargs:
        raise ValueError(
            f"{where}: env_wrapper {path} has the arguments {kwargs!r}: write a function that calls it with them, and "
            "give --wrapper file.py:function"
        )
    return f"{module}:{name}"


def callbacks(own: Json) -> Json:
    """Settings that replace an entry's callbacks. Raises ValueError for callbacks without counterpart."""
    found: Json = {}
    given = own.get("callback") or []
    for one in given if isinstance(given, list) else [given]:
        path, kwargs = next(iter(one.items())) if isinstance(one, dict) else (one, {})
        name, kwargs = path.rpartition(".")[2], dict(kwargs or {})
        argument, setting, default = CALLBACKS.get(name, ("", "", None))
        every = kwargs.pop(argument, default)
        if not setting or every is None or kwargs.keys() - {"save_path", "n_eval_episodes", "name_prefix", "verbose"}:
            raise ValueError(
                f"callback {one!r} has no counterpart: EvalCallback and CheckpointCallback have; leave it out"
            )
        found[setting] = int(every) * int(own.get("n_envs", 1))  # callbacks count steps of each environment
        if "n_eval_episodes" in kwargs:
            found["eval_episodes"] = int(kwargs["n_eval_episodes"])
    return found
