"""Reach of a plain function: the functions, methods and values that it uses, and a digest of all of them.

Names in the code of a function are looked up in its module, in modules of the package that it names, and as attributes
of the classes that are given or found. The same holds for names in the functions found. A function enters the digest by
its syntax tree, and by the values in its closure, its defaults and its attributes. The search covers this package, the
package of the plain function and all other code of the user's. Functions and classes of other packages enter by name,
and, for a plain function of the user's, by the version of their package. No code is run. Imports within the user's
functions are followed if the module is imported already. Names that are made at run time are not found.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Container, Mapping
from inspect import getmro
from itertools import chain
from operator import attrgetter, getitem, is_
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from headrace.core.packages import installed, located, of_headrace
from headrace.core.source_text import Digest, bare_text, imports, tree_text
from headrace.core.value_text import AllUnchanged, Changing, describe

Space: TypeAlias = Mapping[str, object]  # of a module or class: name -> value
LOOKING = "headrace.core.looking"  # its values change, and no result depends on them
_SITE = ("site-packages", "dist-packages")  # folders of packages that were installed
_MAKING = {"__init__", "__new__", "__post_init__"}  # have run already for the objects that a plain function is given
_SILENT = {"__repr__", "__str__", "__reduce__", "__getstate__", "__setstate__", "__init_subclass__", "__set_name__"}
_code, _defaults = attrgetter("__code__"), attrgetter("__defaults__", "__kwdefaults__")
_contents = attrgetter("cell_contents")
_trees: dict[int, tuple[CodeType, str]] = {}  # by id of the code: equal code may have other decorators
_texts: dict[int, tuple[CodeType, str]] = {}


class Reach:
    """Functions and values that a function reaches. owners, spaces, names, values: of each name, the label and the
    namespace of its module or class, the name, and its value. functions: all that were found, including those of other
    packages. named: all names in their code. unseen: modules that they import when called and that are not loaded yet,
    so that their contents are unknown."""

    def __init__(self, walk: _Walk) -> None:
        found = [*zip(*walk.found.values(), strict=True)] or [()] * 4
        self.owners, self.spaces, self.names, self.values = map(list[Any], found)
        self._classes = {id(space): cls for cls, space in walk.spaces.items()}
        self._lines, functions = walk.lines, [*walk.functions.values()]
        self._sized = [*{id(space): space for space in (*self.spaces, *walk.globals)}.values()]
        self._sizes, self._own_sizes = [*map(len, self._sized)], [*map(_own_size, self._sized)]
        self.functions, self._codes = functions, [*map(_code, functions)]
        self._defaulting = [function for function in functions if any(_defaults(function))]
        self._defaults = [x for function in self._defaulting for x in _defaults(function)]
        self._cells = walk.cells
        self._contents = [*map(_contents, walk.cells)]
        self._changing, self.unseen, self.named = AllUnchanged(walk.changing), sorted(walk.unseen), walk.named
        self.text = self._hash(_texts, bare_text)

    @functools.cached_property
    def digest(self) -> Digest:
        """The digest of all that was reached, without comments, docstrings, annotations of functions and formatting."""
        return Digest(self._hash(_trees, tree_text), self.text)

    def matches(self, digest: str) -> bool:
        """Tell whether `digest` is the digest of what was reached."""
        return getattr(digest, "text", None) == self.text or digest == self.digest

    def is_current(self) -> bool:
        """Tell whether each name still has its value, and each value its contents."""
        try:
            return (
                all(map(is_, map(getitem, self.spaces, self.names), self.values))
                and self._sizes_hold()
                and [*map(_code, self.functions)] == self._codes
                and all(map(is_, chain.from_iterable(map(_defaults, self._defaulting)), self._defaults))
                and all(map(is_, map(_contents, self._cells), self._contents))
                and self._changing.hold()
            )
        except (KeyError, RuntimeError, ValueError):  # a name or cell is gone; a thread changes a value
            return False

    def _sizes_hold(self) -> bool:
        sizes = [*map(len, self._sized)]
        if sizes != self._sizes and [*map(_own_size, self._sized)] == self._own_sizes:
            self._sizes = sizes
        return sizes == self._sizes

    def change(self) -> str:
        """The name of something that has changed; slower than is_current()."""
        for owner, space, name, value in zip(self.owners, self.spaces, self.names, self.values, strict=True):
            if space.get(name, space) is not value:
                return f"{owner}.{name}"
        for function, code in zip(self.functions, self._codes, strict=True):
            if function.__code__ is not code:
                return f"{function.__qualname__}()"
        for part in self._changing.changing:
            if not part.holds():
                return f"an object of the class {type(part.part).__name__} that the code reads"
        return "a variable of the enclosing function, or a default of an argument"

    def held(self) -> list[tuple[str, object]]:
        """Names and their values, and values of variables in closures, without this package's names."""
        own = zip(self.owners, self.names, self.values, strict=True)
        cells = [("a variable of an enclosing function", value) for value in self._contents]
        return [(name, value) for owner, name, value in own if not of_headrace(owner)] + cells

    def restore(self) -> None:
        """Bind each name, and each variable of a closure, to its earlier value again."""
        for space, name, value in zip(self.spaces, self.names, self.values, strict=True):
            if space.get(name, space) is not value:
                if (owner := self._classes.get(id(space))) is None:
                    space[name] = value  # type: ignore[index]
                else:
                    setattr(owner, name, value)
        for cell, value in zip(self._cells, self._contents, strict=True):
            cell.cell_contents = value

    def places(self) -> str:
        """A digest of the functions' positions in their files. Noted line numbers are valid while it is the same."""
        lines = (
            f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_linetable.hex()}" for code in self._codes
        )
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

    def _hash(self, known: dict[int, tuple[CodeType, str]], text_of: Callable[[FunctionType], str]) -> str:
        codes = dict(zip(map(id, self.functions), self._codes, strict=True))
        lines = (label if f is None else f"{label}{_kept(known, text_of, f, codes[id(f)])}" for label, f in self._lines)
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _own_size(space: Space) -> int:
    """The number of names in a space, without the one that copy.copy() adds to a class."""
    return len(space) - ("__slotnames__" in space)


