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


# functions whose call shows that a loop learns: PyTorch's, Lightning's, JAX's, Flax's and Optax's
GRADIENTS = (
    *("backward", "zero_grad", "clip_grad_norm_", "manual_backward"),
    *("value_and_grad", "apply_gradients", "apply_updates"),
)
STEPS = ("step", "step_async", "step_wait", "step_and_maybe_reset", "send", "recv")
KEEPS = ("append", "extend", "add", "push", "put", "store", "insert", "send", "write", "record")  # ... a transition


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
    once: bool = False  # whether it runs only once: a top level, or a function that is called there alone

    def purpose_at(self, line: int) -> Purpose | None:
        """What the code at a line is for: the purpose of the next marker in the innermost loop that has any.

        None for code that runs only once, before the training loop, such as loading data.
        """
        loops = [loop for loop in _loops(self.tree) if _spans(loop, line)]
        for loop in reversed(loops):
            within = [mark for mark in self.markers if _spans(loop, mark[0])]
            if within:
                return next((doing for place, doing in within if place >= line), within[0][1])
        if self.once and any(_has_marker(loop, self.markers) for loop in _loops(self.tree)):
            return None
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
    name = _called(tree) if isinstance(tree, ast.Call) else ""
    return dict(place.code.other_names + place.other_names).get(name, name)


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
    single = _called_once(tree)
    for each in scopes.values():
        each.once = isinstance(each.tree, ast.Module) or getattr(each.tree, "name", "") in single
        each.evaluates = isinstance(each.tree, Function) and _evaluates(each.tree)
    known: dict[str, Purpose] = {}
    for _ in range(5):  # helpers of helpers, and so on
        for each in scopes.values():
            each.markers = sorted(_markers(each.tree, known), key=lambda mark: mark[0])
        known = _function_purposes(tree, functions, scopes)
    return scopes


@cache
def syntax_tree(file: str) -> ast.Module:
    """A file's syntax tree; an empty one if the file is too large or not Python."""
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text if len(text) < LARGEST else "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _function_purposes(tree: ast.Module, functions: list[Function], scopes: dict[str, Scope]) -> dict[str, Purpose]:
    """Name -> purpose of the functions of that name, if they have only one; evaluation has none."""
    purposes: dict[str, set[Purpose]] = {}
    for function in functions:
        own = scopes[f"{function.name}:{function.lineno}"]
        kinds = {Purpose.ACT, Purpose.LEARN} if own.evaluates else {doing for _, doing in own.markers}
        purposes.setdefault(function.name, set()).update(kinds)
    ambiguous = {"step", "reset", "forward", "__init__", "__call__"}
    known = {name: next(iter(kinds)) for name, kinds in purposes.items() if len(kinds) == 1 and name not in ambiguous}
    return known | _renamed(tree, known)


def _renamed(tree: ast.Module, known: dict[str, Purpose]) -> dict[str, Purpose]:
    """Name -> purpose of what is made of a known function, such as `fast = jax.jit(update)`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            names = (part.id for part in node.value.args if isinstance(part, ast.Name) and part.id in known)
            if name := next(names, None):
                found[node.targets[0].id] = known[name]
    return found


def _first_lines(function: Function) -> set[int]:
    """Lines that may be recorded as a function's first: those of its decorators, and of its `def`."""
    return {function.lineno, *(decorator.lineno for decorator in function.decorator_list)}


def _markers(tree: ast.AST, known: dict[str, Purpose]) -> Iterator[tuple[int, Purpose]]:
    for node in _inside(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _called(node)
        if name in GRADIENTS or (name == "grad" and _is_function_of(node, "autograd", "jax")):
            yield node.lineno, Purpose.LEARN
        elif name in STEPS and _may_step_env(node):
            yield node.lineno, Purpose.ACT
        elif name in known:
            yield node.lineno, known[name]
        else:  # handed to another function, such as jax.lax.scan
            handed = (each.id for each in node.args if isinstance(each, ast.Name) and each.id in known)
            yield from ((node.lineno, known[each]) for each in handed)


def _is_function_of(call: ast.Call, *modules: str) -> bool:
    """Whether a function is called by its bare name, or as one of these modules'."""
    return isinstance(call.func, ast.Name) or any(module in ast.unparse(call.func) for module in modules)


def _may_step_env(call: ast.Call) -> bool:
    """Whether x.step(...) may step an environment: it has an argument, and x is not named like an optimizer.

    x.send(...) and x.recv() may step one in another process.
    """
    if not isinstance(call.func, ast.Attribute):
        return False
    receiver = ast.unparse(call.func.value).lower()
    complete = bool(call.args) or call.func.attr in ("step_wait", "recv")
    return complete and not any(word in receiver for word in NOT_ENVIRONMENTS)


def _evaluates(function: Function) -> bool:
    """Whether a function steps an environment in a loop, and nothing is learned from what it sees.

    That is so where rewards are only summed; or where they are ignored, as by CleanRL's evaluate(), and no transition
    is kept or yielded.
    """
    if any(doing is Purpose.LEARN for _, doing in _markers(function, {})):
        return False
    for loop in _inside(function):
        if not isinstance(loop, ast.For | ast.While):
            continue
        for node in _inside(loop):
            reward = _reward(node)
            if not reward:
                continue
            uses = [use for use in _inside(loop) if use is not node and _uses(use, reward)]
            if uses and all(_sums(use, reward) for use in uses):
                return True
            if not uses and not any(_keeps(use, _observation(node)) for use in _inside(loop)):
                return True
    return False


def _observation(node: ast.AST) -> str:
    """The name of the observation in `obs, reward, ... = env.step(action)`."""
    first = node.targets[0].elts[0] if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) else None
    return first.id if isinstance(first, ast.Name) else ""


def _keeps(node: ast.AST, observation: str) -> bool:
    """Whether a node yields, stores under an index, or hands an observation to a container."""
    if isinstance(node, ast.Yield | ast.YieldFrom):
        return True
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return any(isinstance(part, ast.Name) and part.id == observation for part in ast.walk(node.value))
    if isinstance(node, ast.Call) and _called(node) in KEEPS:
        return any(isinstance(part, ast.Name) and part.id == observation for part in ast.walk(node))
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


def _loops(tree: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
    return [node for node in _inside(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While)]


def _has_marker(loop: ast.stmt, markers: list[tuple[int, Purpose]]) -> bool:
    return any(_spans(loop, line) for line, _ in markers)


def _called_once(tree: ast.Module) -> set[str]:
    """Names of the functions that are called at a file's top level, outside its loops, and nowhere else."""
    calls = [_called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    looped = {_called(node) for loop in _loops(tree) for node in _inside(loop) if isinstance(node, ast.Call)}
    top = [_called(node) for node in _inside(tree) if isinstance(node, ast.Call)]
    return {name for name in top if calls.count(name) == 1 and name not in looped}


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
