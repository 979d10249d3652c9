"""What a loss is given: the tensors and numbers in its arguments, and their places."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from headrace.kernels.rows.reasons import NotRows

Kind: TypeAlias = Literal["column", "uniform"]
DTYPES = {torch.float32: "f32", torch.int64: "i32", torch.int32: "i32", torch.bool: "bool"}


@dataclass(frozen=True)
class Source:
    """An input of a traced loss. name: as a user would say it. learned: whether the loss has a gradient of it.

    find: gives what it is now, of the arguments of a call, or of the modules in them if of_module. number: whether that
    is a Python float.
    """

    kind: Kind
    name: str
    learned: bool
    find: Callable[[Any], Any] = field(compare=False)
    of_module: bool = False
    number: bool = False


@dataclass
class Given:
    """The inputs of a call's arguments. modules: (name, module, find); rows: of the minibatch."""

    sources: list[Source] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    rows: int = 0
    floats: bool = True  # whether Python floats are inputs, rather than constants

    @property
    def structure(self) -> tuple[object, ...]:
        """What all calls that one trace serves have in common."""
        shapes = tuple(
            (source, tuple(value.shape[1:] if source.kind == "column" else value.shape), value.dtype, value.device.type)
            for source, value in zip(self.sources, self.values, strict=True)
        )
        training = tuple(part.training for _, module in self.modules for part in module.modules())
        return shapes, training, tuple(self.constants)


def given(function: Callable[..., object], arguments: tuple[Any, ...], floats: bool = True) -> Given:
    """The inputs of a call. Raises NotRows for what cannot be one. floats: Python floats are inputs, not constants."""
    found, names = Given(floats=floats), _names(function, len(arguments))
    seen: set[int] = set()
    for i, (name, argument) in enumerate(zip(names, arguments, strict=True)):
        _look(found, seen, name, argument, lambda given, i=i: given[i])  # type: ignore[misc]
    for name, module in captured_modules(function):
        _add_module(found, seen, name, module)
    columns = [(s, v) for s, v in zip(found.sources, found.values, strict=True) if s.kind == "column"]
    if not columns:
        raise NotRows("it is given no tensor of a minibatch")
    found.rows = len(columns[0][1])
    for source, value in columns:
        if len(value) != found.rows:
            raise NotRows(
                f"{columns[0][0].name} has {found.rows} rows and {source.name} has {len(value)}: "
                "the first dimension of each tensor that is given must be the minibatch's rows"
            )
    return found


def _names(function: Callable[..., object], count: int) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"argument {i}" for i in range(len(names), count))][:count]


def captured_modules(function: Callable[..., object]) -> list[tuple[str, nn.Module]]:
    """The modules in a function's closure, and those of its module's names that it uses."""
    plain = inspect.unwrap(function)
    if inspect.ismethod(plain):
        plain = plain.__func__
    if not inspect.isfunction(plain):
        return []
    found = inspect.getclosurevars(plain)
    known = found.nonlocals | found.globals
    return [(name, value) for name, value in known.items() if isinstance(value, nn.Module)]


def _look(found: Given, seen: set[int], name: str, value: Any, find: Callable[[tuple[Any, ...]], Any]) -> None:
    """Add the inputs within an argument."""
    if isinstance(value, nn.Module):
        _add_module(found, seen, name, value)
    elif isinstance(value, Tensor):
        _add_tensor(found, seen, name, value, find)
    elif isinstance(value, dict):
        for key, part in value.items():
            _look(found, seen, f"{name}.{key}", part, lambda given, key=key: find(given)[key])  # type: ignore[misc]
    elif isinstance(value, list | tuple):
        labels = getattr(value, "_fields", range(len(value)))
        for i, (label, part) in enumerate(zip(labels, value, strict=True)):
            _look(found, seen, f"{name}.{label}", part, lambda given, i=i: find(given)[i])  # type: ignore[misc]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            part = getattr(value, one.name)
            own = lambda given, label=one.name: getattr(find(given), label)  # noqa: E731
            _look(found, seen, f"{name}.{one.name}", part, own)
    elif type(value) is float and found.floats:
        found.sources.append(Source("uniform", name, False, find, number=True))
        found.values.append(torch.tensor(value, dtype=torch.float32))
    else:
        found.constants.append(f"{name}={value!r}" if _is_plain(value) else f"{name} {id(value)}")


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str | bytes | type(None) | torch.dtype | torch.device)