def reach(plain: Callable[..., object], classes: tuple[type, ...] = (), inputs: Container[int] = ()) -> Reach:
    """Find what `plain` reaches. classes: those of its arguments and of their parts. Their forward() is always reached,
    and their constructors are not, since the objects exist. inputs: ids of tensors whose numbers do not count."""
    return Reach(_Walk(plain, classes, inputs))


class _Walk:
    def __init__(self, plain: Callable[..., object], classes: tuple[type, ...], inputs: Container[int] = ()) -> None:
        self.inputs, self.unseen = inputs, set[str]()
        self.lines: set[tuple[str, FunctionType | None]] = set()
        self.found: dict[tuple[int, str], tuple[str, Space, str, object]] = {}
        self.functions: dict[int, FunctionType] = {}
        self.globals: list[Space] = []
        self.cells: list[Any] = []
        self.changing: list[Changing] = []
        self.named = {"forward"}
        self.spaces: dict[type, Space] = {}  # one for each class: vars() makes another each time
        self.members: dict[str, list[tuple[str, Space, bool]]] = {}  # name -> the classes that have it
        self.given: set[type] = set()
        self.classes: set[type] = set()  # of values that were found
        self.packages: set[str] = set()
        functions = describe(plain).functions
        kind = type(plain).__module__  # of a module that is called, whose __call__ is torch's
        self.home = _home(_unwrapped(functions[0])) if functions else kind
        if _is_others(self.home.partition(".")[0]) and not _is_others(kind.partition(".")[0]):
            self.home = kind
        self.package = self.home.partition(".")[0]
        self.queue: deque[tuple[str, FunctionType]] = deque()
        for cls in classes:
            self._add_class(cls, given=True)
        self._describe("", plain)
        while self.queue:
            self._follow(*self.queue.popleft())
        if not of_headrace(self.package):
            self.lines |= {(f"{name} {_version(name)}", None) for name in self.packages}

    def _is_own(self, module: str) -> bool:
        name = module.partition(".")[0]
        return name == self.package or of_headrace(name) or not _is_others(name)

    def _describe(self, label: str, value: object, keeps: bool = False) -> None:
        """Add the text of a value, and follow the functions and classes in it. keeps: whether the value is an attribute
        of a class whose objects are arguments; an object's own state is then read from the object."""
        if type(value) is FunctionType:
            self._add_function(label, value)
            return
        found = describe(value, self.home, self.inputs)
        if keeps and type(value) in found.classes:
            self.lines.add((f"{label} = {found.lines[1].partition(' ')[0]}", None))
            return
        self.changing.extend(found.changing)
        self.lines.add((f"{label} = {' '.join(found.lines)}", None))
        for module in found.modules:
            self._note(module)
        for number, function in enumerate(found.functions):
            self._add_function(f"{label}.{number}", function)
        for cls in found.classes:
            self._add_class(cls)

    def _note(self, module: str) -> None:
        if not self._is_own(module) and module.partition(".")[0] not in sys.stdlib_module_names:
            self.packages.add(module.partition(".")[0])

    def _add_function(self, label: str, function: FunctionType) -> None:
        function = _unwrapped(function)
        home = _home(function)
        if self._is_own(home):
            self.lines.add((f"{label} = ", function))
        else:
            self._note(home)
            self.lines.add((f"{label} = {home}.{function.__qualname__}", None))
        if id(function) not in self.functions:
            self.functions[id(function)] = function
            self.queue.append((label, function))

    def _add_class(self, cls: type, given: bool = False) -> None:
        """Take in the class of a value, with the classes that it is derived from. given: its objects are arguments."""
        for base in (*getmro(cls), *getmro(type(cls))):
            if not self._is_own(base.__module__):
                self._note(base.__module__)
                continue
            if base in (self.given if given else self.classes):
                continue
            name, space = f"{base.__module__}.{base.__qualname__}", self.spaces.setdefault(base, vars(base))
            if base not in self.given and base not in self.classes:
                for member in space:
                    self.members.setdefault(member, []).append((name, space, given))
            (self.given if given else self.classes).add(base)
            special = _special(space) - (_MAKING if given else set())
            if not given:
                self._describe(f"{base.__qualname__}()", (base.__bases__, *_fields(space)))
            for member in space:
                if member in self.named or member in special or (not given and _is_derivative(base, member)):
                    self._add(name, space, member, given)

    def _add(self, owner: str, space: Space, name: str, keeps: bool = False) -> None:
        """Take in a name of a module or class, if it has it."""
        if name in space and (id(space), name) not in self.found:
            self.found[id(space), name] = (owner, space, name, space[name])
            inside = owner == self.home or owner.startswith(f"{self.home}.")
            self._describe(f"{owner[len(self.home) :] if inside else owner}.{name}", space[name], keeps)

    def _follow(self, label: str, function: FunctionType) -> None:
        """Take in what a function holds, and, if it is followed, what it names."""
        held = {"defaults": function.__defaults__, "keywords": function.__kwdefaults__, "attributes": vars(function)}
        for name, value in held.items():
            if value:
                self._describe(f"{label}({name})", value)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # empty until the function around has run further
                continue
            self.cells.append(cell)
            if name == "__class__" and value in self.given:  # super() reads the class, but makes no object of it
                self.lines.add((f"{label}({name}) = {value.__module__}.{value.__qualname__}", None))
            else:
                self._describe(f"{label}({name})", value)
        if not self._is_own(_home(function)) or _home(function) == LOOKING:
            return
        self.globals.append(function.__globals__)
        names = sorted(_names(function.__code__))
        for name in names:
            if name not in self.named:
                self.named.add(name)
                for member in self.members.get(name, ()):
                    self._add(member[0], member[1], name, member[2])
        seen = set[str]()
        self._add_names(_home(function), function.__globals__, names, seen, global_names(function.__code__))
        for module in imports(function) if not of_headrace(_home(function)) else ():
            if module in sys.modules:
                self._note(module)
                if self._is_own(module) and module not in seen:
                    self._add_names(module, vars(sys.modules[module]), names, seen)
            elif module.partition(".")[0] not in sys.stdlib_module_names:
                self.unseen.add(module)

    def _add_names(
        self, owner: str, space: Space, names: list[str], seen: set[str], loaded: frozenset[str] | None = None
    ) -> None:
        """Take in these names of a module, and of followed modules that are among its names. loaded: for the function's
        own module, the names that its code loads as globals, without attributes."""
        seen.add(owner)
        for name in names if loaded is None else sorted(loaded):
            value = space.get(name)
            if not issubclass(type(value), ModuleType):
                self._add(owner, space, name)
                continue
            module = str(vars(value)["__name__"])
            self._note(module)
            if self._is_own(module) and module not in seen:
                self._add_names(module, vars(value), names, seen)


