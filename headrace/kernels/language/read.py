"""Front end: makes an EnvIR of an environment class.

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

from headrace.core.source_text import parse
from headrace.kernels.language import kinds
from headrace.kernels.language.declarations import EnvClass, read_declarations
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import MOVER, EnvIR, Field, Param
from headrace.kernels.language.lower import lower
from headrace.kernels.language.scope import PythonObject


def read(cls: type, prints: bool = False) -> EnvIR:
    """The EnvIR of an environment class. Raises EnvError where it cannot be compiled.

    prints: leave calls of print() out, instead of refusing them: for plain Python, which runs the class itself.
    """
    of = _located(cls)
    for name in ("State", "reset", "step"):
        _require(of, name)
    found = read_declarations(of)
    _require(of, "pixel" if found.frames else "observe")
    state, params = _state(of, found.num_agents), _params(of)
    _entity_field(of, found.entities, state)
    lowered = lower(cls, state, params, found, prints)
    taken = 0 if found.frames else len(lowered.functions[-1].node.args.args) - len(lowered.observe_over)
    fills = taken == (3 if found.num_agents == 1 else 4)
    return EnvIR(
        cls=cls, name=cls.__name__, state=state, params=params, observes_into=fills, **vars(found), **vars(lowered)
    )


def resolve_annotations(cls: type) -> None:
    """Replace the annotations of State and Params, where they are strings, by what they name in the class's module, so
    that read() needs no such module: a class of the main script is sent to another process without it.

    Raises EnvError where they name nothing.
    """
    for name in ("State", "Params"):
        owner = getattr(cls, name, object)
        if hasattr(owner, "_fields"):
            owner.__annotations__ = _hints(_located(cls), owner, name)


_EXAMPLES = {
    "State": "class State(NamedTuple): x: f32",
    "reset": "def reset(s, p, key): return State(...)",
    "step": "def step(s, p, action, key): return State(...), reward, terminated",
    "observe": "def observe(s, p): return s.x, s.y",
    "pixel": "def pixel(s, p, row, column): return 255.0 if row > s.x else 0.0",
}


def _require(of: EnvClass, name: str) -> None:
    if not callable(getattr(of.cls, name, None)):
        of.fail(f"{of.cls.__name__} has no {name}", f"Write `{_EXAMPLES[name]}`")


def _located(cls: type) -> EnvClass:
    """A class with its file and line; "<name>" and 0 where there is no source to find."""
    file, node = _definition(cls)
    return EnvClass(cls, file, node.lineno) if node else EnvClass(cls, f"<{cls.__name__}>", 0)


@functools.lru_cache(16)
def _definition(cls: type) -> tuple[str, ast.ClassDef | None]:
    """A class's file and syntax tree. Goes by its functions: a class that was loaded by path may be in no module."""
    own = [item for item in vars(cls).values() if inspect.isfunction(item) and item.__module__ == cls.__module__]
    file = own[0].__code__.co_filename if own else getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    tree = parse("".join(linecache.getlines(file)))
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls.__name__]
    return file, nodes[0] if nodes else None


def _hints(of: EnvClass, owner: type, name: str) -> dict[str, PythonObject]:
    """Resolved annotations of a NamedTuple inside the class, in the user's module or under postponed evaluation."""
    scope = dict(getattr(of.cls.reset, "__globals__", {})) | dict(vars(sys.modules.get(owner.__module__, object)))  # type: ignore[attr-defined]
    try:
        return get_type_hints(owner, scope, dict(vars(of.cls)), include_extras=True)
    except Exception as error:
        wrong = f"an annotation in {name} cannot be resolved ({error})"
        raise EnvError(of.file, of.line, wrong, f"Use {kinds.DTYPES}") from error


def _state(of: EnvClass, num_agents: int) -> tuple[Field, ...]:
    owner = of.cls.State  # type: ignore[attr-defined]
    if not hasattr(owner, "_fields") or not owner._fields:
        of.fail(f"{of.cls.__name__}.State is not a NamedTuple with fields", f"Write `{_EXAMPLES['State']}`")
    hints = _hints(of, owner, "State")
    fields = []
    for name in owner._fields:
        found = kinds.of_annotation(hints.get(name))
        if found is None:
            _at(of, "State", name).fail(f"State.{name} is annotated {_shown(hints.get(name))}", f"Use {kinds.DTYPES}")
        if name == MOVER and num_agents > 1 and found != (kinds.I32, None):
            _at(of, "State", name).fail("State.mover, the agent that moves next, is no i32", "Write `mover: i32`")
        fields.append(Field(name, *found))
    return tuple(fields)


def _entity_field(of: EnvClass, entities: int, state: tuple[Field, ...]) -> None:
    if entities and not any(f.shape and f.shape[0] == entities for f in state):
        wrong = f"num_entities is {entities}, and no field of State is an array with a first size of {entities}"
        of.fail(wrong, f"Write `x: array(f32, {entities})` in State")


def _params(of: EnvClass) -> tuple[Param, ...]:
    owner = getattr(of.cls, "Params", None)
    names = getattr(owner, "_fields", ())
    if not names:
        return ()
    hints = _hints(of, owner, "Params")  # type: ignore[arg-type]
    params = []
    for name in names:
        found, place = kinds.of_annotation(hints.get(name)), _at(of, "Params", name)
        if found is None or found[1] is not None:
            place.fail(f"Params.{name} is annotated {_shown(hints.get(name))}", "Use f32, i32 or boolean")
        if name not in owner._field_defaults:  # type: ignore[union-attr]
            place.fail(f"Params.{name} has no default", f"Write `{name}: {found[0]} = 1.0`")
        params.append(Param(name, found[0], owner._field_defaults[name]))  # type: ignore[union-attr]
    return tuple(params)


def _at(of: EnvClass, owner: str, name: str) -> EnvClass:
    """The class at the line that annotates a field of State or Params; at its own line where that cannot be found."""
    for parent in of.cls.__mro__:
        where, node = _definition(parent) if owner in vars(parent) else ("", None)
        for part in ast.walk(node) if node else ():
            if isinstance(part, ast.ClassDef) and part.name == owner:
                lines = [f.lineno for f in part.body if isinstance(f, ast.AnnAssign) and ast.unparse(f.target) == name]
                return EnvClass(of.cls, where, (lines or [part.lineno])[0])
    return of


def _shown(annotation: PythonObject) -> str:
    return getattr(annotation, "__name__", repr(annotation))