def _add_tensor(found: Given, seen: set[int], name: str, value: Tensor, find: Callable[[tuple[Any, ...]], Any]) -> None:
    if id(value) in seen and not value.dim():
        return
    seen.add(id(value))
    _check(name, value)
    learned = value.requires_grad and value.is_leaf
    if value.requires_grad and not value.is_leaf:
        raise NotRows(f"{name} has a gradient function: detach it, or compute it within the loss")
    kind: Kind = "column" if value.dim() and not learned else "uniform"
    found.sources.append(Source(kind, name, learned, find))
    found.values.append(value)


def _add_module(found: Given, seen: set[int], name: str, module: nn.Module) -> None:
    if id(module) in seen:
        return
    seen.add(id(module))
    found.modules.append((name, module))
    number = len(found.modules) - 1
    for own, value in [*module.named_parameters(), *module.named_buffers()]:
        if id(value) in seen:
            continue
        seen.add(id(value))
        _check(f"{name}.{own}", value)
        learned = isinstance(value, nn.Parameter) and value.requires_grad
        found.sources.append(Source("uniform", f"{name}.{own}", learned, _finder(number, own), of_module=True))
        found.values.append(value)


def _finder(module: int, path: str) -> Callable[[Any], Any]:
    owner, _, name = path.rpartition(".")

    def find(modules: Any) -> Any:
        part = modules[module][1].get_submodule(owner)
        return part._parameters.get(name) if name in part._parameters else part._buffers[name]

    return find


def _check(name: str, value: Tensor) -> None:
    if value.device.type != "cpu":
        raise NotRows(f"{name} lies on {value.device}; losses are compiled for the CPU")
    if value.dtype not in DTYPES and value.dtype not in (torch.uint8, torch.float64):
        raise NotRows(f"{name} is of dtype {str(value.dtype).removeprefix('torch.')}; float32 is compiled")
    if value.dtype in (torch.uint8, torch.float64):
        raise NotRows(f"{name} is of dtype {str(value.dtype).removeprefix('torch.')}; give it as float32")
    if value.layout != torch.strided:
        raise NotRows(f"{name} is sparse")


@contextmanager
def substituted(modules: Sequence[tuple[str, nn.Module]], tensors: dict[int, Tensor]) -> Iterator[None]:
    """Inside, parameters and buffers of these modules are other tensors, by the ids of their own."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for _, module in modules:
            for part in module.modules():
                for space in (part._parameters, part._buffers):
                    for name, value in list(space.items()):
                        if value is not None and id(value) in tensors:
                            changed.append((space, name, value))
                            space[name] = tensors[id(value)]  # type: ignore[assignment]
        yield
    finally:
        for space, name, value in reversed(changed):
            space[name] = value


def replaced(value: Any, tensors: dict[int, Tensor], numbers: dict[str, Tensor], name: str) -> Any:
    """An argument with other tensors in place of its own, by their ids, and of its floats, by their names."""

    def part(label: object, inner: Any) -> Any:
        return replaced(inner, tensors, numbers, f"{name}.{label}")

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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copy = object.__new__(type(value))
        for one in dataclasses.fields(value):
            object.__setattr__(copy, one.name, part(one.name, getattr(value, one.name)))
        return copy
    return value


def _like(value: dict[Any, Any], made: dict[Any, Any]) -> dict[Any, Any]:
    copy = value.copy()
    copy.update(made)
    return copy