def _unwrapped(function: FunctionType) -> FunctionType:
    """The function below decorators of headrace.core.fused and of torch, which do not change what it computes."""
    while (inner := vars(function).get("__wrapped__")) is not None:
        home = _home(function)
        if not (home == "headrace.core.fused" or home.partition(".")[0] == "torch"):
            break
        if type(inner) is not FunctionType:
            break
        function = inner
    return function


def _home(function: FunctionType) -> str:
    """The module in which a function was written; functools.wraps() changes its __module__."""
    return str(function.__globals__.get("__name__", ""))


def _is_others(name: str) -> bool:
    """Tell whether a top-level module is of the standard library or of an installed package, rather than the user's."""
    if name in sys.stdlib_module_names:
        return True
    return name in sys.modules and _is_installed(name)


@functools.cache
def _is_installed(name: str) -> bool:
    """Tell whether pip installed a module. It is then in site-packages, or in the folder of pip's metadata for it, as
    after `pip install --target`. False for an editable install, whose metadata is in another folder than the code."""
    about = vars(sys.modules[name])
    places = [Path(place) for place in (about.get("__file__"), *about.get("__path__", ())) if place]
    if any(site in place.parts[:-1] for place in places for site in _SITE):
        return True
    noted = located(name)
    return noted is not None and any(place.is_relative_to(noted) for place in places)


