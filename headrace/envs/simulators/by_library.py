"""Simulators of robots by name: `LIBRARY/TASK`, such as mjlab/Mjlab-Cartpole-Balance. A library is imported when an
environment of it is made, or its tasks are listed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from headrace.core.text import did_you_mean
from headrace.core.user_names import Misnamed
from headrace.envs.simulators.published import Published

LIBRARIES = ("mjlab", "playground", "brax", "maniskill", "isaaclab")  # modules of this folder


def of_name(name: str) -> Callable[..., Any] | None:
    """The function of `num_envs` that makes a Simulator (envs.vector.simulators) of LIBRARY/TASK; None for other names.

    Raises ImportError, with what to install, where the library is missing; Misnamed for a task that it does not have,
    and for LIBRARY:TASK.
    """
    library, _, task = name.partition("/")
    if (place := name.partition(":"))[0] in LIBRARIES and place[2] and "/" not in name:
        raise Misnamed(f"there is no environment {name!r}; write {place[0]}/{place[2]}", name, f"{place[0]}/{place[2]}")
    if library not in LIBRARIES or not task or ":" in name:
        return None
    if task not in (known := tasks(library)):
        near = did_you_mean(task, known)
        raise Misnamed(f"{library} has no task {task!r}{near}; `headrace envs {library}` lists them", name)
    return partial(_module(library).SIMULATOR, task)


def tasks(library: str) -> list[str]:
    """The tasks of a library. Raises ImportError as of_name(), ValueError for a library that there is no module for."""
    if library not in LIBRARIES:
        raise ValueError(f"there are no simulators of {library!r}: use {', '.join(LIBRARIES)}")
    return sorted(_module(library).tasks())


def published(name: str, num_envs: int | None) -> Published | None:
    """PPO's settings for LIBRARY/TASK as the library publishes them; None for other names, and where it has none.

    num_envs: where it is given, for libraries that divide a rollout into a number of minibatches.
    """
    library, _, task = name.partition("/")
    if library not in LIBRARIES or of_name(name) is None:
        return None
    module = _module(library)
    return module.published(task, num_envs) if hasattr(module, "published") else None


def _module(library: str) -> ModuleType:
    """The module of a library that is installed."""
    module = import_module(f"headrace.envs.simulators.{library}")
    if find_spec(module.PACKAGE) is None:
        raise ImportError(f"{library}/ needs {module.PACKAGE}, which is not installed: {module.INSTALL}")
    return module
