"""Numba's errors in the user's terms: their file and line first, Numba's text last and short."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

from headrace.core.source_text import parse
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import EnvIR, Function


@contextlib.contextmanager
def explained(ir: EnvIR, module: ModuleType) -> Iterator[None]:
    """Turn errors of Numba within this block into an EnvError."""
    from numba.core.errors import NumbaError

    try:
        yield
    except NumbaError as error:
        file, line = _user_location(ir, module, error)
        lines = [text for text in str(error).splitlines() if text and not text.startswith("Failed in nopython mode")]
        wrong = f"{ir.name} cannot be compiled here"
        instead = "Write it in plain scalar arithmetic and functions of headrace.ops"
        raise EnvError(file, line, wrong, f"{instead}. Numba says: {' '.join(lines)[:300]}") from error


def _user_location(ir: EnvIR, module: ModuleType, error: Exception) -> tuple[str, int]:
    """The user's file and line behind the first generated line that Numba names; else the function it names."""
    text = str(error)
    generated = [int(number) for number in re.findall(r"(?:line |\.py \()(\d+)", text)]
    made = {n.name: n for n in parse(inspect.getsource(module)).body if isinstance(n, ast.FunctionDef)}
    for line in generated:
        for function in ir.functions:
            lines = dict(_pairs(function, made[function.name]))
            if line in lines:
                return function.file, lines[line]
    named = [f for f in ir.functions if f"function {f.name} " in text]
    function = (named or ir.functions[-2:])[0]
    return function.file, function.line


def _pairs(function: Function, made: ast.FunctionDef) -> Iterator[tuple[int, int]]:
    """(generated line, user's line) of each statement: both trees have the same shape."""
    for written, read in zip(ast.walk(made), ast.walk(function.node), strict=False):
        if isinstance(written, ast.stmt) and isinstance(read, ast.stmt):
            yield written.lineno, read.lineno
