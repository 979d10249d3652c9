"""Values as text, for digests: what two values have to have in common to be the same for a function that reads them.

None of the user's code is run: attributes are read from __dict__ and slots, not through __getattr__(), properties or
__repr__(). Functions and classes in a value are listed, for the caller to follow. Each part of a value is described
once, so a value that holds itself ends.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import functools
import operator
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from enum import Enum
from hashlib import sha256
from itertools import chain, repeat
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NotImplementedType,
    SimpleNamespace,
)
from typing import Any, NamedTuple, TypeAlias

from headrace.core.source_text import constant_text

Content: TypeAlias = tuple[str, Iterable[object], bool]  # a value's own text, its parts, whether these stay the same
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, EllipsisType, NotImplementedType)
# their repr() has all that counts, and runs nothing of the user's
_FOUND = {"headrace.policies.examination.Examination"}  # findings about other values, described by their class
_SHOWN = (
    {"builtins.range", "pathlib.PosixPath", "re.Pattern", "decimal.Decimal", "fractions.Fraction"}
    | {"datetime.timedelta", "datetime.datetime", "datetime.date"}
    | {"torch.dtype", "torch.device", "torch.layout", "torch.memory_format"}
)
# modules of the standard library with objects that change by themselves, or stand for something outside: these count
# by their class alone. Others, such as argparse.Namespace, count by their attributes, as objects of a user's
_MACHINERY = (
    {"_io", "io", "os", "sys", "select", "selectors", "signal", "socket", "ssl", "subprocess", "tempfile", "random"}
    | {"_thread", "asyncio", "concurrent", "contextlib", "contextvars", "multiprocessing", "queue", "threading"}
    | {"_weakref", "abc", "ast", "builtins", "importlib", "inspect", "types", "typing", "weakref"}
    | {"logging", "unittest", "warnings"}
)
_PARTS: dict[type, tuple[str, ...]] = {  # of what wraps functions
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    slice: ("start", "stop", "step"),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    functools.singledispatchmethod: ("func",),
    functools._lru_cache_wrapper: ("__wrapped__",),
}
_REDUCED = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_ORDERED: tuple[type[Any], ...] = (list, collections.deque, tuple)
_UNORDERED: tuple[type[Any], ...] = (set, frozenset)
_BUILT_IN = {*_ORDERED, *_UNORDERED, dict, MappingProxyType}
_READ: dict[type, Callable[[Any], list[object]]] = {  # quickly, and in the order of _collection()
    list: list,
    dict: lambda items: [*chain.from_iterable(items.items())],
}
_SHORT = 4096  # bytes of an array that are compared, rather than hashed
_NAMED_IN_C = (GetSetDescriptorType, MemberDescriptorType)
_TENSORS = ("_parameters", "_buffers")  # of a torch.nn.Module: data that learning changes, not what it computes


class Changing:
    """A part of a value that can be changed, and what it was when it was described."""

    def __init__(self, part: Any, text: str, parts: list[object]) -> None:
        kind = type(part)
        self.part, self.text, self.parts = part, text, parts
        self.read = _READ.get(kind)
        self.numbers: tuple[Any, ...] | None = None
        if self.read is None and _has_attributes_alone(kind):  # type: ignore[arg-type]
            self.read, self.parts = _attribute_items, _attribute_items(part)
        if _is(kind, "numpy", "ndarray") and part.nbytes <= _SHORT and not part.dtype.hasobject:
            self.numbers = _array_numbers(part)

    def holds(self) -> bool:
        """Tell whether the part is unchanged. Takes about a microsecond for most parts."""
        if self.numbers is not None:
            return _array_numbers(self.part) == self.numbers
        if self.read is None:
            text, parts, _ = _content(type(self.part), self.part)
            now = [*parts]
        else:
            text, now = self.text, self.read(self.part)
        return text == self.text and len(now) == len(self.parts) and all(map(operator.is_, now, self.parts))


class AllUnchanged:
    """Check that mutable parts are unchanged. Arrays, lists, dicts and plain objects are compared all at once, in C."""

    def __init__(self, changing: Sequence[Changing]) -> None:
        self.changing = changing
        parts = [*{id(own.part): own for own in changing}.values()]
        arrays = [own for own in parts if own.numbers is not None]
        kinds = [(own, own.read) for own in parts if own.numbers is None]
        lists = [own for own, read in kinds if read is _READ[list]]
        dicts = [own for own, read in kinds if read is _READ[dict]]
        objects = [own for own, read in kinds if read is _attribute_items]
        self._others = [own for own, read in kinds if read not in (*_READ.values(), _attribute_items)]
        self._arrays, self._lists, self._dicts, self._objects = (
            [own.part for own in each] for each in (arrays, lists, dicts, objects)
        )
        members = [own.parts for own in lists] + [own.parts[::2] for own in (*dicts, *objects)]
        values = chain.from_iterable(own.parts[1::2] for own in (*dicts, *objects))
        self._members, self._values = [*chain.from_iterable(members)], [*values]
        self._sizes, self._numbers = [*map(len, members)], [own.numbers for own in arrays]

    def hold(self) -> bool:
        """True if all parts are the same as before."""
        try:
            return self._quick_hold() and all(part.holds() for part in self._others)
        except RuntimeError:  # another thread changes one
            return False

    def _quick_hold(self) -> bool:
        named = [*self._dicts, *map(object.__getattribute__, self._objects, repeat("__dict__"))]
        spaces = [*self._lists, *named]
        return (
            [*map(len, spaces)] == self._sizes
            and all(map(operator.is_, chain.from_iterable(spaces), self._members))
            and all(map(operator.is_, chain.from_iterable(map(dict.values, named)), self._values))
            and [*map(_array_numbers, self._arrays)] == self._numbers
        )


def _array_numbers(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


class Description(NamedTuple):
    """A value as text, one line for each part; the functions in it, the classes, and the modules of all that is named;
    the parts that can be changed."""

    lines: list[str]
    functions: list[FunctionType]
    classes: list[type]
    modules: set[str]
    changing: list[Changing]


def describe(value: object, home: str = "", inputs: Container[int] = ()) -> Description:
    """A value as text. Arrays and tensors by their numbers; parameters, the tensors of a torch.nn.Module, and those
    whose ids are among `inputs`, by their shapes. home: a module that is not to be named."""
    return _Describer(home, inputs).describe(value)


class _Describer:
    def __init__(self, home: str, inputs: Container[int]) -> None:
        self.home, self.inputs = home, inputs
        self.numbers: dict[int, int] = {}  # id of a part -> its line
        self.parts: list[Any] = []
        self.found = Description([], [], [], set(), [])

    def describe(self, value: object) -> Description:
        lines = self.found.lines
        lines.append(self.refer(value))
        for part in self.parts:  # more of them with each line
            lines.append(self.line(part))
        return self.found

    def refer(self, value: Any) -> str:
        """Constants, classes and modules as text; the number of the line of others."""
        kind = type(value)
        if kind in _CONSTANTS:
            return constant_text(value)
        if issubclass(kind, type):
            self.found.classes.append(value)
            return self.name(value)
        if issubclass(kind, ModuleType):
            return f"module {vars(value).get('__name__')}"
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.parts)
            self.parts.append(value)
        return f"@{self.numbers[id(value)]}"

    def line(self, value: Any) -> str:
        kind = type(value)
        if kind is FunctionType:
            self.found.functions.append(value)
            return "function"
        if id(value) in self.inputs:
            return f"{self.name(kind)} {_shape(value)}"
        text, given, fixed = _content(kind, value)
        parts = [*given]
        if not fixed:
            self.found.changing.append(Changing(value, text, parts))
        if kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
            self.found.classes.append(kind)
        own = f" {self.name(value)}" if kind is BuiltinFunctionType else ""
        return f"{self.name(kind)}{own} {text} [{', '.join(map(self.refer, parts))}]"

    def name(self, value: Any) -> str:
        """A class's or function's module and name."""
        # Python 3.11 has _collections._tuplegetter, later ones collections._tuplegetter
        module = (value.__module__ or "").removeprefix("_")
        self.found.modules.add(module)
        return f"{'' if module == self.home else module}.{value.__qualname__}"


def _content(kind: type, value: Any) -> Content:
    if kind in _PARTS:
        return "", [getattr(value, name) for name in _PARTS[kind]], True
    if kind in _REDUCED:
        return "", value.__reduce__()[1], True
    if kind is BuiltinFunctionType:
        owner = value.__self__
        return "", [] if isinstance(owner, ModuleType | type | None) else [owner], True
    if issubclass(kind, Enum):
        return str(object.__getattribute__(value, "_name_")), [], True
    return _collection(kind, value) or _array(kind, value) or _instance(kind, value)


def _instance(kind: type, value: Any) -> Content:
    """Content of any other object: its attributes, where it has its own."""
    if f"{kind.__module__}.{kind.__qualname__}" in _SHOWN or _is(kind, "numpy", "dtype"):
        return ascii(value), [], True
    if f"{kind.__module__}.{kind.__qualname__}" in _FOUND:
        return "", [], True
    text = _name_in_c(kind, value)
    if is_opaque(kind):
        return text, [], True
    attributes = dict(sorted(_attributes(kind, value)))
    if _is(kind, "torch.nn", "Module"):
        tensors = chain.from_iterable((attributes.pop(name, None) or {}).items() for name in _TENSORS)  # type: ignore[attr-defined]
        text = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in tensors)
    return text, chain.from_iterable(attributes.items()), False


def _collection(kind: type, value: Any) -> Content | None:
    """Members of a collection, and the attributes of a subclass."""
    own = () if kind in _BUILT_IN else chain.from_iterable(_attributes(kind, value))
    for base in _ORDERED:
        if issubclass(kind, base):
            return "", chain(base.__iter__(value), own), base is tuple
    for base in _UNORDERED:
        if issubclass(kind, base):
            return "", chain(sorted(base.__iter__(value), key=_order), own), base is frozenset
    if issubclass(kind, dict | MappingProxyType):
        items = dict.items(value) if issubclass(kind, dict) else value.items()
        return "", chain(chain.from_iterable(items), own), False
    return None


def _order(value: Any) -> str:
    """The sort key of a set's members, which is the same in every process."""
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return constant_text(value) if type(value) in _CONSTANTS else "\0".join(describe(value).lines)