def _version(name: str) -> str:
    found = vars(sys.modules[name]).get("__version__") if name in sys.modules else None
    return str(found or installed(name, otherwise="of an unknown version"))


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> set[str]:
    """All names in a function's code, and in functions within it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {name for name in code.co_names if not name.startswith("__")}.union(*inner)


@functools.lru_cache(maxsize=4096)
def global_names(code: CodeType) -> frozenset[str]:
    """Names of globals that the code of a function, and of functions within it, loads; attributes are left out."""
    inner = (global_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    loads = (one for one in dis.get_instructions(code) if one.opname.startswith("LOAD_"))
    own = {one.argval for one in loads if "GLOBAL" in one.opname or one.opname == "LOAD_NAME"}
    return frozenset(name for name in own if not name.startswith("__")).union(*inner)


def _special(space: Space) -> set[str]:
    """Names of a class's methods that operators and calls reach without naming them, except those that dataclasses and
    named tuples make of their fields."""
    special = {name for name, x in space.items() if name[:2] == "__" == name[-2:] and type(x) is FunctionType}
    made = {name for name in special if space[name].__code__.co_filename == "<string>"}  # type: ignore[attr-defined]
    return special - _SILENT - (made if _fields(space) else set())


def _fields(space: Space) -> tuple[object, ...]:
    """The fields of a dataclass or named tuple, the members of an Enum, with their values."""
    fields: Any = space.get("__dataclass_fields__", {})
    named: Any = space.get("_fields", ())
    defaults: Any = space.get("_field_defaults", {})
    members: Any = space.get("_member_map_", {})
    return (
        *((name, x.default, x.default_factory, x.init, x.kw_only) for name, x in fields.items()),
        *named,
        *defaults.items(),
        *((name, vars(x).get("_value_")) for name, x in members.items()),
    )


def _is_derivative(cls: type, name: str) -> bool:
    """Tell whether autograd calls this function: forward(), backward() and others of a torch.autograd.Function."""
    return hasattr(cls, "_backward_cls") and type(vars(cls)[name]) in (staticmethod, classmethod, FunctionType)


def _kept(
    known: dict[int, tuple[CodeType, str]],
    text_of: Callable[[FunctionType], str],
    function: FunctionType,
    code: CodeType,
) -> str:
    """The text of a function that had this code, computed once for that; of one whose source is not available, its
    bytecode, which versions of Python do not share."""
    found = known.get(id(code))
    if found is None:
        if function.__code__ is not code:
            function = FunctionType(code, function.__globals__, closure=tuple(CellType() for _ in code.co_freevars))
        try:
            found = code, text_of(function)
        except (OSError, TypeError, RecursionError):
            found = code, _bytecode(code)
        known[id(code)] = found
    return found[1]


def _bytecode(code: CodeType) -> str:
    constants = (_bytecode(x) if isinstance(x, CodeType) else " ".join(describe(x).lines) for x in code.co_consts)
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} [{', '.join(constants)}]"
