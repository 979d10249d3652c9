"""Loops that do nothing but ask whether something has happened: code that waits for others, on a core or asleep."""

from __future__ import annotations

import ast
from functools import cache

from headrace.diagnose.profile.source_context import syntax_tree
from headrace.diagnose.profile.spool import Stack

ASKING = ("numpy", "threading", "multiprocessing", "ctypes", "time")  # modules whose functions a condition may call
CLOCKS = {f"{name}{unit}" for name in ("time", "monotonic", "perf_counter") for unit in ("", "_ns")}  # of module time


def spins(stack: Stack) -> bool:
    """Tell whether a stack is in the condition of such a loop, and in nothing that it calls but library code.

    That is `while not ready: pass`, `while True: if ready: break`, or `while True: if not ready: continue`.
    """
    for place in stack:
        if place.code.module.partition(".")[0] not in ASKING:
            return any(begin <= place.line <= end for begin, end in _conditions(place.code.file))
    return False


def polls(stack: Stack) -> bool:
    """Tell whether a stack sleeps until it asks again, as in `while not ready: sleep()`; not until a time has come.

    So does `while True: if not ready: sleep(); continue`.
    """
    return any(begin <= stack[0].line <= end for begin, end in _pauses(stack[0].code.file))


@cache
def _pauses(file: str) -> list[tuple[int, int]]:
    """First and last lines of what a file's loops do between two questions, where that is one call."""
    found = []
    for node in ast.walk(syntax_tree(file)):
        if not isinstance(node, ast.While):
            continue
        asking = [each for each in node.body if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Continue)]
        asked = [(each.test, each.body[:-1]) for each in asking] + [(node.test, node.body)]
        for condition, pause in asked:
            if len(pause) == 1 and isinstance(pause[0], ast.Expr | ast.Pass) and not _is_of_time(condition):
                found.append((pause[0].lineno, pause[0].end_lineno or pause[0].lineno))
    return found


def _is_of_time(condition: ast.expr) -> bool:
    """Tell whether a condition depends on a clock alone, or on nothing."""
    if isinstance(condition, ast.BoolOp):
        return all(_is_of_time(each) for each in condition.values)
    names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in ast.walk(condition)}
    return isinstance(condition, ast.Constant) or bool(names & CLOCKS)


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