def _array(kind: type, value: Any) -> Content | None:
    """The numbers of NumPy's, torch's and Python's arrays, as a hash."""
    if issubclass(kind, bytearray | memoryview | array.array | ctypes.Array | ctypes._SimpleCData):
        return sha256(bytes(value)).hexdigest(), [], False
    if _is(kind, "numpy", "ndarray") or _is(kind, "numpy", "generic"):
        if value.dtype.hasobject:
            return f"{value.shape}", value.ravel().tolist(), False
        fixed = _is(kind, "numpy", "generic") and not _is(kind, "numpy", "void")  # one number
        return f"{value.dtype.str} {value.shape} {sha256(value.tobytes()).hexdigest()}", [], fixed
    if not _is(kind, "torch", "Tensor"):
        return None
    if value.requires_grad or _is(kind, "torch.nn", "Parameter"):
        return _shape(value), [], False
    try:
        numbers = value.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    except (RuntimeError, TypeError, NotImplementedError):  # sparse, quantized, without memory
        return _shape(value), [], False
    return f"{_shape(value)} {sha256(numbers.tobytes()).hexdigest()}", [], False


def _shape(tensor: Any) -> str:
    return "None" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device} {tensor.requires_grad}"


def _is(kind: type, module: str, name: str) -> bool:
    """Tell whether a class is derived from a library's class. False if the library is not imported."""
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and issubclass(kind, base)


