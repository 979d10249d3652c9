"""The intermediate representation (IR) of an environment, from which each target's module is generated.

headrace.kernels.language.read makes it from a class. All targets share one small language:

- `EnvIR.functions`, helpers first, are ast.FunctionDef to be unparsed: `env_reset(s, p, key)`,
  `env_step(s, p, action, key)`, `env_observe(s, p)` or `env_observe(s, p, out)` (positional, whatever the user
  called them), and helpers `env_NAME`. Arguments and results are plain tuples: s[k] is the k-th field of State, p[k]
  of Params; env_step returns (state tuple, float32, boolean), env_observe a tuple of float32. A Discrete action is an
  int32; MultiDiscrete and Box actions are tuples of int32 or float32. With several agents `action` is a tuple of these,
  one for each, and so is the reward; env_observe takes the agent's number behind p.
- for pixel observations `EnvIR.pixel_functions` has `env_pixel(s, p, row, column)` and its helpers instead of
  env_observe: a float32 gray level, or a tuple of one per channel of a frame.
- with entities, EnvIR.phases and reset_phases name functions `env_K_NAME(s, p, i, action, key, over...)` (action, key
  and reductions only where they are used), to be run for every entity i before any runs of the next phase: those of a
  step before env_step, those of a reset after env_reset. A phase writes entries of entity i only, and reads the fields
  that it writes at entity i only, so the order of the entities does not matter. `sum_over_f32(field)` and its like
  (kernels.language.ops_over; _i32 of fields that are not f32) reduce a field. Where entities are agents,
  env_step(s, p, key) returns (state, field of rewards, boolean), and env_observe takes an entity's number.
- literals and conversions are calls `F32(x) I32(x) U32(x) BOOL(x)`; every integer operation is wrapped in one, so that
  nothing is ever wider than 32 bits; constants of modules and classes are literals, or arrays in `EnvIR.constants`.
- `select(condition, a, b)` for conditional expressions (`a if c else b` stays only where a or b index an array or call
  a helper), `&` and `|` for `and` and `or` likewise, `c ^ True` for `not`; `floor_divide(a, b)`, `floor_mod(a, b)`,
  `power(a, b)` for // % ** of floats; Python's abs, min, max (two arguments of one kind), range; and ops by their
  name in headrace.kernels.language.ops.
- an op is a Python function of kernels.language.ops whose annotations (f32, i32, u32, bool; float and int pass for
  f32 and i32) give the kinds of its parameters and result; parameters without one, and a result without one, share one
  kind. `key` is the tuple (seed, purpose, env, episode, step) of uint32.
"""

from __future__ import annotations

import ast
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from gymnasium.spaces import Discrete

from headrace.core.packages import of_headrace
from headrace.kernels.language import kinds
from headrace.kernels.language.declarations import Declarations

# The word `purpose` of an entity's key: the purpose of the draws, the phase's number + 1, the entity's number
PHASE_BITS, ENTITY_BITS = 8, 16
MOVER = "mover"  # field of State in environments whose agents take turns


@dataclass(frozen=True)
class Field:
    """A field of State. shape None: a scalar."""

    name: str
    dtype: str  # a key of kinds.STORAGE
    shape: tuple[int, ...] | None = None

    @property
    def kind(self) -> kinds.Kind:
        """Kind of the value that reading this field gives."""
        return kinds.value_kind(self.dtype) if self.shape is None else kinds.Array(self.dtype, self.shape, self.name)


@dataclass(frozen=True)
class Param:
    """A field of Params."""

    name: str
    dtype: str
    default: float | int | bool

    @property
    def kind(self) -> kinds.Kind:
        """Kind of the value that reading this parameter gives."""
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
    """The first `if`, `while` or `for` statement, for which batched tensors may have no equivalent."""

    keyword: str
    file: str
    line: int


@dataclass(frozen=True)
class Phase:
    """A function for one entity: `name(s, p, i, *takes, *over)` of EnvIR.functions."""

    name: str
    takes: tuple[str, ...]  # which of "action", "key" it is given
    over: tuple[Over, ...]  # reductions that it uses, computed once, before it runs for any entity


@dataclass(frozen=True)
class Over:
    """A reduction of a field over all entities."""

    op: str  # a function of headrace.kernels.language.ops_over; behind it "_f32", or "_i32" of other fields than f32
    field: int  # which of State


@dataclass(frozen=True)
class Lowered:
    """The functions of an environment, lowered."""

    functions: tuple[Function, ...]  # helpers first; env_reset, env_step, env_observe last
    pixel_functions: tuple[Function, ...]  # helpers first, env_pixel last; none where there is an env_observe
    constants: Mapping[str, np.ndarray] = field(hash=False)  # arrays that the functions name
    statement: Statement | None
    phases: tuple[Phase, ...]  # of a step, before env_step; none without entities
    reset_phases: tuple[Phase, ...]  # after env_reset
    rewards: str  # the field of State in which env_step returns the rewards of entities; "" where it returns numbers
    observe_over: tuple[Over, ...]  # reductions that env_observe of an entity takes behind its other arguments


@dataclass(frozen=True)
class EnvIR(Declarations, Lowered):
    """One environment, read and lowered: all a target needs to know."""

    cls: type
    name: str
    state: tuple[Field, ...]
    params: tuple[Param, ...]
    observes_into: bool  # observe(s, p, out) fills `out`

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
        """Array fields, each kept in an array of its own, one view per environment."""
        return tuple(f for f in self.state if f.shape is not None)

    def announcement(self, where: str) -> str:
        """Message for the time of compiling. where: "for the CPU"."""
        said = f"compiling {self.name} {where} (once, about 5 s) ..."
        if of_headrace(self.cls.step):  # type: ignore[attr-defined]
            return said
        check = f"headrace check {shlex.quote(f'{self.functions[-1].file}:{self.name}')}"
        return f"{said} it will run without a check of indices and loops: `{check}` has one"

    @property
    def action_size(self) -> int | None:
        """Entries of an action; None for a Discrete one."""
        return None if isinstance(self.action_space, Discrete) else int(self.action_space.shape[0])  # type: ignore[index]

    @cached_property
    def code(self) -> str:
        """The lowered functions as Python text."""
        return _text(self.functions)

    @cached_property
    def pixel_code(self) -> str:
        """The lowered functions that draw, as Python text."""
        return _text(self.pixel_functions)

    @cached_property
    def digest(self) -> str:
        """A hash of everything reachable: functions, constants, fields, defaults, spaces."""
        parts = [self.name, self.code, self.pixel_code, repr(self.state), repr(self.params), repr(self.max_steps)]
        parts += [repr(self.observation_space), repr(self.action_space), repr(self.frames), repr(self.agents)]
        if self.entities:
            parts += [repr(self.entities), repr(self.phases), repr(self.reset_phases), repr(self.observe_over)]
        parts += [f"{name} {array.dtype} {array.tolist()}" for name, array in self.constants.items()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _text(functions: tuple[Function, ...]) -> str:
    return "\n\n".join(ast.unparse(ast.fix_missing_locations(f.node)) for f in functions)
