"""Inputs of a loss: the tensors and numbers in its arguments, and their places."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from headrace.core.closure import Reach, reach
from headrace.core.packages import of_headrace
from headrace.core.value_text import AllUnchanged, Changing, describe, own_attributes
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.tracing.captured import Find, Space, captured, has_parts, holders, roots, within
from headrace.kernels.rows.tracing.held import (
    CONSTANT,
    Held,
    Same,
    Size,
    are_settings,
    is_same,
    parts_of,
    state,
    structure,
)

Shape: TypeAlias = tuple[int, ...]
Kind: TypeAlias = Literal["column", "uniform"]
_training = attrgetter("training")
_appearance = attrgetter("dtype", "device", "requires_grad", "shape", "_backward_hooks", "_post_accumulate_grad_hooks")
DTYPES = {torch.float32: "f32", torch.int64: "i32", torch.int32: "i32", torch.uint8: "i32", torch.bool: "bool"}


@dataclass(frozen=True)
class Source:
    """Input of a traced loss. name: as a user would say it. learned: whether the loss has a gradient of it.

    find: finds its present value, given the arguments of a call. of_module: whether it is a tensor of a module; then
    the arguments do not count. registered: whether it is a parameter or buffer there. number: whether it is a Python
    float.
    """

    kind: Kind
    name: str
    learned: bool
    find: Find = field(compare=False)
    of_module: bool = False
    registered: bool = False
    number: bool = False


@dataclass
class Given:
    """The inputs in a call's arguments.

    count: of the arguments. modules: by the names of the arguments. rows: of the minibatch. fixed: names of Python
    floats that are constants; others are inputs. moving: names of those that a schedule changes all the time. spaces:
    lists, dicts and attributes that the function and the modules hold. same: where a tensor is given twice. held:
    modules, numbers that are no inputs, sizes of dicts and lists. learns: ids of the parameters that the loss may have
    a gradient of; None: all. device: of all inputs. read: the settings that the function was seen to read, by their
    names.
    """

    sources: list[Source] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    same: list[Same] = field(default_factory=list)
    spaces: list[Space] = field(default_factory=list)
    rows: int = 0
    fixed: frozenset[str] = frozenset()
    moving: set[str] = field(default_factory=set)
    count: int = 0
    learns: frozenset[int] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    read: set[str] = field(default_factory=set)
    varying: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.attributes: dict[str, tuple[dict[str, Any], str]] = {}  # inputs by name: where modules have these floats
        self.settings: dict[str, str] = {}  # by their names, their values as text
        self._own: list[tuple[Source, Shape, torch.dtype, bool]] = []
        self._looks: list[Any] = []  # of these, at the last call
        self._parts: list[nn.Module] = []
        self._training: list[bool] = []
        self._changing: list[tuple[str, Changing]] = []
        self._unchanged = AllUnchanged(())
        # of each held value: the attribute of a network of the package's that it is, or ""; its name
        self._reaches: list[tuple[str, str, Reach]] = []
        self._lines: list[tuple[str, str]] = []
        self._state = state()
        self.classes: tuple[type, ...] = ()

    def check(self, name: str, value: Tensor) -> None:
        """Raise NotRows for a tensor that no program takes."""
        if value.device.type not in ("cpu", "cuda"):
            raise NotRows(f"{name} lies on {value.device}; losses are compiled for the CPU and for CUDA")
        if self.values and value.device != self.device:
            raise NotRows(f"{name} lies on {value.device}, and {self.sources[0].name} on {self.device}")
        self.device = value.device
        if value.layout != torch.strided:
            raise NotRows(f"{name} is sparse")

    def settle(self) -> None:
        """Remember what inputs look like, for change() and lines()."""
        pairs = zip(self.sources, self.values, strict=True)
        own = [(s, v) for s, v in pairs if not (s.registered or s.number)]
        self._own = [(s, _tail(s, v), v.dtype, v.requires_grad) for s, v in own]
        self._parts = [part for _, module in self.modules for part in module.modules()]
        self._training = [*map(_training, self._parts)]
        classes: dict[type, None] = dict.fromkeys(map(type, self._parts))
        kept = [
            (full, value, None, name if of_headrace(type(part)) else "")
            for label, module in self.modules
            for path, part in module.named_modules()
            for name, value in own_attributes(part)
            if not isinstance(value, Tensor)
            if (full := attribute_name(label, path, name)) not in self.attributes
        ]
        inputs = {*map(id, self.values)}
        for name, value, setting, attribute in [*kept, *((n, v, s, "") for n, _, v, s in self.held)]:
            if isinstance(value, nn.Module):
                self._note(f"{name} is a module", None, attribute)
            elif isinstance(value, Size):
                classes[value.kind] = None
                self._note(f"{name}: {value}", setting, attribute)
            elif isinstance(value, CONSTANT):
                classes[type(value)] = None
                self._note(f"{name} = {value!r}", setting, attribute)
            else:
                found = describe(value, inputs=inputs)
                self._changing += [(name, part) for part in found.changing]
                self._reaches += [(attribute, name, reach(function)) for function in found.functions]
                classes |= dict.fromkeys(found.classes)
                self._note(f"{name} = {found.lines}", None, attribute)
        self.classes, self._unchanged = tuple(classes), AllUnchanged([part for _, part in self._changing])

    def _note(self, line: str, setting: str | None, attribute: str) -> None:
        if setting is None:
            self._lines.append((attribute, line))
        else:
            self.settings[setting] = f"{self.settings.get(setting, '')}\n{line}"

    def has_as_inputs(self, attributes: list[tuple[dict[str, Any], str]]) -> bool:
        """True if all of these attributes of modules are inputs."""
        own = {(id(space), name) for space, name in self.attributes.values()}
        return all((id(space), name) in own for space, name in attributes)

    def is_learned(self, value: Tensor) -> bool:
        """Tell whether the loss may have a gradient of a tensor."""
        return value.requires_grad and value.is_leaf and (self.learns is None or id(value) in self.learns)

    def leave_out(self) -> None:
        """Leave out inputs of dtypes that are not compiled, and settings that the trace has not read."""
        self.held = [own for own in self.held if own.setting not in self.settings or own.setting in self.read]
        kept = [(s, v) for s, v in zip(self.sources, self.values, strict=True) if v.dtype in DTYPES]
        self.sources, self.values = [s for s, _ in kept], [v for _, v in kept]

    def lines(self, named: Set[str] | None = None) -> list[str]:
        """Describe all that a trace of these arguments reads, without settings and the loss's own code, as text that is
        the same in every process.

        named: all names in the code. Given these, attributes of the package's networks that are not among them are left
        out, and the text is the same in every version of Python.
        """
        inputs = [
            f"{s.kind} {s.name} {s.learned} {s.of_module} {s.number} {v.dtype} {_tail(s, v)}"
            for s, v in zip(self.sources, self.values, strict=True)
        ]
        places = [f"{same.name} is {same.first}" for same in self.same]
        modules = [line for label, module in self.modules for line in structure(label, module)]
        held = [line for attribute, line in self._lines if not (attribute and named) or attribute in named]
        reaches = [x for x in self._reaches if not (x[0] and named) or x[0] in named]
        code = [f"{name} {found.digest if named else found.text}" for _, name, found in reaches]
        return [*map(str, self._state), f"{self.count}", *inputs, *places, *modules, *held, *code]

    def unseen(self) -> list[str]:
        """Modules that code in the arguments would import, whose contents are not known."""
        return [module for *_, found in self._reaches for module in found.unseen]

    def change(self, arguments: tuple[Any, ...], seen: bool = False) -> str | None:
        """Name what keeps other arguments from having the same constants, and the same inputs except for their numbers.
        None where nothing does. seen: True if code and objects of the user's are known not to have changed."""
        if len(arguments) != self.count:
            return "the number of arguments"
        if [*map(_training, self._parts)] != self._training:
            return "whether modules are in training mode"
        if state() != self._state:
            return "a setting of torch's, such as the default dtype"
        if not seen and (name := self._change_outside()) is not None:
            return name
        try:
            return self._change(arguments)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # something is not there
            return "what the arguments hold"

    def _change_outside(self) -> str | None:
        if not self._unchanged.hold():
            return next((name for name, part in self._changing if not part.holds()), "an object that is changing")
        return next((name for _, name, found in self._reaches if not found.is_current()), None)

    def _change(self, arguments: tuple[Any, ...]) -> str | None:
        for name, one, other, _ in self.same:
            if one(arguments) is not other(arguments):
                return name
        for name, find, value, _ in self.held:
            if not is_same(find(arguments), value):
                return name
        tensors = [source.find(arguments) for source, *_ in self._own]
        looks = [*map(_appearance, tensors)]
        if looks != self._looks and (change := self._change_of(tensors)) is not None:
            return change
        self._looks = looks
        others = (s.name for s in self.sources if s.number and type(s.find(arguments)) is not float)
        return next(others, None)

    def _change_of(self, tensors: list[Any]) -> str | None:
        """Name the difference that keeps tensors, other than those of modules, from being such inputs."""
        rows = 0
        for (source, shape, dtype, learned), found in zip(self._own, tensors, strict=True):
            if not isinstance(found, Tensor) or found.dtype != dtype or found.shape[source.kind == "column" :] != shape:
                return f"the shape or dtype of {source.name}"
            if found.requires_grad is not learned or found.device != self.device:
                return f"the device of {source.name}, or whether it is learned"
            if source.learned and has_hook(found):
                return f"the hooks of {source.name}"
            if source.kind == "column":
                rows = rows or len(found)
                if len(found) != rows:
                    return f"the number of rows of {source.name}"
        return None