def _attributes(kind: type, value: Any) -> Iterator[tuple[str, object]]:
    """Names and values of an object's attributes, from its slots and its __dict__."""
    for name, found in ((name, x) for base in kind.__mro__ for name, x in vars(base).items()):
        if type(found) is MemberDescriptorType and found.__objclass__.__module__ != "builtins":
            with contextlib.suppress(AttributeError):  # an empty slot
                yield name, found.__get__(value)
    with contextlib.suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__").items()


@functools.cache
def _has_attributes_alone(kind: type) -> bool:
    """Tell whether the __dict__ of a class's objects describes them fully: see _content()."""
    others = (*_PARTS, *_REDUCED, BuiltinFunctionType, Enum, *_ORDERED, *_UNORDERED, dict, MappingProxyType)
    known = ("numpy", "ndarray"), ("numpy", "generic"), ("torch", "Tensor"), ("torch.nn", "Module")
    if issubclass(kind, others) or any(_is(kind, *name) for name in known) or not kind.__dictoffset__:
        return False
    if f"{kind.__module__}.{kind.__qualname__}" in _SHOWN or is_opaque(kind):
        return False
    found = (x for base in kind.__mro__ for x in vars(base).values())
    slots = any(type(x) is MemberDescriptorType and x.__objclass__.__module__ != "builtins" for x in found)
    return not slots and not _is_named_in_c(kind)


def is_opaque(kind: type) -> bool:
    """True if objects of a class are described by the class alone."""
    home = kind.__module__.partition(".")[0]
    if kind is SimpleNamespace or home not in sys.stdlib_module_names:
        return False
    return home in _MACHINERY or not kind.__dictoffset__


def _is_named_in_c(kind: type) -> bool:
    return any(
        type(vars(base).get(name)) in _NAMED_IN_C for base in kind.__mro__ for name in ("__qualname__", "__name__")
    )


def _attribute_items(value: Any) -> list[object]:
    return [*chain.from_iterable(object.__getattribute__(value, "__dict__").items())]


def _name_in_c(kind: type, value: Any) -> str:
    """The name of an object that is written in C and has one, such as numpy.add."""
    for base in kind.__mro__:
        for name in ("__qualname__", "__name__"):
            if type(found := vars(base).get(name)) in _NAMED_IN_C:
                return str(found.__get__(value))  # type: ignore[union-attr]
    return ""


def own_attributes(module: Any) -> list[tuple[str, Any]]:
    """The attributes of a torch.nn.Module that not every module has."""
    return [(name, value) for name, value in vars(module).items() if name not in _of_all_modules()]


@functools.cache
def _of_all_modules() -> frozenset[str]:
    from torch import nn

    return frozenset(vars(nn.Module()))
