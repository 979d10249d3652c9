"""Numba's errors in the user's terms: their file and line first, Numba's text last and short."""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Iterator
from types import ModuleType

from headrace.kernels.errors import EnvError
from headrace.kernels.source import Function, Source


@contextlib.contextmanager
def explained(source: Source, module: ModuleType) -> Iterator[None]:
    """Turn what Numba raises in here into an EnvError."""
    from numba.core.errors import NumbaError

    try:
        yield
    except NumbaError as error:
        file, line = _whereabouts(source, module, error)
        text = " ".join(str(error).split())
        raise EnvError(
            file,
            line,
            f"{source.name} cannot be compiled here",
            f"Write it in plain scalar arithmetic and the words of headrace.kernels.words. Numba says: {text[:300]}",
        ) from error


def _whereabouts(source: Source, module: ModuleType, error: Exception) -> tuple[str, int]:
    """The user's file and line behind a line of the generated module; the function `step` where it is not known."""
    generated = getattr(getattr(error, "loc", None), "line", 0)
    made = {n.name: n for n in ast.parse(inspect.getsource(module)).body if isinstance(n, ast.FunctionDef)}
    for function in source.functions:
        lines = dict(_pairs(function, made[function.name]))
        if generated in lines:
            return function.file, lines[generated]
    return source.functions[-2].file, source.functions[-2].line


def _pairs(function: Function, made: ast.FunctionDef) -> Iterator[tuple[int, int]]:
    """(generated line, user's line) of each statement: both trees have the same shape."""
    for written, read in zip(ast.walk(made), ast.walk(function.node), strict=False):
        if isinstance(written, ast.stmt):
            yield written.lineno, read.lineno  # type: ignore[attr-defined]
