"""The front end: an environment class -> Source, from which each target's module is generated.

`read(cls)` finds reset, step, observe or pixel and every helper they reach, resolves names as Python does, infers kinds
(headrace.kernels.language.kinds) and lowers the functions to a small language that all targets share:

- `Source.functions`, helpers first, are ast.FunctionDef to be unparsed: `env_reset(s, p, key)`,
  `env_step(s, p, action, key)`, `env_observe(s, p)` or `env_observe(s, p, out)` (positional, whatever the user
  called them), and helpers `env_NAME`. Arguments and results are plain tuples: s[k] is the k-th field of State, p[k]
  of Params; env_step returns (state tuple, float32, boolean), env_observe a tuple of float32. A Discrete action is an
  int32; MultiDiscrete and Box actions are tuples of int32 or float32. With several agents `action` is a tuple of these,
  one for each, and so is the reward; env_observe takes the agent's number behind p.
- where observations are pictures, `Source.picture` has `env_pixel(s, p, row, column)` and its helpers instead of
  env_observe: a float32 grey, or a tuple of one for each channel of a frame.
- literals and conversions are calls `F32(x) I32(x) U32(x) BOOL(x)`; every integer operation is wrapped in one, so that
  nothing is ever wider than 32 bits; constants of modules and classes are literals, or arrays in `Source.constants`.
- `select(condition, a, b)` for conditional expressions (`a if c else b` stays only where a or b index an array or call
  a helper), `&` and `|` for `and` and `or` likewise, `c ^ True` for `not`; `floor_divide(a, b)`, `floor_mod(a, b)`,
  `power(a, b)` for // % ** of floats; Python's abs, min, max (two arguments of one kind), range; and words by their
  name in headrace.kernels.language.ops.
- a word is a Python function of kernels.language.ops whose annotations (f32, i32, u32, bool; float and int pass for
  f32 and i32) give the kinds of its parameters and result; parameters without one, and a result without one, share one
  kind. `key` is the tuple (seed, purpose, env, episode, step) of uint32.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_type_hints

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from headrace.kernels.language import kinds
from headrace.kernels.language.declarations import declared
from headrace.kernels.language.errors import EnvError


@dataclass(frozen=True)
class Field:
    """A field of State. shape None: a scalar."""

    name: str
    dtype: str  # a key of kinds.STORAGE
    shape: tuple[int, ...] | None = None

    @property
    def kind(self) -> kinds.Kind:
        """What reading this field gives."""
        return kinds.value_kind(self.dtype) if self.shape is None else kinds.Array(self.dtype, self.shape, self.name)


@dataclass(frozen=True)
class Param:
    """A field of Params."""

    name: str
    dtype: str
    default: float | int | bool

    @property
    def kind(self) -> kinds.Kind:
        """What reading this parameter gives."""
        return kinds.value_kind(self.dtype)


@dataclass(frozen=True)
class Function:
    """A lowered function, and where the user wrote it. Nodes keep the user's line numbers."""

    name: str
    node: ast.FunctionDef
    file: str
    line: int


@dataclass(frozen=True)
class Statement:
    """The first `if`, `while` or `for` statement reached: what batched tensors cannot run."""

    word: str
    file: str
    line: int


