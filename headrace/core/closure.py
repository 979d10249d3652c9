"""What a plain function reaches within its package: functions, methods and constants, and a digest of their source.

Names in the code of a function are looked up in its module, in modules of the package that it names, and as attributes
of the classes that are given; so are those of the functions found. Nothing is run.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from enum import EnumMeta
from operator import getitem
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import NamedTuple, TypeAlias

from headrace.core.source_text import source_text, without_comments

Space: TypeAlias = Mapping[str, object]  # of a module or class: name -> value
WRAPPERS = ("headrace.core.fused", "torch")  # whose decorators leave a function what it is


class Reach(NamedTuple):
    """What a function reached: names, the module or class of each and what it was; and a digest of all their texts."""

    digest: str
    owners: list[str]
    spaces: list[Space]
    names: list[str]
    values: list[object]

    def is_current(self) -> bool:
        """Whether each name still is what it was, or is equal to it."""
        try:
            return [*map(getitem, self.spaces, self.names)] == self.values  # objects first, and only then what they are
        except (KeyError, RuntimeError, ValueError):  # the last two of tensors and arrays, which are not compared
            return False


def reach(plain: Callable[..., object], classes: tuple[type, ...] = ()) -> Reach:
    """What `plain` reaches. classes: those of its arguments and of what they hold; their forward() is always reached.

    Comments, docstrings and blank lines do not count for the digest.
    """
    walk = _Walk(plain, classes)
    text = "\n".join(sorted(walk.texts))
    columns = (list(column) for column in zip(*walk.found.values(), strict=True)) if walk.found else ([], [], [], [])
    return Reach(hashlib.sha256(text.encode()).hexdigest()[:16], *columns)


class _Walk:
    def __init__(self, plain: Callable[..., object], classes: tuple[type, ...]) -> None:
        self.texts: set[str] = set()
        self.found: dict[tuple[str, str], tuple[str, Space, str, object]] = {}
        functions = list(_layers(plain))
        self.package = _home(functions[-1]).partition(".")[0]
        bases = dict.fromkeys(base for cls in classes for base in cls.__mro__ if self._is_own(base.__module__))
        self.members: dict[str, list[tuple[str, Space]]] = {}  # name -> the classes that have it
        for base in bases:
            for name in vars(base):
                self.members.setdefault(name, []).append((f"{base.__module__}.{base.__qualname__}", vars(base)))
        self._add_members("forward")
        for function in functions:
            self._describe("", function)

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] == self.package

    def _add_members(self, name: str) -> None:
        for owner, space in self.members.get(name, ()):
            self._add(owner, space, name)

    def _add(self, owner: str, space: Space, name: str) -> None:
        """Take in a name of a module or class, if it has it."""
        if name not in space or (owner, name) in self.found:
            return
        value = space[name]
        self.found[owner, name] = (owner, space, name, value)
        self._describe(f"{owner}.{name}", value)

    def _describe(self, label: str, value: object) -> None:
        """Add the text of a value, and what it reaches."""
        layers = list(_layers(value))
        if layers:
            for function in layers:
                own = self._is_own(_home(function))
                self.texts.add(f"{label} = {_text(function) if own else f'{_home(function)}.{function.__qualname__}'}")
                if own:
                    self._follow(function)
        elif isinstance(value, Mapping) and label.rpartition(".")[2].isupper():
            for key, member in value.items():
                self._describe(f"{label}[{key!r}]", member)
        else:
            self.texts.add(f"{label} = {_constant(value)}")
            if isinstance(value, type) and self._is_own(value.__module__):
                self._add(f"{value.__module__}.{value.__qualname__}", vars(value), "__init__")

    def _follow(self, function: FunctionType) -> None:
        names = sorted(_names(function.__code__))
        for default in function.__defaults__ or ():
            self._add(_home(function), function.__globals__, getattr(default, "__name__", ""))
        for name in names:
            self._add_members(name)
            value = function.__globals__.get(name)
            if not isinstance(value, ModuleType):
                self._add(_home(function), function.__globals__, name)
            elif self._is_own(value.__name__):
                for attribute in names:
                    self._add(value.__name__, vars(value), attribute)


def _layers(value: object) -> Iterator[FunctionType]:
    """The functions of a function, method or property that is decorated; without the registry's and torch's."""
    while value is not None:
        value = getattr(value, "fget", None) or getattr(value, "__func__", value)
        inner = getattr(value, "__wrapped__", None)
        if isinstance(value, FunctionType) and not (inner and _home(value).startswith(WRAPPERS)):
            yield value
        value = inner


def _home(function: FunctionType) -> str:
    """The module in which a function was written; functools.wraps() changes its __module__."""
    return function.__globals__.get("__name__", "")


def _names(code: CodeType) -> set[str]:
    """All names in a function's code, and in functions within it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {name for name in code.co_names if not name.startswith("__")}.union(*inner)


def _constant(value: object) -> str:
    """A constant as text; of other values their names, or their types', which do not depend on the process."""
    if isinstance(value, EnumMeta):
        return repr({member.name: member.value for member in value})  # type: ignore[var-annotated]
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_constant, value))})"
    if value is None or isinstance(value, int | float | str | bytes):
        return repr(value)
    named = value if isinstance(value, type | BuiltinFunctionType) else type(value)
    module = named.__module__ or ""  # Python 3.11 has _collections._tuplegetter, later ones collections._tuplegetter
    return f"{module.removeprefix('_')}.{named.__qualname__}"


@functools.lru_cache(maxsize=4096)
def _text(function: FunctionType) -> str:
    """The function's source without comments and docstring; of one that has no file, its bytecode; of a constructor
    that a dataclass made, its signature, because its bytecode differs between versions of Python."""
    try:
        return without_comments(source_text(function))
    except (OSError, TypeError):
        code = function.__code__
        if code.co_name == "__init__" and "return" in function.__annotations__ and code.co_filename == "<string>":
            return f"{code.co_varnames} {sorted(code.co_names)} {[*map(_constant, function.__defaults__ or ())]}"
        return code.co_code.hex() + repr(code.co_consts)
