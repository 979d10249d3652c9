"""What a function holds besides its arguments: modules and tensors in its closure, in its module under names that it
uses, in the object whose method it is."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

from torch import Tensor, nn

from headrace.core.closure import global_names

Find: TypeAlias = Callable[[Any], Any]


def captured(function: Callable[..., object]) -> list[tuple[str, Any, Find]]:
    """The modules and tensors that a function holds: in its closure, in its module under names that it uses, in what
    functools.partial() gives it, in the object whose method it is; also in lists, dicts and attributes of these."""
    found = list[tuple[str, Any, Find]]()
    for name, value, find in roots(function):
        if isinstance(value, Tensor):
            found.append((name, value, find))
        else:
            found += [(label, part, at) for label, part, at in _within(name, value, find)]
    return found


def roots(function: Callable[..., object]) -> list[tuple[str, Any, Find]]:
    """What a function holds directly."""
    if isinstance(function, partial):
        given_ = [(f"argument {i}", value, lambda _, i=i: function.args[i]) for i, value in enumerate(function.args)]  # type: ignore[misc]
        named = [(k, value, lambda _, k=k: function.keywords[k]) for k, value in function.keywords.items()]  # type: ignore[misc]
        return [x for x in (*given_, *named) if not isinstance(x[1], Tensor)] + roots(function.func)
    plain, found = plain_function(function), list[tuple[str, Any, Find]]()
    if plain is not inspect.unwrap(function):
        owner = getattr(function, "__self__", function)
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


def _within(name: str, value: Any, find: Find, depth: int = 3) -> Iterator[tuple[str, Any, Find]]:
    """The modules in a value; of its attributes and of dicts also the tensors."""
    if isinstance(value, nn.Module):
        yield name, value, find
    elif depth and isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _within(f"{name}.{i}", part, lambda given, i=i: find(given)[i], depth - 1)  # type: ignore[misc]
    elif depth and (space := space_of(value)) is not None:
        for key, part in list(space.items()):
            at = lambda given, key=key: space_of(find(given))[key]  # type: ignore[index] # noqa: E731
            if isinstance(part, Tensor):
                yield f"{name}.{key}", part, at
            else:
                yield from _within(f"{name}.{key}", part, at, depth - 1)


def space_of(value: Any) -> dict[Any, Any] | None:
    """A dict, or the attributes of an object of the user's."""
    if isinstance(value, dict):
        return value
    return vars(value) if has_parts(value) or (callable(value) and _is_object(value)) else None


def holders(function: Callable[..., object]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The dicts and attributes with tensors in them that a function holds."""

    def inside(name: str, value: Any, depth: int = 3) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(value, nn.Module | Tensor) or not depth:
            return
        space = space_of(value)
        if space is not None:
            yield name, space
        for part in value if isinstance(value, list | tuple) else list((space or {}).values()):
            yield from inside(name, part, depth - 1)

    for name, value, _ in roots(function):
        yield from inside(name, value)


def has_parts(value: object) -> bool:
    """Whether it is an object of the user's whose attributes are looked at: a dataclass, a namespace, settings."""
    return _is_object(value) and not callable(value)


def _is_object(value: object) -> bool:
    home = type(value).__module__.partition(".")[0]
    own = type(value) is SimpleNamespace or home not in sys.stdlib_module_names | {"torch", "numpy"}
    return own and hasattr(value, "__dict__") and not isinstance(value, type | nn.Module)
