"""Meaning of a name in a user's function, resolved as Python resolves it."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from types import FunctionType, ModuleType
from typing import Any, NoReturn, TypeAlias

import numpy as np

from headrace.core.source_text import parse
from headrace.kernels.language import ops_scalar
from headrace.kernels.language.errors import EnvError

PythonObject: TypeAlias = Any  # whatever a name in the user's file may stand for
MISSING = object()
# NumPy's and math's names of ops that have another name here; equal names need no entry.
ALIASES = {"arctan2": "atan2", "pow": "power", "where": "select", "fabs": "abs", "absolute": "abs", "fmin": "min"}
ALIASES |= {"minimum": "min", "maximum": "max", "fmax": "max", "float_power": "power", "mod": "floor_mod"}
PYTHON = {abs: "abs", min: "min", max: "max"}


class Scope:
    """One function of the user's: its syntax tree, and the values of the names it does not bind itself."""

    def __init__(self, function: FunctionType, cls: type) -> None:
        self.function, self.cls = function, cls
        self.file = inspect.getsourcefile(function) or "?"
        try:
            lines, self.line = inspect.getsourcelines(function)
        except OSError:
            wrong = f"the source of {function.__name__} cannot be read"
            raise EnvError(self.file, 0, wrong, "Put the class in a file") from None
        # an `if` before a method's text keeps its indentation legal, and its lines where they are
        tree = parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, self.line - 1)
        node = tree.body[0]
        if not isinstance(node, ast.FunctionDef):
            self.fail(node, f"{function.__name__} is not a plain function", "Write it with `def`")
        self.node: ast.FunctionDef = node
        free = function.__code__.co_freevars
        self.closure = dict(zip(free, function.__closure__ or (), strict=True))
        self.locals = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.locals |= {a.arg for a in node.args.args}

    def fail(self, node: ast.AST, wrong: str, instead: str) -> NoReturn:
        """Raise EnvError at a node."""
        raise EnvError(self.file, getattr(node, "lineno", self.line), wrong, instead)

    def resolve(self, node: ast.AST) -> PythonObject:
        """The Python object that a name or a dotted name stands for; MISSING where it begins with a local."""
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            if base is MISSING:
                return MISSING
            if not hasattr(base, node.attr):
                self.fail(node, f"{ast.unparse(node)} does not exist", f"See what {ast.unparse(node.value)} has")
            return getattr(base, node.attr)
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return MISSING
        if node.id in self.closure:
            return self._closed(node)
        scope = self.function.__globals__
        if node.id in scope:
            return scope[node.id]
        if node.id == self.cls.__name__:
            return self.cls
        if hasattr(builtins, node.id):
            return getattr(builtins, node.id)
        instead = "Define or import it in this file"
        if node.id == "self":
            instead = "Environments are plain functions: s is the state, p the parameters"
        elif hasattr(self.cls, node.id):
            instead = f"Write {self.cls.__name__}.{node.id}: a function does not see the names of its class"
        self.fail(node, f"the name {node.id!r} is not defined", instead)

    def _closed(self, node: ast.Name) -> PythonObject:
        try:
            return self.closure[node.id].cell_contents
        except ValueError:
            self.fail(node, f"the name {node.id!r} has no value yet", "Define it before the class")


def op_of(function: PythonObject) -> str | None:
    """The name of the op that a callable means: an op itself, or the same function of math, NumPy or Python."""
    name = getattr(function, "__name__", "")
    if getattr(function, "__module__", None) == ops_scalar.__name__:
        return name
    try:
        if function in PYTHON:
            return PYTHON[function]
    except TypeError:
        return None
    theirs = isinstance(function, np.ufunc) or function in vars(math).values() or getattr(np, name, None) is function
    if not theirs or isinstance(function, (type, ModuleType)):
        return None
    name = ALIASES.get(name, name)
    return name if name in ("abs", "min", "max") or inspect.isfunction(vars(ops_scalar).get(name)) else None
