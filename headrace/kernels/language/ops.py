"""The words an environment may use, the same on every target.

Types of State and Params fields: f32, i32, i8, u8, i16, u16, u32, boolean, array(dtype, *shape).
Randomness: uniform, randint, normal, bits (key, draw number, ...). Arithmetic, in float32: sin, cos, tan, atan2, sqrt,
exp, log, tanh, power, floor, ceil, absolute, sign, clip, select. Beside these Python's own abs, min, max, int, float.

Called from plain Python they work on NumPy scalars, so that an environment runs un-compiled under a debugger.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import FunctionType

import numpy as np

from headrace.core.source_text import source_text
from headrace.kernels.language import ops_scalar
from headrace.kernels.language.ops_scalar import (
    absolute,
    atan2,
    bits,
    ceil,
    clip,
    cos,
    exp,
    floor,
    log,
    normal,
    power,
    randint,
    select,
    sign,
    sin,
    sqrt,
    tan,
    tanh,
    uniform,
)

f32 = np.float32
i32 = np.int32
i16 = np.int16
i8 = np.int8
u32 = np.uint32
u16 = np.uint16
u8 = np.uint8
boolean = np.bool_


@dataclass(frozen=True)
class Array:
    """An array field of a State: changed in place, one view per environment."""

    dtype: type[np.generic]
    shape: tuple[int, ...]


def array(dtype: type[np.generic], *shape: int) -> Array:
    """What an array field is annotated with: `board: array(i8, 10, 5)`."""
    if not shape or min(shape) < 1:
        raise ValueError(f"array({dtype.__name__}, {', '.join(map(str, shape))}): give at least one size, each above 0")
    return Array(dtype, shape)


CPU = """\
from numba import njit
@njit(error_model="numpy", fastmath=False, forceinline=True)
def _product(a, b):
    return a * b
"""


def prelude(decorator: str, own: str = CPU) -> str:
    """The words as text of a Numba module, `decorator` before each: what compiled environments are written on.

    Names it defines: `np`; F32(x) I32(x) U32(x) U64(x) I16 U16 I8 U8 BOOL, NumPy's types, which convert; every word;
    floor_divide(a, b) and floor_mod(a, b) of floats; and helpers that begin with an underscore.
    own: functions that the target has its own of, which take the place of those in words_scalar. A target owes at
    least `_product(a, b)`, a product that is never fused with a sum: on the CPU a function that says fastmath=False,
    since it would inherit its caller's flags.
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
    """Every function of words_scalar by name, in the order of the file."""
    return {name: item for name, item in vars(ops_scalar).items() if inspect.isfunction(item)}


__all__ = [
    "Array",
    "absolute",
    "array",
    "atan2",
    "bits",
    "boolean",
    "ceil",
    "clip",
    "cos",
    "exp",
    "f32",
    "floor",
    "i8",
    "i16",
    "i32",
    "log",
    "normal",
    "power",
    "prelude",
    "randint",
    "select",
    "sign",
    "sin",
    "sqrt",
    "tan",
    "tanh",
    "u8",
    "u16",
    "u32",
    "uniform",
]
