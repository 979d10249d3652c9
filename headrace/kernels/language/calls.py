"""Lowering of calls: ops, conversions, the user's own functions, and a new State."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from typing import NoReturn, get_type_hints

from headrace.kernels.language import kinds, ops_scalar
from headrace.kernels.language.expressions import DEBUG, Expressions
from headrace.kernels.language.ir import Over
from headrace.kernels.language.kinds import BOOL, F32, I32, KEY, STATE, U32, Array, describe
from headrace.kernels.language.ops_over import OVER
from headrace.kernels.language.scope import MISSING, PythonObject, op_of
from headrace.kernels.language.typed import Typed, call


class ExpressionsWithCalls(Expressions):
    """Expressions of one function, and the calls in them."""

    def _call(self, node: ast.Call) -> Typed:
        function = self.scope.resolve(node.func)
        if function is MISSING:
            return self._method(node)
        if getattr(function, "_fields", None) == tuple(f.name for f in self.program.state):
            return self._new_state(node)
        if function in OVER:
            return self._over(node, function.__name__)
        op = op_of(function)
        if op in ("abs", "min", "max"):
            return self._builtin(node, op)
        if op:
            return self._op(node, op)
        if function is len:
            return self._length(node)
        conversion = {float: F32, int: I32, bool: BOOL}.get(function) if isinstance(function, type) else None
        found = kinds.of_annotation(function) if isinstance(function, type) else None
        if conversion or found:
            return self._converted(node, conversion or kinds.value_kind(found[0]))  # type: ignore[index]
        if inspect.isfunction(function):
            return self.program.helper(self.program, function, self, node)
        self._unknown_call(node, function)

    def _unknown_call(self, node: ast.Call, function: PythonObject) -> NoReturn:
        name = ast.unparse(node.func)
        if function is print:
            self.scope.fail(node, "print() cannot run in a compiled environment", DEBUG)
        if function is range:
            self.scope.fail(node, "range() outside a `for` statement", "Write `for i in range(n):`")
        if name.split(".")[0] in ("np", "numpy") and name.split(".")[-1] in ("zeros", "ones", "empty", "array", "full"):
            wrong = f"{name}() makes an array, which cannot be compiled"
            self.scope.fail(node, wrong, "Declare an array field in State and fill it")
        if name.split(".")[0] == "random" or ".random" in name:
            self.scope.fail(node, f"{name}() is not reproducible here", "Use uniform(key, 0, low, high) or randint")
        wrong = f"{name}() cannot be compiled"
        self.scope.fail(node, wrong, "Use functions of headrace.ops, or a plain helper function of the module")

    def _method(self, node: ast.Call) -> Typed:
        name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "_replace":
                return self._replaced(node, self.expression(node.func.value))
            if node.func.attr in ("append", "extend", "insert", "pop", "add"):
                self.scope.fail(node, f"{name}() changes a list's length", "Use an array field of State and a counter")
        wrong = f"{name}() cannot be compiled"
        self.scope.fail(node, wrong, "Call functions of headrace.ops or plain functions of the module")

    def _plain_args(self, node: ast.Call, names: list[str], needed: int) -> dict[str, ast.expr]:
        """The arguments by name, positional and keyword."""
        shown = f"{ast.unparse(node.func)}({', '.join(names)})"
        keywords = {k.arg: k.value for k in node.keywords}
        given = dict(zip(names, node.args, strict=False)) | keywords
        if len(node.args) > len(names) or len(given) != len(node.args) + len(keywords) or len(given) < needed:
            count = len(node.args) + len(keywords)
            self.scope.fail(node, f"{ast.unparse(node.func)}() got {count} arguments", f"Call {shown}")
        for name in given:
            if name not in names:
                self.scope.fail(node, f"{ast.unparse(node.func)}() has no argument {name!r}", f"Call {shown}")
        return given  # type: ignore[return-value]

    def _new_state(self, node: ast.Call) -> Typed:
        names = [f.name for f in self.program.state]
        given = self._plain_args(node, names, len(names))
        return self._state_of({name: self.expression(given[name]) for name in names}, given)

    def _replaced(self, node: ast.Call, base: Typed) -> Typed:
        if base.kind != STATE:
            self.scope.fail(node, f"_replace() of {describe(base.kind)}", "Only a State has _replace()")
        names = [f.name for f in self.program.state]
        given = self._plain_args(node, names, 0) if not node.args else self.scope.fail(node, "", "Name the fields")
        values = {name: self.item(base, k) for k, name in enumerate(names)}
        return self._state_of(values | {name: self.expression(n) for name, n in given.items()}, given)

    def _state_of(self, values: dict[str, Typed], nodes: dict[str, ast.expr]) -> Typed:
        elements = []
        for field in self.program.state:
            typed, node = values[field.name], nodes.get(field.name)
            if isinstance(field.kind, Array) and typed.kind != field.kind:
                wrong = f"State's array field {field.name!r} is given {describe(typed.kind)} that is not s.{field.name}"
                self.scope.fail(
                    node or typed.node, wrong, f"Change s.{field.name}[...] in place and pass s.{field.name} on"
                )
            elements.append(self.cast(typed, field.kind, node))
        return Typed(ast.Tuple(elements, ast.Load()), STATE)

    def _builtin(self, node: ast.Call, op: str) -> Typed:
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.expression(argument)
        if node.keywords or len(node.args) != 1 if op == "abs" else node.keywords or len(node.args) < 2:
            self.scope.fail(node, f"`{ast.unparse(node)}`", "Write abs(x), min(a, b), max(a, b)")
        terms = [self.number(n) for n in node.args]
        kind = self.joined(node, *terms)
        kind = I32 if kind == BOOL else kind
        result = Typed(self.cast(terms[0], kind), kind)
        if op == "abs":
            return self.arithmetic(call("abs", result.node), kind)
        for other in terms[1:]:
            result = self.arithmetic(call(op, result.node, self.cast(other, kind)), kind)
        return result

    def _op(self, node: ast.Call, op: str) -> Typed:
        names, parameters, result = signature(op)
        given = self._plain_args(node, list(names), len(names))
        typed = {name: self.expression(given[name]) for name in names}
        free = [typed[name] for name in names if parameters[name] is None and name != "key"]
        shared = self.joined(node, *free) if free else None
        args = []
        for name in names:
            kind = KEY if name == "key" else parameters[name] or shared
            args.append(self.cast(typed[name], kind, given[name]))  # type: ignore[arg-type]
        return Typed(call(op, *args), result or shared)  # type: ignore[arg-type]

    def _over(self, node: ast.Call, op: str) -> Typed:
        """A reduction over all entities; in a function for one entity it becomes one more argument."""
        typed = self.expression(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        entities = self.program.declarations.entities
        known = typed is not None and isinstance(typed.kind, Array) and typed.kind.field is not None
        if not known or typed.kind.shape != (entities,) or typed.kind.dtype == U32:  # type: ignore[union-attr]
            wrong = f"`{ast.unparse(node)}` is not of a field with one number for each entity"
            instead = f"Write {op}(s.x), where State has `x: array(f32, {entities or 64})`"
            self.scope.fail(node, wrong, instead + ("" if entities else " and the class `num_entities = 64`"))
        value = kinds.value_kind(typed.kind.dtype)  # type: ignore[union-attr]
        result = {"any_over": BOOL}.get(op, I32 if op.startswith("arg") or value == BOOL else value)
        op += "_f32" if value == F32 else "_i32"
        field = [f.name for f in self.program.state].index(typed.kind.field)  # type: ignore[union-attr, arg-type]
        if self.over is None:
            return Typed(call(op, typed.node), result)  # type: ignore[union-attr]
        name = self.over.setdefault(Over(op, field), f"_over{len(self.over)}")
        return Typed(ast.Name(name, ast.Load()), result)

    def _length(self, node: ast.Call) -> Typed:
        entries = self.items(self.expression(node.args[0]).kind) if len(node.args) == 1 else ()
        if not entries:
            self.scope.fail(node, f"`{ast.unparse(node)}`", "Give len() one array or tuple")
        return Typed(ast.Constant(len(entries)), I32)

    def _converted(self, node: ast.Call, kind: str) -> Typed:
        if len(node.args) != 1 or node.keywords:
            self.scope.fail(node, f"`{ast.unparse(node)}`", "Give it one number")
        typed = self.number(node.args[0])
        if typed.constant:
            value = typed.node.value  # type: ignore[attr-defined]
            return self.python({F32: float, BOOL: bool}.get(kind, int)(value), node)
        return Typed(self.cast(typed, kind), kind)


@cache
def signature(op: str) -> tuple[tuple[str, ...], dict[str, str | None], str | None]:
    """An op's parameter names, their kinds, and the kind of its result; None where kinds are shared."""
    function = getattr(ops_scalar, op)
    hints = {name: kinds.of_annotation(hint) for name, hint in get_type_hints(function).items()}
    named = {name: kinds.value_kind(found[0]) for name, found in hints.items() if found}
    names = tuple(inspect.signature(function).parameters)
    return names, {name: named.get(name) for name in names}, named.get("return")