@dataclass(frozen=True)
class Source:
    """One environment, read and lowered: all a target needs to know."""

    cls: type
    name: str
    state: tuple[Field, ...]
    params: tuple[Param, ...]
    observation_space: Box
    action_space: Space
    max_steps: int | None
    frames: int  # pictures stacked in an observation; 0 where observations are not pictures
    agents: tuple[str, ...]  # their names, in the order of their columns
    groups: Mapping[str, tuple[str, ...]] = field(hash=False)  # name -> agents that share a policy
    observes_into: bool  # observe(s, p, out) fills `out`
    functions: tuple[Function, ...]  # helpers first; env_reset, env_step, env_observe last
    picture: tuple[Function, ...]  # helpers first, env_pixel last; none where there is an env_observe
    constants: Mapping[str, np.ndarray] = field(hash=False)  # arrays that the functions name
    statement: Statement | None

    @cached_property
    def floats(self) -> tuple[Field, ...]:
        """Scalar fields kept in the float32 pack [S, N]."""
        return tuple(f for f in self.state if f.shape is None and f.dtype == kinds.F32)

    @cached_property
    def integers(self) -> tuple[Field, ...]:
        """Scalar fields kept in the int32 pack [S, N]: integers, u32 by its bits, booleans as 0 and 1."""
        return tuple(f for f in self.state if f.shape is None and f.dtype != kinds.F32)

    @cached_property
    def arrays(self) -> tuple[Field, ...]:
        """Array fields, each kept in an array of its own, one view per world."""
        return tuple(f for f in self.state if f.shape is not None)

    @property
    def num_agents(self) -> int:
        """How many agents share a world."""
        return len(self.agents)

    @property
    def channels(self) -> int:
        """Greys that a pixel has in one frame."""
        shape = self.observation_space.shape
        return shape[0] // self.frames if len(shape) == 3 else 1

    @property
    def action_size(self) -> int | None:
        """Entries of an action; None for a Discrete one."""
        return None if isinstance(self.action_space, Discrete) else int(self.action_space.shape[0])  # type: ignore[index]

    @cached_property
    def code(self) -> str:
        """The lowered functions as Python text."""
        return _text(self.functions)

    @cached_property
    def picture_code(self) -> str:
        """The lowered functions that draw, as Python text."""
        return _text(self.picture)

    @cached_property
    def digest(self) -> str:
        """A hash of everything reachable: functions, constants, fields, defaults, spaces."""
        parts = [self.name, self.code, self.picture_code, repr(self.state), repr(self.params), repr(self.max_steps)]
        parts += [repr(self.observation_space), repr(self.action_space), repr(self.frames), repr(self.agents)]
        parts += [f"{name} {array.dtype} {array.tolist()}" for name, array in self.constants.items()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read(cls: type) -> Source:
    """The Source of an environment class. Raises EnvError where it cannot be compiled."""
    from headrace.kernels.language.lower import lower

    file, line = whereabouts(cls)
    for name in ("State", "reset", "step"):
        _owed(cls, name, file, line)
    told = declared(cls, file, line)
    _owed(cls, "pixel" if told.frames else "observe", file, line)
    state = _state(cls, file, line)
    params = _params(cls, file, line)
    lowered = lower(cls, state, params, told)
    arguments = len(lowered.functions[-1].node.args.args)
    return Source(
        cls=cls,
        name=cls.__name__,
        state=state,
        params=params,
        observation_space=told.observation_space,
        action_space=told.action_space,
        max_steps=told.max_steps,
        frames=told.frames,
        agents=told.agents,
        groups=told.groups,
        observes_into=not told.frames and arguments == (3 if len(told.agents) == 1 else 4),
        functions=lowered.functions,
        picture=lowered.picture,
        constants=lowered.constants,
        statement=lowered.statement,
    )


_OWED = {
    "State": "class State(NamedTuple): x: f32",
    "reset": "def reset(s, p, key): return State(...)",
    "step": "def step(s, p, action, key): return State(...), reward, terminated",
    "observe": "def observe(s, p): return s.x, s.y",
    "pixel": "def pixel(s, p, row, column): return 255.0 if row > s.x else 0.0",
}


def _owed(cls: type, name: str, file: str, line: int) -> None:
    if not callable(getattr(cls, name, None)):
        raise EnvError(file, line, f"{cls.__name__} has no {name}", f"Write `{_OWED[name]}`")


def _text(functions: tuple[Function, ...]) -> str:
    return "\n\n".join(ast.unparse(ast.fix_missing_locations(f.node)) for f in functions)


def whereabouts(cls: type) -> tuple[str, int]:
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


def _hints(cls: type, owner: type, name: str, file: str, line: int) -> dict[str, Any]:
    """Resolved annotations of a NamedTuple inside the class, in the user's module or under postponed evaluation."""
    scope = dict(getattr(cls.reset, "__globals__", {})) | dict(vars(sys.modules.get(owner.__module__, object)))  # type: ignore[attr-defined]
    try:
        return get_type_hints(owner, scope, dict(vars(cls)), include_extras=True)
    except Exception as error:
        raise EnvError(
            file, line, f"an annotation in {name} cannot be resolved ({error})", f"Use {kinds.DTYPES}"
        ) from error


def _state(cls: type, file: str, line: int) -> tuple[Field, ...]:
    owner = cls.State  # type: ignore[attr-defined]
    if not hasattr(owner, "_fields") or not owner._fields:
        raise EnvError(file, line, f"{cls.__name__}.State is not a NamedTuple with fields", f"Write `{_OWED['State']}`")
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
            raise EnvError(
                where, at, f"Params.{name} is annotated {_shown(hints.get(name))}", "Use f32, i32 or boolean"
            )
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


def _shown(annotation: Any) -> str:
    return getattr(annotation, "__name__", repr(annotation))