def attribute_name(label: str, path: str, name: str) -> str:
    """An attribute of a module within one, as a user would say it."""
    return f"{label}.{path}.{name}".replace("..", ".")


def _tail(source: Source, value: Tensor) -> Shape:
    return tuple(value.shape[1:] if source.kind == "column" else value.shape)


def has_hook(tensor: Tensor) -> bool:
    """Tell whether something is called with a tensor's gradient."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def given(
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    fixed: frozenset[str] = frozenset(),
    learns: frozenset[int] | None = None,
    varying: frozenset[str] = frozenset(),
) -> Given:
    """The inputs of a call. Raises NotRows for what cannot be one. fixed, learns, varying: see Given."""
    found = Given(fixed=fixed, count=len(arguments), learns=learns, varying=varying - fixed)
    names = argument_names(function, len(arguments))
    seen: dict[int, tuple[str, Find]] = {}
    for i, (name, argument) in enumerate(zip(names, arguments, strict=True)):
        _look(found, seen, name, argument, lambda given, i=i: given[i])  # type: ignore[misc]
    for name, value, find in captured(function):
        _look(found, seen, name, value, find, same_for_all=True)
    found.spaces += [space for _, value, _ in roots(function) for space in holders(value)]
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
    """Names of a function's arguments."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"argument {i}" for i in range(len(names), count))][:count]


