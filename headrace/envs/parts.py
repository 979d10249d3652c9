"""Environments of a source that are divided between processes, each of which makes its part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.construct import comes_as_vector, elsewhere, factory_elsewhere, make
from headrace.envs.gym.agent_groups import Grouping
from headrace.envs.gym.pettingzoo import inline, restarts
from headrace.envs.gym.wrapping import Wrapping
from headrace.envs.registry import Source, spec
from headrace.kernels.language.read import resolve_annotations


def part_maker(
    source: Source,
    *,
    backend: str = "auto",
    on_error: Literal["raise", "restart"] = "raise",
    group_by: Grouping = "spaces",
    **wrapping: Any,
) -> Callable[[int, int], Env]:
    """A function for another process: given n and the number of the first, it makes n of the environments there.

    The options are those of make(). Raises ValueError for environments that come as a vector, and for other backends
    than "auto", "cpu" and "inline".
    """
    known = spec(source)
    if backend not in ("auto", "cpu", "inline"):
        raise ValueError(
            f"backend={backend!r} does not run in the processes of actors: use 'cpu' or 'inline', or leave it out"
        )
    if comes_as_vector(source):
        raise ValueError(
            f"{known.name} comes as a vector of environments, which actors cannot divide: leave out actors"
        )
    entry = elsewhere(known)
    found = sources.find(entry) if isinstance(entry, str) else entry
    if sources.is_kernel(found) and backend != "inline":
        resolve_annotations(found)
        given = entry if isinstance(entry, str) else found
        return partial(_compiled, given, known.name, {"group_by": group_by, **wrapping})
    if backend == "cpu":
        raise ValueError(f"{known.name} is a Gymnasium environment, which backend='cpu' cannot compile: leave it out")
    again = {"restart": restarts(on_error), "group_by": group_by}
    return partial(_inline, factory_elsewhere(known, (), {}, Wrapping(**wrapping)), known.name, again)


def _compiled(source: Source, name: str, options: dict[str, Any], number: int, first: int) -> Env:
    env = make(source, number, backend="cpu", threads=1, first_env=first, **options)
    env.name = name
    return env


def _inline(factory: Callable[[], Any], name: str, options: dict[str, Any], number: int, first: int) -> Env:
    return inline(factory, number, name, first_env=first, **options)
