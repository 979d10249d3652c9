"""Call of a loss with other tensors instead of its own: in its arguments, in modules, in its closure and its module.

Meanwhile all other code that reads these modules and variables sees the other tensors; so one thread at a time does it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy as shallow
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from headrace.core.closure import global_names
from headrace.kernels.rows.tracing.captured import has_parts, items_of, plain_function
from headrace.kernels.rows.tracing.held import are_settings, note_reads
from headrace.kernels.rows.tracing.inputs import DTYPES, Given, Source, argument_names

replacing = threading.RLock()  # held while tensors of modules and variables are other ones


class Metric:
    """Stand-in for a tensor in what a loss returns, or for a number that was read from one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"a {self.kind}"


METRIC, NUMBER = Metric("metric"), Metric("number")


class StandIns(NamedTuple):
    """Arguments with which a function is traced.

    tensors: stand-ins by the ids of the tensors. numbers: stand-ins by the names of floats. learned: the inputs with
    gradients, each with its stand-in.
    """

    arguments: list[Any]
    tensors: dict[int, Tensor]
    numbers: dict[str, Tensor]
    learned: list[tuple[Source, Tensor]]


@contextmanager
def standing_in(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    found: Given,
    own: Sequence[Tensor],
    values: Sequence[Tensor],
    floats: bool,
    gradients: bool = True,
) -> Iterator[StandIns]:
    """Let a function that is called with the yielded arguments read `values` instead of its `own` inputs, within this
    block.

    Buffers of modules are replaced by copies, to which the function may write. floats: True for tensors instead of
    Python's numbers, too. gradients: True if learned inputs ask for their gradients.
    """
    made = StandIns([], {}, {}, [])
    for source, old, value in zip(found.sources, own, values, strict=True):
        if source.learned and gradients:
            value = value.detach().requires_grad_()
            made.learned.append((source, value))
        if source.number:
            made.numbers[source.name] = value
        else:
            made.tensors[id(old)] = value.clone() if is_buffer(source, old) else value
    numbers = made.numbers if floats else {}
    names = argument_names(function, len(arguments))
    pairs = zip(names, arguments, strict=True)
    made.arguments.extend(_replaced(x, made.tensors, numbers, name, found.read) for name, x in pairs)
    with replacing, _in_modules(found, made.tensors, numbers), _in_closure(function, made.tensors):
        yield made


def is_buffer(source: Source, value: Tensor) -> bool:
    """Tell whether an input is a module's tensor that no optimizer changes."""
    return source.of_module and not isinstance(value, nn.Parameter) and value.dtype in DTYPES


@contextmanager
def _in_closure(function: Callable[..., object], tensors: dict[int, Tensor]) -> Iterator[None]:
    """Replace tensors of a function's closure and of its module within this block. tensors: the new ones, by the ids of
    the old."""
    plain = plain_function(function.func if isinstance(function, partial) else function)
    cells = list(plain.__closure__ or ()) if inspect.isfunction(plain) else []
    space = plain.__globals__ if inspect.isfunction(plain) else {}
    names = global_names(plain.__code__) if inspect.isfunction(plain) else ()
    kept = [(cell, cell.cell_contents) for cell in cells if _holds_tensor(cell)]
    known = [(name, space[name]) for name in names if isinstance(space.get(name), Tensor)]
    try:
        for cell, value in kept:
            cell.cell_contents = tensors.get(id(value), value)
        for name, value in known:
            space[name] = tensors.get(id(value), value)
        yield
    finally:
        for cell, value in kept:
            cell.cell_contents = value
        space.update(known)


def _holds_tensor(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, Tensor)
    except ValueError:
        return False


@contextmanager
def _in_modules(found: Given, tensors: dict[int, Tensor], numbers: dict[str, Tensor]) -> Iterator[None]:
    """Replace tensors of the modules, and of objects that the function holds, by those in `tensors` within this block;
    and floats that are attributes of modules, by those in `numbers`, by name."""
    parts = [part for _, module in found.modules for part in module.modules()]
    spaces: list[Any] = [x for part in parts for x in (part._parameters, part._buffers, vars(part))] + found.spaces
    # GRU and LSTM list their parameters again when these are replaced
    listed = [(vars(part), name) for part in parts for name in ("_flat_weights", "_flat_weight_refs")]
    changed = [(space, name, space[name]) for space, name in listed if name in space]
    try:
        for label, (own, name) in found.attributes.items():
            if label in numbers:
                changed.append((own, name, own[name]))
                own[name] = numbers[label]
        for space in spaces:
            for name, value in items_of(space):
                if isinstance(value, Tensor) and id(value) in tensors:
                    changed.append((space, name, value))
                    space[name] = tensors[id(value)]
        yield
    finally:
        for space, name, value in reversed(changed):
            space[name] = value


def _replaced(
    value: Any, tensors: dict[int, Tensor], numbers: dict[str, Tensor], name: str, read: set[str] | None
) -> Any:
    """An argument with other tensors in place of its own, by their ids, and of its floats, by their names. read: where
    settings that are read are noted; None within one."""
    notes = read if are_settings(value) else None

    def part(label: object, inner: Any) -> Any:
        return _replaced(inner, tensors, numbers, f"{name}.{label}", read if notes is None else None)

    if isinstance(value, Tensor):
        return tensors.get(id(value), value)
    if type(value) is float:
        return numbers.get(name, value)
    if isinstance(value, dict):
        made = {key: part(key, inner) for key, inner in value.items()}
        return made if type(value) is dict else _like(value, made)
    if isinstance(value, list | tuple):
        parts = [
            part(label, inner) for label, inner in zip(getattr(value, "_fields", range(len(value))), value, strict=True)
        ]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if has_parts(value):
        copy = _copied(value)
        vars(copy).update({label: part(label, inner) for label, inner in vars(value).items()})
        if notes is not None:
            note_reads(copy, name, notes)
        return copy
    return value


def _copied(value: Any) -> Any:
    """An object of the same class; copy.copy() would note the names of slots in the class."""
    kind = type(value)
    if kind.__new__ is not object.__new__ or any(vars(base).get("__slots__") for base in kind.__mro__):
        return shallow(value)
    return object.__new__(kind)


def _like(value: dict[Any, Any], made: dict[Any, Any]) -> dict[Any, Any]:
    copy = value.copy()
    copy.update(made)
    return copy
