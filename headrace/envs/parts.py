"""Divide the environments of a source between processes, each of which makes its part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.core.types import Settings, StateDict
from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.construct import Wrappers, comes_as_vector, elsewhere, factory_elsewhere, make, named
from headrace.envs.gym.agent_groups import Grouping
from headrace.envs.gym.change_params import begin_with
from headrace.envs.gym.pettingzoo import inline, restarts
from headrace.envs.gym.wrapping import Wrapping
from headrace.envs.registry import Source, spec
from headrace.kernels.language.read import resolve_annotations

NUMBERS = "unseeded"  # in the state of Gymnasium environments: the numbers of some of them


def part_maker(
    source: Source,
    *,
    backend: str = "auto",
    on_error: Literal["raise", "restart"] = "raise",
    group_by: Grouping = "spaces",
    params: Settings | None = None,
    wrappers: Wrappers = (),
    env_kwargs: Settings | None = None,
    **wrapping: Any,
) -> Callable[[int, int], Env]:
    """Return a function for another process that makes n of the environments there, given n and the number of the
    first.

    The options are those of make().
    For vector environments each process makes one vector with its number of them. Raises ValueError for backends other
    than "auto", "cpu" and "inline", and for options that these do not support.
    """
    known = spec(source)
    if backend not in ("auto", "cpu", "inline"):
        raise ValueError(
            f"backend={backend!r} does not run in the processes of actors: use 'cpu' or 'inline', or leave it out"
        )
    entry = elsewhere(known)
    found = sources.find(entry) if isinstance(entry, str) else entry
    given: Any = entry if isinstance(entry, str) else found
    if comes_as_vector(source) and backend == "auto":
        return partial(_vector, given, known.name, {"wrappers": wrappers, "env_kwargs": env_kwargs, **wrapping})
    if sources.is_kernel(found) and backend != "inline":
        resolve_annotations(found)
        options = {"group_by": group_by, "params": params, "wrappers": wrappers, "env_kwargs": env_kwargs, **wrapping}
        return partial(_compiled, given, known.name, options)
    if backend == "cpu":
        raise ValueError(f"{known.name} is a Gymnasium environment, which backend='cpu' cannot compile: leave it out")
    again = {"restart": restarts(on_error), "group_by": group_by}
    factory = factory_elsewhere(known, named(wrappers), env_kwargs or {}, Wrapping(**wrapping))
    return partial(_inline, factory, known.name, again, params)


def join_states(states: Sequence[StateDict], firsts: Sequence[int]) -> StateDict:
    """Join the states of parts, from Env.state_dict(), to the state of all environments; empty if one cannot be saved.

    Lists have an entry per environment, and so has a dimension of tensors: the first of arrays, the last of others.
    firsts: the number of each part's first environment.
    """
    if not all(states):
        return {}

    def joined(name: str) -> Any:
        values = [state[name] for state in states]
        if isinstance(values[0], Tensor):
            return torch.cat(values, _dim(name))
        if name == NUMBERS:
            return [first + x for first, part in zip(firsts, values, strict=True) for x in part]
        return [x for part in values for x in part] if isinstance(values[0], list) else values[0]

    return {name: joined(name) for name in states[0]}


def state_of_part(state: StateDict, part: slice) -> StateDict:
    """Take the state of some environments from join_states() of all of them."""

    def taken(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.narrow(_dim(name), part.start, part.stop - part.start).contiguous()
        if name == NUMBERS:
            return [x - part.start for x in value if part.start <= x < part.stop]
        return value[part] if isinstance(value, list) else value

    return {name: taken(name, value) for name, value in state.items()}


def _dim(name: str) -> int:
    """The dimension of a state's tensor that counts environments: see kernels.targets.tensor_state."""
    return 0 if name.startswith("array.") else -1


def _compiled(source: Source, name: str, options: dict[str, Any], number: int, first: int) -> Env:
    env = make(source, number, backend="cpu", threads=1, first_env=first, **options)
    env.name = name
    return env


def _vector(source: Source, name: str, options: dict[str, Any], number: int, first: int) -> Env:
    env = make(source, number, **options)
    env.name, env.first_env = name, first
    return env


def _inline(
    factory: Callable[[], Any], name: str, options: dict[str, Any], params: Settings | None, number: int, first: int
) -> Env:
    return begin_with(inline(factory, number, name, first_env=first, **options), params)
