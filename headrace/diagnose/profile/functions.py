"""Facts from the syntax trees of functions: their keys, parameters, variables and loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

Position = tuple[str, int, int | None, int | None, int | None]  # file, line, column, and those of the end
Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While


def key_of(file: str, function: Function) -> str:
    """The key of a function: file, name and first line, which is that of its first decorator."""
    return f"{file}:{function.name}:{min([function.lineno, *(each.lineno for each in function.decorator_list)])}"


def parameters(function: Function) -> list[str]:
    """The names of a function's positional parameters, without a method's object."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def required(function: Function) -> list[str]:
    """The names of a function's positional parameters that have no default value."""
    names = parameters(function)
    return names[: len(names) - len(function.args.defaults)]


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def position_of(expression: ast.AST, file: str) -> Position:
    ends = (getattr(expression, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
    return file, *ends  # type: ignore[return-value]


def is_resumable(function: Function) -> bool:
    """Tell whether a call of a function returns a generator or a coroutine, whose code runs later."""
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside(function))
    return yields or isinstance(function, ast.AsyncFunctionDef)


def is_resumed(call: ast.Call, function: Function) -> bool:
    """Tell whether a call resumes a generator, as next(it) and it.send(x) do, rather than calling its function."""
    return name_of(call.func) != function.name and is_resumable(function)


def assigned(function: Function) -> set[str]:
    """The names of a function's own variables."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    found, elsewhere = {each.arg for each in every if each}, set()
    for node in inside(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            elsewhere.update(node.names)
        elif isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
    return found - elsewhere


def inside(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without those of functions and classes defined in it."""
    for child in ast.iter_child_nodes(tree):
        yield child
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield from inside(child)


@cache
def loops_at(tree: ast.AST, line: int) -> list[Loop]:
    """The loops of a scope around a line, the outermost first."""
    return [node for node in inside(tree) if isinstance(node, Loop) and node.lineno <= line <= (node.end_lineno or 0)]
