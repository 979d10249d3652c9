"""Loops that do nothing but test a condition again and again: code that waits for others, on a core or asleep."""

from __future__ import annotations

import ast
from functools import cache

from headrace.diagnose.profile.source_context import call_name, syntax_tree
from headrace.diagnose.profile.spool import Place, Stack

ASKING = ("numpy", "threading", "multiprocessing", "ctypes", "time")  # modules whose functions a condition may call
CLOCKS = {f"{name}{unit}" for name in ("time", "monotonic", "perf_counter") for unit in ("", "_ns")}  # of module time
Question = tuple[ast.expr, int, list[ast.stmt]]  # condition, last line, and the statements between two tests


def spins(stack: Stack) -> bool:
    """Tell whether a stack evaluates a loop's condition that is tested again at once, and calls only libraries."""
    place = next((each for each in stack if each.code.module.partition(".")[0] not in ASKING), None)
    return place is not None and any(
        not pause and not isinstance(condition, ast.Constant) and condition.lineno <= place.line <= last
        for condition, last, pause in _questions(place.code.file)
    )


def polls(stack: Stack) -> bool:
    """Tell whether a stack sleeps between two tests of a loop's condition, unless the loop only waits for a time."""
    return any(
        len(pause) == 1 and isinstance(pause[0], ast.Expr) and _is_at(pause[0], stack[0]) and not _is_of_time(condition)
        for condition, _, pause in _questions(stack[0].code.file)
    )


@cache
def _questions(file: str) -> list[Question]:
    """The conditions that loops test: `while not ready: ...`, or within `while True`, `if not ready: ...; continue` and
    `if ready: break`.
    """
    found: list[Question] = []
    for loop in (node for node in ast.walk(syntax_tree(file)) if isinstance(node, ast.While)):
        found.append((loop.test, loop.end_lineno or loop.lineno, _done(loop.body)))
        for index, each in enumerate(loop.body):
            if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Continue):
                found.append((each.test, each.end_lineno or each.lineno, _done(each.body)))
            elif index == 0 and isinstance(each, ast.If) and isinstance(each.body[-1], ast.Break | ast.Return):
                found.append((each.test, each.test.end_lineno or each.lineno, _done(loop.body[1:])))
    return found


def _done(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements other than constants, `pass` and `continue`."""
    constants = (each for each in statements if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    nothing = {*constants, *(each for each in statements if isinstance(each, ast.Pass | ast.Continue))}
    return [each for each in statements if each not in nothing]


def _is_at(statement: ast.stmt, place: Place) -> bool:
    return statement.lineno <= place.line <= (statement.end_lineno or statement.lineno)


def _is_of_time(condition: ast.expr) -> bool:
    """Tell whether a condition depends on a clock alone, or on nothing."""
    if isinstance(condition, ast.BoolOp):
        return all(_is_of_time(each) for each in condition.values)
    calls = {call_name(each) for each in ast.walk(condition) if isinstance(each, ast.Call)}
    return isinstance(condition, ast.Constant) or bool(calls & CLOCKS)
