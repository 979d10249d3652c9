"""The functions and types that an environment may use (headrace.ops), the same on every target.

Types of State and Params fields: f32, i32, i8, u8, i16, u16, u32, boolean; in State also array(dtype, *shape).
Random draws, by key and draw number: uniform, randint, normal, bits. Arithmetic, in float32: sin, cos, tan, atan2,
sqrt, exp, log, tanh, power, floor, ceil, absolute, sign, clip, select. Python's abs, min, max, len, int, float and bool
work too. Over the entities of an environment: sum_over, min_over, max_over, argmin_over, argmax_over, any_over.

Called from plain Python they work on NumPy scalars, so that an environment runs un-compiled under a debugger.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import FunctionType

import numpy as np

from headrace.core.source_text import source_text
from headrace.kernels.language import ops_scalar
from headrace.kernels.language.ops_over import (  # noqa: F401
    any_over,
    argmax_over,
    argmin_over,
    max_over,
    min_over,
    sum_over,
    within,
)
from headrace.kernels.language.ops_scalar import *  # noqa: F403  all ops, f32, i32 and u32; each is written once

i16 = np.int16
i8 = np.int8
u16 = np.uint16
u8 = np.uint8
boolean = np.bool_


@dataclass(frozen=True)
class Array:
    """An array field of a State: changed in place, with one view per environment."""

    dtype: type[np.generic]
    shape: tuple[int, ...]


def array(dtype: type[np.generic], *shape: int) -> Array:
    """The annotation of an array field: `board: array(i8, 10, 5)`."""
    if not shape or min(shape) < 1:
        raise ValueError(f"array({dtype.__name__}, {', '.join(map(str, shape))}): give at least one size, each above 0")
    return Array(dtype, shape)


# of functions that other kernels call, and Python does not: half the time to compile a small one is its wrappers
INNER = "no_cpython_wrapper=True, no_cfunc_wrapper=True"
CPU = f"""\
from numba import njit
@njit(error_model="numpy", fastmath=False, forceinline=True, {INNER})
def _product(a, b):
    return a * b
"""


def prelude(decorator: str, own: str = CPU) -> str:
    """The ops as text of a Numba module, each under `decorator`; compiled environments call them.

    Names it defines: `np`; F32(x) I32(x) U32(x) U64(x) I16 U16 I8 U8 BOOL, NumPy's types, which convert; every op;
    floor_divide(a, b) and floor_mod(a, b) of floats; and helpers that begin with an underscore.
    own: the target's own functions, which replace those of ops_scalar. A target must define `_product(a, b)`, a
    product that is never fused with a sum: on the CPU with fastmath=False, because an inlined function inherits its
    caller's flags.
    """
    kept = [function for name, function in functions().items() if f"def {name}(" not in own]
    return "\n\n".join([CONVERSIONS + own, *(f"{decorator}\n{source_text(function)}" for function in kept)])


CONVERSIONS = """\
import numpy as np
F32, I32, U32, U64 = np.float32, np.int32, np.uint32, np.uint64
I16, U16, I8, U8, BOOL = np.int16, np.uint16, np.int8, np.uint8, np.bool_
f32, i32, u32 = F32, I32, U32
"""


def functions() -> dict[str, FunctionType]:
    """Every function of ops_scalar by name, in the order of the file."""
    return {name: item for name, item in vars(ops_scalar).items() if inspect.isfunction(item)}