def _look(
    found: Given,
    seen: dict[int, tuple[str, Find]],
    name: str,
    value: Any,
    find: Find,
    same_for_all: bool = False,
    setting: str | None = None,
) -> None:
    """Add the inputs within an argument. same_for_all: its tensors have no rows. setting: see Held."""
    if isinstance(value, nn.Module):
        found.held.append(Held(name, find, value))
        _add_module(found, seen, name, value)
    elif isinstance(value, Tensor):
        _add_tensor(found, seen, name, value, find, same_for_all)
    elif isinstance(value, dict | list | tuple) or has_parts(value):
        found.held.append(Held(name, find, Size.of(value), setting))
        own = setting is None and are_settings(value)
        moving = vars(value).get("schedules") if has_parts(value) else None
        if isinstance(moving, dict):
            found.moving |= {f"{name}.{label}" for label in moving}
        for label, part, get in parts_of(value):
            inner = f"{name}.{label}"
            at: Find = lambda given, get=get: get(find(given))  # type: ignore[misc] # noqa: E731
            _look(found, seen, inner, part, at, setting=inner if own else setting)
    elif type(value) is float and name not in found.fixed:
        found.sources.append(Source("uniform", name, False, find, number=True))
        found.values.append(torch.tensor(value, dtype=torch.float32))
    else:
        found.held.append(Held(name, find, value, setting))


def _add_tensor(
    found: Given,
    seen: dict[int, tuple[str, Find]],
    name: str,
    value: Tensor,
    find: Find,
    same_for_all: bool,
) -> None:
    if id(value) in seen:
        first, at = seen[id(value)]
        found.same.append(Same(name, at, find, first))
        return
    seen[id(value)] = name, find
    found.check(name, value)
    learned = found.is_learned(value)
    if value.requires_grad and not value.is_leaf:
        raise NotRows(f"{name} has a gradient function: detach it, or compute it within the loss")
    if learned and has_hook(value):
        raise NotRows(f"{name} has a gradient hook")
    kind: Kind = "column" if value.dim() and not learned and not same_for_all else "uniform"
    found.sources.append(Source(kind, name, learned, find))
    found.values.append(value)


def _attribute_of(parts: dict[str, nn.Module], own: str) -> Find:
    path, _, label = own.rpartition(".")
    return lambda _, owner=parts[path]: getattr(owner, label)  # type: ignore[misc]


def _add_attribute(found: Given, name: str, part: nn.Module, label: str, value: float) -> None:
    """Add a float that is an attribute of a module."""
    found.attributes[name] = vars(part), label
    found.sources.append(Source("uniform", name, False, lambda _: vars(part)[label], number=True))
    found.values.append(torch.tensor(value, dtype=torch.float32))


def _add_module(found: Given, seen: dict[int, tuple[str, Find]], name: str, module: nn.Module) -> None:
    if id(module) in seen:
        return
    seen[id(module)] = name, lambda _: module
    found.modules.append((name, module))
    parts = dict(module.named_modules())
    tensors = [
        (own, value, _attribute_of(parts, own)) for own, value in (*module.named_parameters(), *module.named_buffers())
    ]
    registered = {id(value) for _, value, _ in tensors}
    for path, part in parts.items():
        for label, value in own_attributes(part):
            own = f"{path}.{label}".lstrip(".")
            if type(value) is float and f"{name}.{own}" in found.varying:
                _add_attribute(found, f"{name}.{own}", part, label, value)
            tensors += within(own, value, _attribute_of(parts, own))
            found.spaces += holders(value)
    for own, value, find in tensors:
        if isinstance(value, nn.Module):
            found.held.append(Held(f"{name}.{own}", find, value))
            _add_module(found, seen, f"{name}.{own}", value)
            continue
        if id(value) in seen:
            first, at = seen[id(value)]
            found.same.append(Same(f"{name}.{own}", at, find, first))
            continue
        if id(value) not in registered and (value.device != found.device or value.layout != torch.strided):
            continue  # refused where the loss uses it
        seen[id(value)] = f"{name}.{own}", find
        found.check(f"{name}.{own}", value)
        learned = isinstance(value, nn.Parameter) and found.is_learned(value)
        is_own = id(value) in registered
        found.sources.append(Source("uniform", f"{name}.{own}", learned, find, of_module=True, registered=is_own))
        found.values.append(value)
