"""Loops that do nothing but ask whether something has happened: code that waits for another process, on a core."""

from __future__ import annotations

import ast
from functools import cache

from headrace.diagnose.profile.source_context import syntax_tree
from headrace.diagnose.profile.spool import Stack

ASKING = ("numpy", "threading", "multiprocessing", "ctypes", "time")  # modules whose functions a condition may call


def spins(stack: Stack) -> bool:
    """Tell whether a stack is in the condition of such a loop, and in nothing that it calls but library code.

    That is `while not ready: pass`, `while True: if ready: break`, or `while True: if not ready: continue`.
    """
    for place in stack:
        if place.code.module.partition(".")[0] not in ASKING:
            return any(begin <= place.line <= end for begin, end in _conditions(place.code.file))
    return False


@cache
def _conditions(file: str) -> list[tuple[int, int]]:
    """First and last lines of the conditions of a file's loops that spin."""
    found = []
    for node in ast.walk(syntax_tree(file)):
        if not isinstance(node, ast.While):
            continue
        first, endless = node.body[0], isinstance(node.test, ast.Constant) and bool(node.test.value)
        if not endless:
            if all(_does_nothing(each) for each in node.body):
                found.append((node.lineno, node.end_lineno or node.lineno))
        elif isinstance(first, ast.If) and not first.orelse:
            goes_on = all(isinstance(each, ast.Continue) for each in first.body)
            rest = all(_does_nothing(each) for each in node.body[1:])
            if goes_on or (rest and isinstance(first.body[-1], ast.Break | ast.Return)):
                end = first.end_lineno if goes_on else first.test.end_lineno  # a jump back has the line of `continue`
                found.append((node.lineno, end or first.lineno))
    return found


def _does_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Continue)
