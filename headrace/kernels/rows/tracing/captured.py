"""Modules and tensors that a function holds besides its arguments: in its closure, in its module under names that it
uses, and in the object whose method it is."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from headrace.core.closure import global_names
from headrace.core.value_text import is_opaque

Find: TypeAlias = Callable[[Any], Any]
Space: TypeAlias = dict[Any, Any] | list[Any]


def captured(function: Callable[..., object]) -> list[tuple[str, Any, Find]]:
    """The modules and tensors that a function holds: in its closure, in its module under names that it uses, in what
    functools.partial() gives it, in the object whose method it is; also in lists, dicts and attributes of these."""
    return [found for root in roots(function) for found in within(*root)]


def roots(function: Callable[..., object]) -> list[tuple[str, Any, Find]]:
    """List of (name, value, way to find it again) for each value that a function holds directly."""
    if isinstance(function, partial):
        given_ = [(f"argument {i}", value, lambda _, i=i: function.args[i]) for i, value in enumerate(function.args)]  # type: ignore[misc]
        named = [(k, value, lambda _, k=k: function.keywords[k]) for k, value in function.keywords.items()]  # type: ignore[misc]
        return [x for x in (*given_, *named) if not isinstance(x[1], Tensor)] + roots(function.func)
    plain, found = plain_function(function), list[tuple[str, Any, Find]]()
    if plain is not (behind := inspect.unwrap(function)):
        owner = getattr(behind, "__self__", function)
        found.append(("self", owner, lambda _: owner))
    if not inspect.isfunction(plain):
        return found
    for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            found.append((name, cell.cell_contents, lambda _, cell=cell: cell.cell_contents))  # type: ignore[misc]
    space = plain.__globals__
    names = [name for name in sorted(global_names(plain.__code__)) if name in space]
    return found + [(name, space[name], lambda _, name=name: space[name]) for name in names]  # type: ignore[misc]


def plain_function(function: Callable[..., object]) -> Any:
    """The function that is behind a decorator of functools.wraps(), a method, or an object that can be called."""
    plain = inspect.unwrap(function)
    if inspect.ismethod(plain):
        return plain.__func__
    if inspect.isfunction(plain) or inspect.isbuiltin(plain) or isinstance(plain, partial | type):
        return plain
    return type(plain).__call__


def within(name: str, value: Any, find: Find, depth: int = 4) -> Iterator[tuple[str, Any, Find]]:
    """Find a module or a tensor, or those in a list, a dict or an object. Only modules are found in a tuple, whose
    members cannot be replaced."""
    if isinstance(value, nn.Module | Tensor):
        yield name, value, find
    elif depth and isinstance(value, tuple):
        parts = ((i, part) for i, part in enumerate(value) if not isinstance(part, Tensor))
        for i, part in parts:
            yield from within(f"{name}.{i}", part, lambda given, i=i: find(given)[i], depth - 1)  # type: ignore[misc]
    elif depth and (space := members_of(value)) is not None:
        for key, part in items_of(space):
            at = lambda given, key=key: members_of(find(given))[key]  # type: ignore[index, call-overload] # noqa: E731
            yield from within(f"{name}.{key}", part, at, depth - 1)


def members_of(value: Any) -> Space | None:
    """A list, a dict, or the attributes of an object of the user's."""
    return value if isinstance(value, list) else space_of(value)


def items_of(space: Space) -> list[tuple[Any, Any]]:
    """The keys and values of a dict, or places and members of a list."""
    return list(enumerate(space) if isinstance(space, list) else space.items())


def space_of(value: Any) -> dict[Any, Any] | None:
    """A dict, or the attributes of an object of the user's."""
    if isinstance(value, dict):
        return value
    return vars(value) if has_parts(value) or (callable(value) and _is_object(value)) else None


def holders(value: Any, depth: int = 4) -> Iterator[Space]:
    """The lists, dicts and attributes that within() looks into."""
    if isinstance(value, nn.Module | Tensor) or not depth:
        return
    space = value if isinstance(value, tuple) else members_of(value)
    if space is not None:
        if not isinstance(space, tuple):
            yield space
        for part in space.values() if isinstance(space, dict) else space:
            yield from holders(part, depth - 1)


def has_parts(value: object) -> bool:
    """Tell whether a value is an object of the user's whose attributes are looked at, such as a dataclass."""
    return _is_object(value) and not callable(value)


def _is_object(value: object) -> bool:
    own = type(value).__module__.partition(".")[0] not in ("torch", "numpy") and not is_opaque(type(value))
    return own and hasattr(value, "__dict__") and not isinstance(value, type | nn.Module)
