"""The front end: an environment class -> EnvIR.

`read(cls)` finds reset, step, observe or pixel and every helper they reach, resolves names as Python does, infers kinds
(headrace.kernels.language.kinds) and lowers the functions to the language of headrace.kernels.language.ir.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from typing import get_type_hints

from headrace.kernels.language import kinds
from headrace.kernels.language.declarations import read_declarations
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import EnvIR, Field, Param
from headrace.kernels.language.lower import lower
from headrace.kernels.language.scope import PythonObject


def read(cls: type) -> EnvIR:
    """The EnvIR of an environment class. Raises EnvError where it cannot be compiled."""
    file, line = location(cls)
    for name in ("State", "reset", "step"):
        _require(cls, name, file, line)
    found = read_declarations(cls, file, line)
    _require(cls, "pixel" if found.frames else "observe", file, line)
    state = _state(cls, file, line)
    params = _params(cls, file, line)
    lowered = lower(cls, state, params, found)
    arguments = len(lowered.functions[-1].node.args.args)
    return EnvIR(
        cls=cls,
        name=cls.__name__,
        state=state,
        params=params,
        observation_space=found.observation_space,
        action_space=found.action_space,
        max_steps=found.max_steps,
        frames=found.frames,
        agents=found.agents,
        groups=found.groups,
        observes_into=not found.frames and arguments == (3 if len(found.agents) == 1 else 4),
        functions=lowered.functions,
        pixel_functions=lowered.pixel_functions,
        constants=lowered.constants,
        statement=lowered.statement,
    )


_EXAMPLES = {
    "State": "class State(NamedTuple): x: f32",
    "reset": "def reset(s, p, key): return State(...)",
    "step": "def step(s, p, action, key): return State(...), reward, terminated",
    "observe": "def observe(s, p): return s.x, s.y",
    "pixel": "def pixel(s, p, row, column): return 255.0 if row > s.x else 0.0",
}


def _require(cls: type, name: str, file: str, line: int) -> None:
    if not callable(getattr(cls, name, None)):
        raise EnvError(file, line, f"{cls.__name__} has no {name}", f"Write `{_EXAMPLES[name]}`")


def location(cls: type) -> tuple[str, int]:
    """File and line of a class; ("<name>", 0) where there is no source to find."""
    file, node = _definition(cls)
    return (file, node.lineno) if node else (f"<{cls.__name__}>", 0)


@functools.lru_cache(16)
def _definition(cls: type) -> tuple[str, ast.ClassDef | None]:
    """A class's file and syntax tree. Goes by its functions: a class that was loaded by path may be in no module."""
    own = [item for item in vars(cls).values() if inspect.isfunction(item) and item.__module__ == cls.__module__]
    file = own[0].__code__.co_filename if own else getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    tree = ast.parse("".join(linecache.getlines(file)))
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls.__name__]
    return file, nodes[0] if nodes else None


def _hints(cls: type, owner: type, name: str, file: str, line: int) -> dict[str, PythonObject]:
    """Resolved annotations of a NamedTuple inside the class, in the user's module or under postponed evaluation."""
    scope = dict(getattr(cls.reset, "__globals__", {})) | dict(vars(sys.modules.get(owner.__module__, object)))  # type: ignore[attr-defined]
    try:
        return get_type_hints(owner, scope, dict(vars(cls)), include_extras=True)
    except Exception as error:
        wrong = f"an annotation in {name} cannot be resolved ({error})"
        raise EnvError(file, line, wrong, f"Use {kinds.DTYPES}") from error


def _state(cls: type, file: str, line: int) -> tuple[Field, ...]:
    owner = cls.State  # type: ignore[attr-defined]
    if not hasattr(owner, "_fields") or not owner._fields:
        wrong = f"{cls.__name__}.State is not a NamedTuple with fields"
        raise EnvError(file, line, wrong, f"Write `{_EXAMPLES['State']}`")
    hints = _hints(cls, owner, "State", file, line)
    fields = []
    for name in owner._fields:
        found = kinds.of_annotation(hints.get(name))
        if found is None:
            where, at = _field_line(cls, "State", name, file, line)
            raise EnvError(where, at, f"State.{name} is annotated {_shown(hints.get(name))}", f"Use {kinds.DTYPES}")
        fields.append(Field(name, *found))
    return tuple(fields)


def _params(cls: type, file: str, line: int) -> tuple[Param, ...]:
    owner = getattr(cls, "Params", None)
    names = getattr(owner, "_fields", ())
    if not names:
        return ()
    hints = _hints(cls, owner, "Params", file, line)  # type: ignore[arg-type]
    params = []
    for name in names:
        found = kinds.of_annotation(hints.get(name))
        where, at = _field_line(cls, "Params", name, file, line)
        if found is None or found[1] is not None:
            wrong = f"Params.{name} is annotated {_shown(hints.get(name))}"
            raise EnvError(where, at, wrong, "Use f32, i32 or boolean")
        if name not in owner._field_defaults:  # type: ignore[union-attr]
            raise EnvError(where, at, f"Params.{name} has no default", f"Write `{name}: {found[0]} = 1.0`")
        params.append(Param(name, found[0], owner._field_defaults[name]))  # type: ignore[union-attr]
    return tuple(params)


def _field_line(cls: type, owner: str, name: str, file: str, line: int) -> tuple[str, int]:
    """Where a field of State or Params is annotated; the class where that cannot be found."""
    for parent in cls.__mro__:
        where, node = _definition(parent) if owner in vars(parent) else ("", None)
        for part in ast.walk(node) if node else ():
            if isinstance(part, ast.ClassDef) and part.name == owner:
                lines = [f.lineno for f in part.body if isinstance(f, ast.AnnAssign) and ast.unparse(f.target) == name]
                return (where, lines[0]) if lines else (where, part.lineno)
    return file, line


def _shown(annotation: PythonObject) -> str:
    return getattr(annotation, "__name__", repr(annotation))
