"""Lowering of expressions: kinds are inferred, conversions written out, names resolved."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable

import numpy as np

from headrace.kernels.language import kinds
from headrace.kernels.language.ir import Over
from headrace.kernels.language.kinds import BOOL, F32, I32, KEY, PARAMS, STATE, U32, Array, Kind, Tuple, describe
from headrace.kernels.language.program import Program
from headrace.kernels.language.scope import MISSING, PythonObject, Scope
from headrace.kernels.language.typed import CONVERSIONS, NUMBERS, Typed, call, index, locate, pure

DEBUG = "Inspect values in plain Python: headrace.single(cls) under a debugger"
FORBIDDEN: dict[type[ast.AST], tuple[str, str]] = {
    ast.List: ("a list", "Use an array field of State, such as `cells: array(i32, 16)`"),
    ast.ListComp: ("a list", "Use an array field of State and a `for` loop"),
    ast.GeneratorExp: ("a generator", "Use a `for` loop over range()"),
    ast.Dict: ("a dict", "Use fields of State, or an array constant of the module"),
    ast.DictComp: ("a dict", "Use fields of State, or an array constant of the module"),
    ast.Set: ("a set", "Use an array field of State"),
    ast.SetComp: ("a set", "Use an array field of State"),
    ast.JoinedStr: ("a string", DEBUG),
    ast.Lambda: ("a lambda", "Write a function with `def` at module level"),
    ast.NamedExpr: ("`:=`", "Assign on a line of its own"),
    ast.Starred: ("`*`", "Write the values out"),
    ast.Slice: ("a slice", "Write `x[:] = value` for a whole array, else a `for` loop"),
}


class Expressions:
    """Expressions of one function, without calls, which kernels.language.calls adds.

    `kinds` holds what is known of its local names.
    """

    def __init__(self, program: Program, scope: Scope) -> None:
        self.program, self.scope = program, scope
        self.kinds: dict[str, Kind] = {}
        # in a function for one entity: the reductions in it, and what they are called; None: computed where they stand
        self.over: dict[Over, str] | None = None

    def expression(self, node: ast.expr) -> Typed:
        """Lower any expression."""
        typed = self._expression(node)
        locate(typed.node, node)
        return typed

    def _expression(self, node: ast.expr) -> Typed:
        method: Callable[[ast.expr], Typed] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            wrong, instead = FORBIDDEN.get(
                type(node), (f"`{ast.unparse(node)}`", "Write it in plain scalar arithmetic")
            )
            self.scope.fail(node, f"{wrong} cannot be compiled", instead)
        return method(node)

    def cast(self, typed: Typed, kind: Kind, node: ast.AST | None = None) -> ast.expr:
        """The expression converted to a kind; literals are always written with their conversion."""
        if typed.constant and kind in NUMBERS:
            return self._literal(typed.node.value, kind)  # type: ignore[attr-defined]
        if typed.kind == kind:
            return typed.node
        if isinstance(kind, Tuple) and isinstance(typed.kind, Tuple) and len(kind.items) == len(typed.kind.items):
            items = [self.item(typed, k) for k in range(len(kind.items))]
            return ast.Tuple([self.cast(a, b, node) for a, b in zip(items, kind.items, strict=True)], ast.Load())
        if kind in NUMBERS and typed.kind in NUMBERS:
            if kind == BOOL:
                return ast.Compare(typed.node, [ast.NotEq()], [self._literal(0, typed.kind)])
            return call(CONVERSIONS[kind], typed.node)  # type: ignore[index]
        wrong = f"{ast.unparse(node) if node else 'this'} is {describe(typed.kind)}"
        self.scope.fail(node or typed.node, wrong, f"Give {describe(kind)} here")

    def value(self, typed: Typed, node: ast.AST | None = None) -> ast.expr:
        """The expression as its own kind, literals converted."""
        return self.cast(typed, typed.kind, node)

    def number(self, node: ast.expr) -> Typed:
        """Lower an expression that must be a number or a boolean."""
        typed = self.expression(node)
        if typed.kind not in NUMBERS:
            self.scope.fail(node, f"`{ast.unparse(node)}` is {describe(typed.kind)}", "A number is needed here")
        return typed

    def truth(self, node: ast.expr) -> Typed:
        """Lower a condition."""
        typed = self.number(node)
        if typed.constant:
            return Typed(ast.Constant(bool(typed.node.value)), BOOL)  # type: ignore[attr-defined]
        return Typed(self.cast(typed, BOOL), BOOL)

    def item(self, typed: Typed, k: int) -> Typed:
        """Entry k of a tuple, a state or an array."""
        kind = self.items(typed.kind)[k]
        if isinstance(typed.node, ast.Tuple):
            return Typed(typed.node.elts[k], kind)
        if isinstance(typed.kind, Array):
            return self._element(typed, [Typed(ast.Constant(k), I32)], typed.node)
        return Typed(index(copy.deepcopy(typed.node), ast.Constant(k)), kind)

    def items(self, kind: Kind) -> tuple[Kind, ...]:
        """Kinds of the entries of a tuple, a state, the parameters or an array; () for a number."""
        if isinstance(kind, Array):
            rest = kind.shape[1:]
            entry: Kind = Array(kind.dtype, rest, kind.field) if rest else kinds.value_kind(kind.dtype)
            return (entry,) * kind.shape[0]
        if kind == STATE:
            return tuple(f.kind for f in self.program.state)
        if kind == PARAMS:
            return tuple(f.kind for f in self.program.params)
        return kind.items if isinstance(kind, Tuple) else ()

    def joined(self, node: ast.AST, *typed: Typed) -> Kind:
        """The kind that holds all of these."""
        kind: Kind | None = typed[0].kind
        for other in typed[1:]:
            before, kind = kind, kinds.join(kind, other.kind)  # type: ignore[arg-type]
            if kind is None:
                self.scope.fail(
                    node,
                    f"`{ast.unparse(node)}` mixes {describe(before)} and {describe(other.kind)}",  # type: ignore[arg-type]
                    "Both must be numbers, or of one kind",
                )
        return kind  # type: ignore[return-value]

    def _literal(self, value: float, kind: Kind) -> ast.expr:
        if kind == BOOL:
            return ast.Constant(bool(value))
        return call(CONVERSIONS[kind], ast.Constant(float(value) if kind == F32 else int(value)))  # type: ignore[index]

    # Names and constants

    def _constant(self, node: ast.Constant) -> Typed:
        return self.python(node.value, node)

    def _name(self, node: ast.Name) -> Typed:
        found = self.scope.resolve(node)
        if found is not MISSING:
            return self.python(found, node)
        if node.id not in self.kinds:
            self.scope.fail(node, f"{node.id!r} is used before it has a value", "Assign it first")
        return Typed(ast.Name(self.program.local(node.id), ast.Load()), self.kinds[node.id])

    def python(self, value: PythonObject, node: ast.expr) -> Typed:
        """A Python object as a constant: a number, or numbers in an array, tuple or list."""
        shown = f"`{ast.unparse(node)}`"
        if isinstance(value, (bool, np.bool_)):
            return Typed(ast.Constant(bool(value)), BOOL)
        if isinstance(value, (int, np.integer)):
            if not -(2**31) <= value < 2**32:
                self.scope.fail(node, f"{shown} is {value}, beyond 32 bits", "Use a smaller number, or a float")
            return Typed(ast.Constant(int(value)), I32 if value < 2**31 else U32)
        if isinstance(value, (float, np.floating)):
            return Typed(ast.Constant(float(value)), F32)
        if isinstance(value, (np.ndarray, tuple, list)):
            name, kind = self.program.constant(value, self.scope, node)
            return Typed(ast.Name(name, ast.Load()), kind)
        if isinstance(value, str):
            wrong = f"the string {shown} cannot be compiled"
            self.scope.fail(node, wrong, "Use a number, such as an i32 field, instead")
        what = getattr(value, "__name__", type(value).__name__)
        wrong = f"{shown} ({what}) cannot be compiled"
        self.scope.fail(node, wrong, "Use numbers, arrays of numbers and plain functions")

    def _attribute(self, node: ast.Attribute) -> Typed:
        found = self.scope.resolve(node)
        if found is not MISSING:
            return self.python(found, node)
        base = self.expression(node.value)
        if isinstance(base.kind, Array) and node.attr in ("shape", "size"):
            return self._extent(base.kind, node.attr)
        if base.kind not in (STATE, PARAMS):
            wrong = f"`{ast.unparse(node)}`: {describe(base.kind)} has no .{node.attr}"
            self.scope.fail(node, wrong, "Only s and p have fields")
        names = [f.name for f in (self.program.state if base.kind == STATE else self.program.params)]
        if node.attr not in names:
            owner = "State" if base.kind == STATE else "Params"
            self.scope.fail(node, f"{owner} has no field {node.attr!r}", f"It has {', '.join(names) or 'none'}")
        return self.item(base, names.index(node.attr))

    def _extent(self, kind: Array, what: str) -> Typed:
        if what == "size":
            return Typed(ast.Constant(int(np.prod(kind.shape))), I32)
        return Typed(ast.Tuple([ast.Constant(n) for n in kind.shape], ast.Load()), Tuple((I32,) * len(kind.shape)))

    # Operators

    def _unaryop(self, node: ast.UnaryOp) -> Typed:
        if isinstance(node.op, ast.Not):
            return self._negation(self.truth(node.operand))
        typed = self.number(node.operand)
        if isinstance(node.op, ast.Invert) and typed.kind == BOOL:
            return self._negation(typed)
        if typed.constant:
            return self._folded(node, ast.UnaryOp(node.op, typed.node))
        kind = I32 if typed.kind == BOOL else typed.kind
        if isinstance(node.op, ast.Invert) and kind == F32:
            self.scope.fail(node, "`~` of a float", "Use it on integers and booleans")
        return self.arithmetic(ast.UnaryOp(node.op, self.cast(typed, kind)), kind)

    def _negation(self, typed: Typed) -> Typed:
        if typed.constant:
            return Typed(ast.Constant(not typed.node.value), BOOL)  # type: ignore[attr-defined]
        return Typed(ast.BinOp(typed.node, ast.BitXor(), ast.Constant(True)), BOOL)

    def _folded(self, node: ast.expr, operation: ast.expr) -> Typed:
        """An operation on constants, done now in Python's own double precision."""
        try:
            value = eval(compile(ast.fix_missing_locations(ast.Expression(operation)), "constant", "eval"), {})
        except (ArithmeticError, TypeError, ValueError) as error:
            self.scope.fail(node, f"`{ast.unparse(node)}` cannot be computed ({error})", "Correct the constants")
        return self.python(value, node)

    def arithmetic(self, node: ast.expr, kind: Kind) -> Typed:
        """An operation whose result must not be wider than 32 bits."""
        return Typed(node if kind in (F32, BOOL) else call(CONVERSIONS[kind], node), kind)  # type: ignore[index]

    def _binop(self, node: ast.BinOp) -> Typed:
        return self.binary(node, self.number(node.left), self.number(node.right), node.op)

    def binary(self, node: ast.expr, left: Typed, right: Typed, op: ast.operator) -> Typed:
        """left op right, also for `left op= right`."""
        if left.constant and right.constant:
            return self._folded(node, ast.BinOp(left.node, op, right.node))
        kind = self.joined(node, left, right)
        bitwise = isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift))
        if bitwise and kind == F32:
            self.scope.fail(node, f"`{ast.unparse(node)}` has a float", "Bitwise operators take integers and booleans")
        if kind == BOOL and not isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
            kind = I32
        if isinstance(op, ast.Pow):
            return self._power(node, left, right, kind)
        if isinstance(op, ast.Div):
            kind = F32
        a, b = self.cast(left, kind), self.cast(right, kind)
        if isinstance(op, (ast.FloorDiv, ast.Mod)) and kind == F32:
            return Typed(call("floor_divide" if isinstance(op, ast.FloorDiv) else "floor_mod", a, b), F32)
        if isinstance(op, ast.MatMult):
            self.scope.fail(node, "`@` cannot be compiled", "Write the sum out, or a `for` loop")
        return self.arithmetic(ast.BinOp(a, op, b), kind)

    def _power(self, node: ast.expr, left: Typed, right: Typed, kind: Kind) -> Typed:
        exponent = right.node.value if right.constant else None  # type: ignore[attr-defined]
        if exponent in (2, 3, 4) and pure(left.node):
            kind = I32 if left.kind == BOOL else left.kind
            base = Typed(self.cast(left, kind), kind)
            product = base
            for _ in range(int(exponent) - 1):
                product = self.arithmetic(ast.BinOp(product.node, ast.Mult(), copy.deepcopy(base.node)), kind)
            return product
        return Typed(call("power", self.cast(left, F32), self.cast(right, F32)), F32)

    def _compare(self, node: ast.Compare) -> Typed:
        terms = [self.number(n) for n in [node.left, *node.comparators]]
        parts = []
        for op, a, b in zip(node.ops, terms, terms[1:], strict=False):
            if isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
                self.scope.fail(node, f"`{ast.unparse(node)}` cannot be compiled", "Compare with == and |")
            kind = self.joined(node, a, b)
            if a.constant and b.constant:
                parts.append(self._folded(node, ast.Compare(a.node, [op], [b.node])))
                continue
            parts.append(Typed(ast.Compare(self.cast(a, kind), [op], [copy.deepcopy(self.cast(b, kind))]), BOOL))
        return self._both(ast.And(), parts)

    def _boolop(self, node: ast.BoolOp) -> Typed:
        return self._both(node.op, [self.truth(n) for n in node.values])

    def _both(self, op: ast.boolop, terms: list[Typed]) -> Typed:
        """Conditions joined by `and` or `or`; without a branch where all may be computed."""
        decisive = isinstance(op, ast.Or)  # the value that settles the whole
        if any(t.constant and t.node.value is decisive for t in terms):  # type: ignore[attr-defined]
            return Typed(ast.Constant(decisive), BOOL)
        nodes = [t.node for t in terms if not t.constant]
        if not nodes:
            return Typed(ast.Constant(not decisive), BOOL)
        result = nodes[0]
        for other in nodes[1:]:
            if pure(other):
                result = ast.BinOp(result, ast.BitOr() if decisive else ast.BitAnd(), other)
            else:
                result = ast.BoolOp(op, [result, other])
        return Typed(result, BOOL)

    def _ifexp(self, node: ast.IfExp) -> Typed:
        test = self.truth(node.test)
        if test.constant:
            return self.expression(node.body if test.node.value else node.orelse)  # type: ignore[attr-defined]
        body, other = self.expression(node.body), self.expression(node.orelse)
        return self.choose(node, test, body, other)

    def choose(self, node: ast.expr, test: Typed, body: Typed, other: Typed) -> Typed:
        """body if test else other, without a branch where both can be computed."""
        kind = self.joined(node, body, other)
        if not pure(body.node, other.node):
            return Typed(ast.IfExp(test.node, self.cast(body, kind), self.cast(other, kind)), kind)
        if kind in NUMBERS:
            return Typed(call("select", copy.deepcopy(test.node), self.cast(body, kind), self.cast(other, kind)), kind)
        if isinstance(kind, Array) or not self.items(kind):
            if kind == KEY or (isinstance(kind, Array) and kind.field):  # there is only one of each
                return Typed(body.node, kind)
            self.scope.fail(node, f"a choice between two of {describe(kind)}", "Choose between numbers")
        pairs = [(self.item(body, k), self.item(other, k)) for k in range(len(self.items(kind)))]
        return Typed(ast.Tuple([self.choose(node, test, a, b).node for a, b in pairs], ast.Load()), kind)

    def _tuple(self, node: ast.Tuple) -> Typed:
        items = [self.expression(n) for n in node.elts]
        return Typed(ast.Tuple([self.value(t) for t in items], ast.Load()), Tuple(tuple(t.kind for t in items)))

    # Indices

    def _subscript(self, node: ast.Subscript) -> Typed:
        base = self.expression(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return self._element(base, [self.number(n) for n in inner], node)

    def _element(self, base: Typed, indices: list[Typed], node: ast.expr) -> Typed:
        """base[indices]: of an array, or of a tuple by a constant or, where all entries are alike, by a variable."""
        kind = base.kind
        if not isinstance(kind, Array):
            return self._entry(base, indices, node)
        if len(indices) > len(kind.shape):
            wrong = f"{len(indices)} indices into {describe(kind)}"
            self.scope.fail(node, wrong, f"It has {len(kind.shape)} dimensions")
        inner = [self._bounded(i, n, node) for i, n in zip(indices, kind.shape, strict=False)]
        if getattr(base.node, "partial", False):
            earlier = base.node.slice  # type: ignore[attr-defined]
            inner = [*(earlier.elts if isinstance(earlier, ast.Tuple) else [earlier]), *inner]
            base = Typed(base.node.value, kind)  # type: ignore[attr-defined]
        rest = kind.shape[len(indices) :]
        element = index(base.node, *inner)
        element.guarded = True  # type: ignore[attr-defined]
        if rest:
            element.partial = True  # type: ignore[attr-defined]
            return Typed(element, Array(kind.dtype, rest, kind.field))
        stored, wanted = kind.dtype, kinds.value_kind(kind.dtype)
        return Typed(element if stored == wanted else call(CONVERSIONS[wanted], element), wanted)

    def _entry(self, base: Typed, indices: list[Typed], node: ast.expr) -> Typed:
        entries = self.items(base.kind)
        if not entries or len(indices) != 1:
            self.scope.fail(node, f"`{ast.unparse(node)}` takes an index of {describe(base.kind)}", "Index arrays only")
        if indices[0].constant:
            k = indices[0].node.value  # type: ignore[attr-defined]
            if not -len(entries) <= k < len(entries):
                self.scope.fail(node, f"index {k} into {len(entries)} entries", f"Use 0 .. {len(entries) - 1}")
            return self.item(base, k % len(entries))
        if len(set(entries)) > 1:
            wrong = "a variable index into a tuple of mixed kinds"
            self.scope.fail(node, wrong, "Index by a constant, or use an array")
        element = index(base.node, self.cast(indices[0], I32, node))
        element.guarded = True  # type: ignore[attr-defined]
        return Typed(element, entries[0])

    def _bounded(self, typed: Typed, size: int, node: ast.expr) -> ast.expr:
        if typed.kind == F32:
            self.scope.fail(node, f"`{ast.unparse(node)}` has a float as index", "Convert it: int(x)")
        if not typed.constant:
            return self.cast(typed, I32)
        k = typed.node.value  # type: ignore[attr-defined]
        if not -size <= k < size:
            self.scope.fail(node, f"index {k} into {size} entries", f"Use 0 .. {size - 1}")
        return ast.Constant(k % size)
