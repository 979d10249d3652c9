"""State of lowering one environment: its fields, the helpers lowered so far, the arrays that they name."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from headrace.kernels.language import kinds, ops_over, ops_scalar
from headrace.kernels.language.declarations import Declarations
from headrace.kernels.language.ir import Field, Function, Over, Param
from headrace.kernels.language.kinds import Array, Kind
from headrace.kernels.language.scope import PythonObject, Scope
from headrace.kernels.language.typed import CONVERSIONS, Typed

# lowers a call of a user's function: (program, the function, the caller's expressions, the call) -> the call
Helper = Callable[["Program", FunctionType, Any, ast.Call], Typed]

# Names the lowered code speaks of itself: a user's local of that name gets an underscore.
TAKEN = {name for name, item in vars(ops_scalar).items() if inspect.isfunction(item)}
TAKEN |= {f"{function.__name__}_{kind}" for function in ops_over.OVER for kind in ("f32", "i32")} | {
    *CONVERSIONS.values(),
    *["U64", "I16", "U16", "I8", "U8", "abs", "min", "max", "range", "np", "njit", "f32", "i32"],
}


@dataclass
class LoweredHelper:
    """A helper lowered for certain kinds of arguments."""

    function: Function
    returns: Kind
    over: tuple[Over, ...] = ()  # reductions that it takes behind its arguments


class Program:
    """One environment's declarations, and the functions lowered so far."""

    def __init__(
        self, cls: type, state: tuple[Field, ...], params: tuple[Param, ...], declarations: Declarations, helper: Helper
    ) -> None:
        self.cls, self.state, self.params, self.declarations, self.helper = cls, state, params, declarations, helper
        self.made: dict[tuple[FunctionType, tuple[Kind, ...]], LoweredHelper] = {}
        self.open: list[tuple[FunctionType, tuple[Kind, ...]]] = []  # being lowered now, to see recursion
        self.constants: dict[str, np.ndarray] = {}
        self.prints = False  # whether calls of print() are left out, instead of refused

    def local(self, name: str) -> str:
        """Name in the lowered code of a user's local variable."""
        return (
            name + "_"
            if name in TAKEN or name.startswith(("env_", "_part", "_index", "_over")) or name.isupper()
            else name
        )

    def constant(self, value: PythonObject, scope: Scope, node: ast.expr) -> tuple[str, Kind]:
        """A name for an array of numbers, and its kind."""
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)
        dtype = {"f": "f32", "i": "i32", "u": "i32", "b": "bool"}.get(array.dtype.kind)
        if dtype is None or not array.size or array.ndim == 0:
            wrong = f"`{ast.unparse(node)}` is not an array of numbers"
            scope.fail(node, wrong, "Give numbers in rows of equal length")
        array = np.ascontiguousarray(array, kinds.STORAGE[dtype])
        for name, other in self.constants.items():
            if other.dtype == array.dtype and other.shape == array.shape and other.tobytes() == array.tobytes():
                return name, Array(dtype, array.shape)
        name = f"TABLE{len(self.constants)}"
        self.constants[name] = array
        return name, Array(dtype, array.shape)
