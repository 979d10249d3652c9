"""Search for Python objects that a loss changes when it is called. Its machine code would not change them."""

from __future__ import annotations

import array
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headrace.core.closure import global_names
from headrace.core.value_text import is_opaque
from headrace.kernels.rows.tracing.captured import plain_function, roots
from headrace.kernels.rows.tracing.inputs import Given

MOST, DEEPEST = 20_000, 4  # objects that are looked at, and levels of members
LARGEST = 2**24  # bytes of an array that is looked at
_OF_MODULES = {"_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs"}  # which tracing replaces
_MISSING = object()


class _Own(NamedTuple):
    """A variable or object that a loss could change, as it was. name: for messages. read, write: get it, and put it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    before: Any


class Kept:
    """State of lists, dicts, sets, arrays, generators and objects, with those that they hold."""

    def __init__(self, held: Iterable[tuple[str, Any]]) -> None:
        self._kept: list[_Own] = []
        seen, found = set[int](), [(name, value, DEEPEST) for name, value in held]
        for name, value, deep in found:  # more of them with each
            if id(value) in seen or len(seen) > MOST:
                continue
            seen.add(id(value))
            if (own := _contents(name, value)) is not None:
                self._kept.append(own)
            if deep or isinstance(value, nn.Module):
                found += [(f"{name}.{key}", part, max(deep - 1, 0)) for key, part in _parts(value)]

    def restore(self) -> str | None:
        """Restore the state. Returns the name of something that had changed, or None."""
        changed = list[str]()
        for name, read, write, before in self._kept:
            now = read()
            if not _same(now, before):
                write(before)
                changed.append(name if not isinstance(before, dict) else f"{name}.{_difference(now, before)}")
        return changed[0] if changed else None


class Watch(Kept):
    """State of all that a loss could change: variables of its closure and of its module, with what they hold; what its
    modules hold; and `read`, values that the functions which it calls read."""

    def __init__(self, function: Callable[..., object], found: Given, read: Iterable[tuple[str, Any]] = ()) -> None:
        plain = plain_function(getattr(function, "func", function))
        code, closure = getattr(plain, "__code__", None), getattr(plain, "__closure__", None) or ()
        space: dict[str, Any] = getattr(plain, "__globals__", {})
        names, free = (global_names(code), code.co_freevars) if code else ((), ())
        super().__init__([*found.modules, *((name, value) for name, value, _ in roots(function)), *read])
        cells = [_cell(*pair) for pair in zip(free, closure, strict=True)]
        self._kept += [own for own in cells if own.before is not _MISSING]  # an empty one is filled later
        self._kept += [_variable(name, space) for name in names if name in space]


def _variable(name: str, space: dict[str, Any]) -> _Own:
    return _Own(name, lambda: space.get(name, _MISSING), lambda value: space.update({name: value}), space[name])


def _cell(name: str, cell: CellType) -> _Own:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # empty
            return _MISSING

    return _Own(name, read, partial(setattr, cell, "cell_contents"), read())


def _contents(name: str, value: Any) -> _Own | None:
    """The members of a container, the attributes of an object, the numbers of an array, the state of a generator; None
    for what cannot be changed or is not looked at."""
    pair: tuple[Callable[[], Any], Callable[[Any], object]] | None = None
    if isinstance(value, dict):
        pair = partial(dict, value), partial(_put, value, value.update)
    elif isinstance(value, list | deque):
        pair = partial(list, value), partial(_put, value, value.extend)
    elif isinstance(value, set):
        pair = partial(set, value), partial(_put, value, value.update)
    elif isinstance(value, bytearray | array.array):
        pair = (lambda: value[:]), partial(value.__setitem__, slice(None))
    elif isinstance(value, np.ndarray) and value.nbytes <= LARGEST and not value.dtype.hasobject:
        pair = value.tobytes, lambda old: np.copyto(value, np.frombuffer(old, value.dtype).reshape(value.shape))
    elif isinstance(value, np.random.Generator):
        pair = (lambda: value.bit_generator.state), partial(setattr, value.bit_generator, "state")
    elif isinstance(value, torch.Generator):
        pair = value.get_state, value.set_state
    elif isinstance(value, random.Random):
        pair = value.getstate, value.setstate
    elif _has_attributes(value):
        pair = partial(_attributes, value), partial(_put_attributes, value)
    return None if pair is None else _Own(name, *pair, pair[0]())


def _put(container: Any, add: Callable[[Any], object], old: Any) -> None:
    container.clear()
    add(old)


def _attributes(value: Any) -> dict[str, Any]:
    """An object's attributes, without those that tracing replaces in modules."""
    left_out = _OF_MODULES if isinstance(value, nn.Module) else ()
    return {key: part for key, part in _dict_of(value).items() if key not in left_out}


def _put_attributes(value: Any, old: dict[str, Any]) -> None:
    for key in _attributes(value).keys() - old.keys():
        del _dict_of(value)[key]
    _dict_of(value).update(old)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """The members of a container and the attributes of an object, with their names."""
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, list | tuple | deque | set | frozenset):
        return [*enumerate(value)]
    if isinstance(value, nn.Module):
        return [*_attributes(value).items(), *value.named_children()]
    return [*_attributes(value).items()] if _has_attributes(value) else []


def _has_attributes(value: Any) -> bool:
    """Tell whether a value is a network or an object of the user's: no class, function, module or part of a library."""
    kind = type(value)
    if isinstance(value, nn.Module):
        return True
    if isinstance(value, type | ModuleType | FunctionType | MethodType | partial) or is_opaque(kind):
        return False
    return kind.__module__.partition(".")[0] not in ("torch", "numpy") and isinstance(_dict_of(value), dict)


def _dict_of(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _same(now: Any, before: Any) -> bool:
    if isinstance(before, dict):
        return len(now) == len(before) and all(_is(now.get(key, _MISSING), own) for key, own in before.items())
    if isinstance(before, list) and isinstance(now, list):
        return len(now) == len(before) and all(map(_is, now, before))
    if isinstance(before, Tensor):
        return torch.equal(now, before)
    return now is before or (isinstance(before, set | bytes | bytearray | array.array | tuple) and bool(now == before))


def _is(now: Any, before: Any) -> bool:
    """True for the same object, and, in the state of a generator, for an equal one."""
    if now is before:
        return True
    if type(now) is not type(before) or not isinstance(before, int | str | dict | np.ndarray):
        return False
    return _same(now, before) if isinstance(before, dict) else bool(np.array_equal(now, before))


def _difference(now: dict[Any, Any], before: dict[Any, Any]) -> Any:
    return next(key for key in {**before, **now} if not _is(now.get(key, _MISSING), before.get(key, _MISSING)))
