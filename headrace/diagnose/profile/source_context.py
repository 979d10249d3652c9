"""Facts from the source around a place: the function called there, and whether its loop acts or learns."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from headrace.diagnose.profile.spool import Code, Place

Function = ast.FunctionDef | ast.AsyncFunctionDef
LARGEST = 2_000_000  # characters of a source file that is parsed
NOT_ENVIRONMENTS = (  # parts of the names of other objects with a step()
    *("optim", "sched", "scaler", "writer", "prof", "pbar", "progress"),
    *("counter", "timer", "clock", "accelerat"),
)


class Purpose(Enum):
    """What the code at a place is for."""

    ACT = "act"  # step environments
    LEARN = "learn"


@dataclass
class Scope:
    """A function, or a file's top level, with the lines of the calls that show what it is for."""

    tree: ast.AST
    markers: list[tuple[int, Purpose]] = field(default_factory=list)
    evaluates: bool = False

    def purpose_at(self, line: int) -> Purpose | None:
        """What the code at a line is for: the purpose of the next marker in the innermost loop that has any."""
        loops = [loop for loop in _inside(self.tree) if isinstance(loop, ast.For | ast.While) and _spans(loop, line)]
        for loop in reversed(loops):
            within = [mark for mark in self.markers if _spans(loop, mark[0])]
            if within:
                return next((doing for place, doing in within if place >= line), within[0][1])
        following = [doing for place, doing in self.markers if place >= line]
        return next(iter(following or [doing for _, doing in self.markers]), None)


@cache
def call_at(place: Place) -> str:
    """The name of the function called at a place: "item" for `loss.mean().item()`; "" if unknown or not a call."""
    if None in (place.end_line, place.column, place.end_column):
        return ""
    lines = linecache.getlines(place.code.file)[place.line - 1 : place.end_line]
    if not lines:
        return ""
    text = [line.encode() for line in lines]
    text[-1] = text[-1][: place.end_column]
    text[0] = text[0][place.column :]
    try:
        tree = ast.parse(b"(" + b"".join(text) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    return _called(tree) if isinstance(tree, ast.Call) else ""


@cache
def calls_around(place: Place) -> tuple[str, ...]:
    """Names of the functions called with arguments that contain a place: ("print",) for f in `print(f(x))`."""
    if None in (place.end_line, place.column, place.end_column):
        return ()
    start, end = (place.line, place.column), (place.end_line, place.end_column)
    found = []
    for call in calls_in(place.code.file):
        parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        if any(_begin(part) <= start and end <= _end(part) for part in parts):  # type: ignore[operator]
            found.append(_called(call))
    return tuple(found)


@cache
def calls_in(file: str) -> list[ast.Call]:
    """All calls in a file."""
    return [node for node in ast.walk(syntax_tree(file)) if isinstance(node, ast.Call)]


def _begin(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def text_at(file: str, line: int) -> str:
    """A line of a file, without indentation; "" if it cannot be read."""
    return linecache.getline(file, line).strip()


@cache
def scope(code: Code) -> Scope | None:
    """The scope of a function or a top level; None if its source cannot be read."""
    return _scopes(code.file).get("" if code.name == "<module>" else f"{code.method}:{code.line}")


@cache
def _scopes(file: str) -> dict[str, Scope]:
    """Scopes of a file by "name:line", "" for its top level. A call of a function has the function's purpose."""
    tree = syntax_tree(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    scopes = {"": Scope(tree)} | {
        f"{function.name}:{line}": Scope(function) for function in functions for line in _first_lines(function)
    }
    for each in scopes.values():
        each.evaluates = isinstance(each.tree, Function) and _only_sums(each.tree)
    known: dict[str, Purpose] = {}
    for _ in range(3):  # helpers of helpers of helpers
        for each in scopes.values():
            each.markers = sorted(_markers(each.tree, known))
        known = _function_purposes(functions, scopes)
    return scopes


@cache
def syntax_tree(file: str) -> ast.Module:
    """A file's syntax tree; an empty one if the file is too large or not Python."""
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text if len(text) < LARGEST else "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _function_purposes(functions: list[Function], scopes: dict[str, Scope]) -> dict[str, Purpose]:
    """Name -> purpose of the functions of that name, if they have only one; evaluation has none."""
    purposes: dict[str, set[Purpose]] = {}
    for function in functions:
        own = scopes[f"{function.name}:{function.lineno}"]
        kinds = {Purpose.ACT, Purpose.LEARN} if own.evaluates else {doing for _, doing in own.markers}
        purposes.setdefault(function.name, set()).update(kinds)
    ambiguous = {"step", "reset", "forward", "__init__", "__call__"}
    return {name: next(iter(kinds)) for name, kinds in purposes.items() if len(kinds) == 1 and name not in ambiguous}


def _first_lines(function: Function) -> set[int]:
    """Lines that may be recorded as a function's first: those of its decorators, and of its `def`."""
    return {function.lineno, *(decorator.lineno for decorator in function.decorator_list)}


def _markers(tree: ast.AST, known: dict[str, Purpose]) -> Iterator[tuple[int, Purpose]]:
    for node in _inside(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _called(node)
        if name in ("backward", "zero_grad", "clip_grad_norm_") or (
            name == "grad" and "autograd" in ast.dump(node.func)
        ):
            yield node.lineno, Purpose.LEARN
        elif name in ("step", "step_async", "step_wait", "send", "recv") and _may_step_env(node):
            yield node.lineno, Purpose.ACT
        elif name in known:
            yield node.lineno, known[name]


def _may_step_env(call: ast.Call) -> bool:
    """Whether x.step(...) may step an environment: it has an argument, and x is not named like an optimizer.

    x.send(...) and x.recv() may step one in another process.
    """
    if not isinstance(call.func, ast.Attribute):
        return False
    receiver = ast.unparse(call.func.value).lower()
    complete = bool(call.args) or call.func.attr in ("step_wait", "recv")
    return complete and not any(word in receiver for word in NOT_ENVIRONMENTS)


def _only_sums(function: Function) -> bool:
    """Whether a function steps an environment in a loop and only sums the rewards, as an evaluation does."""
    for loop in _inside(function):
        if not isinstance(loop, ast.For | ast.While):
            continue
        for node in _inside(loop):
            reward = _reward(node)
            if reward and all(_sums(use, reward) for use in _inside(loop) if use is not node and _uses(use, reward)):
                return True
    return False


def _reward(node: ast.AST) -> str:
    """The name of the reward in `obs, reward, ... = env.step(action)`; "" for other statements."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) == "step"):
        return ""
    target = node.targets[0]
    second = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) >= 4 else None
    return second.id if isinstance(second, ast.Name) and _may_step_env(node.value) else ""


def _uses(node: ast.AST, name: str) -> bool:
    """Whether a simple statement reads a name."""
    compound = isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.Try | Function)
    if not isinstance(node, ast.stmt) or compound:
        return False
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def _sums(statement: ast.AST, reward: str) -> bool:
    """`total += reward`, or `total = total + reward`."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        target = ast.unparse(statement.targets[0])
        return isinstance(statement.value.op, ast.Add) and target in ast.unparse(statement.value)
    return False


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _inside(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree in order, without those of functions and classes defined in it."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield child
            yield from _inside(child)


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
