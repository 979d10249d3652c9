"""Lowered expressions with their kinds, and how to write them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from headrace.kernels.language.kinds import BOOL, F32, I32, U32, Kind

NUMBERS = (BOOL, I32, U32, F32)
CONVERSIONS = {F32: "F32", I32: "I32", U32: "U32", BOOL: "BOOL"}


@dataclass
class Typed:
    """A lowered expression and its kind. A number known now is an ast.Constant, converted where it is used."""

    node: ast.expr
    kind: Kind

    @property
    def constant(self) -> bool:
        """True if its value is known now."""
        return isinstance(self.node, ast.Constant)


def call(name: str, *args: ast.expr) -> ast.Call:
    """name(*args)"""
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def index(node: ast.expr, *indices: ast.expr) -> ast.Subscript:
    """node[i, j]"""
    inner = indices[0] if len(indices) == 1 else ast.Tuple(list(indices), ast.Load())
    return ast.Subscript(node, inner, ast.Load())


def locate(made: ast.AST, source: ast.AST) -> None:
    """Give nodes that lowering made the line of their source. A node with a line is skipped, with all below it."""
    if not hasattr(made, "lineno"):
        ast.copy_location(made, source)
        for child in ast.iter_child_nodes(made):
            locate(child, source)


def pure(*nodes: ast.AST) -> bool:
    """Tell whether these may be computed even if their value is not wanted: they index no array and call no helper."""
    return not any(getattr(part, "guarded", False) for node in nodes for part in ast.walk(node))
