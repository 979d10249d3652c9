"""What a loss is given: the tensors and numbers in its arguments, and their places."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy as shallow
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from headrace.core.closure import Reach, reach
from headrace.core.value_text import Changing, describe
from headrace.kernels.rows.captured import Find, captured, has_parts, holders
from headrace.kernels.rows.reasons import NotRows

Shape: TypeAlias = tuple[int, ...]
Kind: TypeAlias = Literal["column", "uniform"]
_CONSTANT = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_training = attrgetter("training")
DTYPES = {torch.float32: "f32", torch.int64: "i32", torch.int32: "i32", torch.bool: "bool"}


@dataclass(frozen=True)
class Source:
    """An input of a traced loss. name: as a user would say it. learned: whether the loss has a gradient of it.

    find: gives what it is now, of the arguments of a call. of_module: whether it is a tensor of a module's; then the
    arguments do not count. number: whether it is a Python float.
    """

    kind: Kind
    name: str
    learned: bool
    find: Find = field(compare=False)
    of_module: bool = False
    number: bool = False


@dataclass
class Given:
    """The inputs in a call's arguments.

    count: of the arguments. modules: by the names of the arguments. rows: of the minibatch. floats: whether Python
    floats are inputs, rather than constants. spaces: attributes of objects, and dicts, that the function holds. same:
    where a tensor is given twice. held: what else the trace reads: modules, numbers that are no inputs, sizes of dicts
    and lists; each with how to find it, and what it was.
    """

    sources: list[Source] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    held: list[tuple[Find, object]] = field(default_factory=list)
    same: list[tuple[Find, Find]] = field(default_factory=list)
    spaces: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    floats: bool = True
    count: int = 0

    def __post_init__(self) -> None:
        self._own: list[tuple[Source, Shape, torch.dtype]] = []
        self._parts: list[nn.Module] = []
        self._training: list[bool] = []
        self._changing: list[Changing] = []
        self._reaches: list[Reach] = []

    def settle(self) -> None:
        """Remember what inputs look like, for serves()."""
        pairs = zip(self.sources, self.values, strict=True)
        self._own = [(s, _tail(s, v), v.dtype) for s, v in pairs if not (s.of_module or s.number)]
        self._parts = [part for _, module in self.modules for part in module.modules()]
        self._training = [*map(_training, self._parts)]
        kept = [x for part in self._parts for name, x in vars(part).items() if name not in _of_all_modules()]
        for value in [*kept, *(value for _, value in self.held)]:
            if not isinstance(value, (nn.Module, Tensor, _Size, *_CONSTANT)):
                found = describe(value)
                self._changing += found.changing
                self._reaches += map(reach, found.functions)

    def serves(self, arguments: tuple[Any, ...]) -> bool:
        """Whether other arguments have the same inputs, but for their numbers, and the same constants."""
        if len(arguments) != self.count or [*map(_training, self._parts)] != self._training:
            return False
        if not all(part.holds() for part in self._changing) or not all(part.is_current() for part in self._reaches):
            return False
        try:
            if any(one(arguments) is not other(arguments) for one, other in self.same):
                return False
            for find, value in self.held:
                if not _same(find(arguments), value):
                    return False
            rows = 0
            for source, shape, dtype in self._own:
                found = source.find(arguments)
                alike = isinstance(found, Tensor) and found.dtype == dtype and _tail(source, found) == shape
                if not alike or found.requires_grad is not source.learned or found.device.type != "cpu":
                    return False
                if source.learned and has_hook(found):
                    return False
                if source.kind == "column":
                    rows = rows or len(found)
                    if len(found) != rows:
                        return False
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # it is not there
            return False
        return all(type(source.find(arguments)) is float for source in self.sources if source.number)


def _tail(source: Source, value: Tensor) -> Shape:
    return tuple(value.shape[1:] if source.kind == "column" else value.shape)


def _same(found: object, value: object) -> bool:
    """Whether a constant is what it was: by its value where that is a plain one, else by being the same object."""
    if isinstance(value, _Size):
        if type(found) is not value.kind:
            return False
        return len(found) == value.number if value.sized else len(vars(found)) == value.number  # type: ignore[arg-type]
    return found is value or (type(found) is type(value) and _is_plain(value) and found == value)


@cache
def _of_all_modules() -> frozenset[str]:
    """The attributes that every module has."""
    return frozenset(vars(nn.Module()))


def has_hook(tensor: Tensor) -> bool:
    """Whether something is called with a tensor's gradient."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


class _Size(NamedTuple):
    """In place of a container: its class, and how much is in it."""

    kind: type
    number: int
    sized: bool


def given(function: Callable[..., object], arguments: tuple[Any, ...], floats: bool = True) -> Given:
    """The inputs of a call. Raises NotRows for what cannot be one. floats: Python floats are inputs, not constants."""
    found, names = Given(floats=floats, count=len(arguments)), argument_names(function, len(arguments))
    seen: dict[int, Find] = {}
    for i, (name, argument) in enumerate(zip(names, arguments, strict=True)):
        _look(found, seen, name, argument, lambda given, i=i: given[i])  # type: ignore[misc]
    for name, value, find in captured(function):
        _look(found, seen, name, value, find, same_for_all=True)
    found.spaces = [space for _, space in holders(function)]
    columns = [(s, v) for s, v in zip(found.sources, found.values, strict=True) if s.kind == "column"]
    groups = Counter(source.name.partition(".")[0] for source, _ in columns)
    columns.sort(key=lambda pair: -groups[pair[0].name.partition(".")[0]])  # those of the minibatch first
    if not columns:
        raise NotRows("it is given no tensor of a minibatch")
    found.rows = len(columns[0][1])
    for source, value in columns:
        other = source.name.partition(".")[0] != columns[0][0].name.partition(".")[0]
        if len(value) != found.rows and other:  # settings, the same for all rows
            at = found.sources.index(source)
            found.sources[at] = replace(source, kind="uniform")
        elif len(value) != found.rows:
            raise NotRows(
                f"{columns[0][0].name} has {found.rows} rows and {source.name} has {len(value)}: "
                "the first dimension of each tensor that is given must be the minibatch's rows. "
                "One that is the same for all rows can be a buffer of a module, or a variable of the enclosing function"
            )
    found.settle()
    return found


def argument_names(function: Callable[..., object], count: int) -> list[str]:
    """What a function calls its arguments."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"argument {i}" for i in range(len(names), count))][:count]


def _look(
    found: Given,
    seen: dict[int, Find],
    name: str,
    value: Any,
    find: Find,
    same_for_all: bool = False,
) -> None:
    """Add the inputs within an argument. same_for_all: its tensors have no rows."""
    if isinstance(value, nn.Module):
        found.held.append((find, value))
        _add_module(found, seen, name, value)
    elif isinstance(value, Tensor):
        _add_tensor(found, seen, name, value, find, same_for_all)
    elif isinstance(value, dict):
        found.held.append((find, _Size(type(value), len(value), sized=True)))
        for key, part in value.items():
            _look(found, seen, f"{name}.{key}", part, lambda given, key=key: find(given)[key])  # type: ignore[misc]
    elif isinstance(value, list | tuple):
        labels = getattr(value, "_fields", range(len(value)))
        found.held.append((find, _Size(type(value), len(value), sized=True)))
        for i, (label, part) in enumerate(zip(labels, value, strict=True)):
            _look(found, seen, f"{name}.{label}", part, lambda given, i=i: find(given)[i])  # type: ignore[misc]
    elif has_parts(value):
        found.held.append((find, _Size(type(value), len(vars(value)), sized=False)))
        for label, part in vars(value).items():
            _look(found, seen, f"{name}.{label}", part, lambda given, label=label: getattr(find(given), label))  # type: ignore[misc]
    elif type(value) is float and found.floats:
        found.sources.append(Source("uniform", name, False, find, number=True))
        found.values.append(torch.tensor(value, dtype=torch.float32))
    else:
        found.held.append((find, value))


def _is_plain(value: object) -> bool:
    return isinstance(value, _CONSTANT)


def _add_tensor(
    found: Given,
    seen: dict[int, Find],
    name: str,
    value: Tensor,
    find: Find,
    same_for_all: bool,
) -> None:
    if id(value) in seen:
        found.same.append((seen[id(value)], find))
        return
    seen[id(value)] = find
    _check(name, value)
    learned = value.requires_grad and value.is_leaf
    if value.requires_grad and not value.is_leaf:
        raise NotRows(f"{name} has a gradient function: detach it, or compute it within the loss")
    if learned and has_hook(value):
        raise NotRows(f"{name} has a gradient hook")
    kind: Kind = "column" if value.dim() and not learned and not same_for_all else "uniform"
    found.sources.append(Source(kind, name, learned, find))
    found.values.append(value)


def _add_module(found: Given, seen: dict[int, Find], name: str, module: nn.Module) -> None:
    if id(module) in seen:
        return
    seen[id(module)] = lambda _: module
    found.modules.append((name, module))
    parts = dict(module.named_modules())
    attributes = [
        (f"{path}.{label}".lstrip("."), value)
        for path, part in module.named_modules()
        for label, value in vars(part).items()
        if isinstance(value, Tensor)
    ]
    for own, value in [*module.named_parameters(), *module.named_buffers(), *attributes]:
        path, _, label = own.rpartition(".")
        find: Find = lambda _, owner=parts[path], label=label: getattr(owner, label)  # type: ignore[misc] # noqa: E731
        if id(value) in seen:
            found.same.append((seen[id(value)], find))
            continue
        seen[id(value)] = find
        _check(f"{name}.{own}", value)
        learned = isinstance(value, nn.Parameter) and value.requires_grad
        found.sources.append(Source("uniform", f"{name}.{own}", learned, find, of_module=True))
        found.values.append(value)


def _check(name: str, value: Tensor) -> None:
    if value.device.type != "cpu":
        raise NotRows(f"{name} lies on {value.device}; losses are compiled for the CPU")
    if value.layout != torch.strided:
        raise NotRows(f"{name} is sparse")


@contextmanager
def substituted(found: Given, tensors: dict[int, Tensor]) -> Iterator[None]:
    """Inside, tensors of the modules, and of objects that the function holds, are other ones, by the ids of their
    own."""
    parts = [part for _, module in found.modules for part in module.modules()]
    spaces: list[Any] = [x for part in parts for x in (part._parameters, part._buffers, vars(part))] + found.spaces
    # of GRU and LSTM, which list their parameters anew when these are others
    listed = [(vars(part), name) for part in parts for name in ("_flat_weights", "_flat_weight_refs")]
    changed = [(space, name, space[name]) for space, name in listed if name in space]
    try:
        for space in spaces:
            for name, value in list(space.items()):
                if isinstance(value, Tensor) and id(value) in tensors:
                    changed.append((space, name, value))
                    space[name] = tensors[id(value)]
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
    if has_parts(value):
        copy = shallow(value)
        vars(copy).update({label: part(label, inner) for label, inner in vars(value).items()})
        return copy
    return value


def _like(value: dict[Any, Any], made: dict[Any, Any]) -> dict[Any, Any]:
    copy = value.copy()
    copy.update(made)
    return copy
