"""Text of lane versions of lowered functions, which do the same for several entities at once.

Where lanes may take different ways, both are computed and one is chosen: `a if c else b` becomes lane_select(c, a, b),
and `if c: x = y` becomes x = lane_select(c, y, x). A function with a `while`, a `break`, an early `return` or a loop
whose length differs between entities has no lane version: its phase runs one entity at a time.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping
from pathlib import Path

from headrace.core.source_text import source_text
from headrace.kernels.language.ir import EnvIR, Function
from headrace.kernels.language.ops import functions
from headrace.kernels.language.typed import call
from headrace.kernels.targets.episode_text import function as function_text

# what kernels.targets.cpu.lane_ops has
OWN = ("F32", "I32", "U32", "U64", "BOOL", "select", "sqrt", "abs", "_as_int", "_as_float")
SCALAR = ("power",)  # has no lane version
IMPORTED = ("lane_ops", "lane_memory")
COMBINED = {
    "_product(a, b)": "a * b",
    "min(a, b)": "lane_select(b < a, b, a)",
    "max(a, b)": "lane_select(b > a, b, a)",
}
STARTS = {
    "sum": ("lane_{0}(a + b)", {"f32": "F32(0.0)", "i32": "I32(0)"}),
    "min": ("lane_select(b < a, b, a)", {"f32": "F32(np.inf)", "i32": f"I32({2**31 - 1})"}),
    "max": ("lane_select(b > a, b, a)", {"f32": "F32(-np.inf)", "i32": f"I32({-(2**31)})"}),
}
OVER = """\
{decorator}
def _{op}_{kind}(a, b):
    return {combine}


{decorator}
def {op}_over_{kind}(values):
    parts = lane_first(values, np.uint64(0), {start})
    for k in range(np.uint64(16), np.uint64(values.shape[0]), np.uint64(16)):
        parts = _{op}_{kind}(parts, lane_first(values, k, {start}))
    parts = _{op}_{kind}(parts, lane_shifted(parts, 8))
    parts = _{op}_{kind}(parts, lane_shifted(parts, 4))
    parts = _{op}_{kind}(parts, lane_shifted(parts, 2))
    parts = _{op}_{kind}(parts, lane_shifted(parts, 1))
    return lane_number(parts)
"""


class NoLanes(Exception):
    """A function has no lane version."""


def lane_functions(
    ir: EnvIR, names: list[str], decorator: str, version: type[LaneVersion]
) -> tuple[list[str], set[str]]:
    """Text of the lane versions of these functions and of what they call; and which of them have one. They need
    lane_text()."""
    by_name = {function.name: function for function in ir.functions}
    made: dict[str, str] = {}
    failed: set[str] = set()

    def make(name: str) -> None:
        if name in made or name in failed:
            return
        try:
            node = version(by_name[name], ir, set(by_name)).function()
            called = {n.id.removeprefix(version.prefix) for n in ast.walk(node) if isinstance(n, ast.Name)} & set(
                by_name
            )
            for other in called - {name}:
                make(other)
            if called & failed:
                raise NoLanes
            made[name] = f"{decorator}\n{ast.unparse(ast.fix_missing_locations(node))}"
        except NoLanes:
            failed.add(name)

    for name in names:
        make(name)
    having = {name for name in names if name in made}
    return (list(made.values()) if having else []), having


def _reductions(decorator: str) -> str:
    """The reductions of headrace.kernels.targets.over_text, 16 entities at a time, with the same bits."""
    made = []
    for kind, convert in (("f32", "F32"), ("i32", "I32")):
        for op, (combine, starts) in STARTS.items():
            names = {"decorator": decorator, "op": op, "kind": kind, "start": starts[kind]}
            made.append(OVER.format(**names, combine=combine.format(convert)))
    return "\n\n".join(made)


def lane_text(decorator: str) -> list[str]:
    """Text of the functions that lane versions call, with a hash of the code that it imports, for the cache."""
    from hashlib import sha256

    sources = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in ("lane_types", *IMPORTED)]
    digest = sha256(b"".join(sources)).hexdigest()[:16]
    imports = [f"from headrace.kernels.targets.cpu.{name} import *  # {digest}" for name in IMPORTED]
    return ["\n".join(imports), _reductions(decorator), *_ops(decorator)]


def _ops(decorator: str) -> list[str]:
    """Lane versions of all ops: their code has no branch, so only names change."""
    made = [function_text(decorator, f"lane_{head}", [f"return {result}"]) for head, result in COMBINED.items()]
    kept = {name: op for name, op in functions().items() if name not in (*OWN, *SCALAR, "_product")}
    names = "|".join([*OWN, *kept, "_product", "min", "max"])
    for op in kept.values():
        head, *body = source_text(op).split("\n")
        head = re.sub(r": [a-z]\w*(?=[,)])|->.*(?=:)", "", head)  # annotations
        text = "\n".join([head, *body])
        made.append(f"{decorator}\n" + re.sub(rf"(?<![\w.])({names})\(", r"lane_\1(", text))
    return made


class LaneVersion:
    """One function's lane version, called lane_NAME, for several entities of one environment. Names whose numbers may
    differ between lanes are `varying`."""

    prefix = "lane_"

    def __init__(self, function: Function, ir: EnvIR, others: set[str]) -> None:
        self.ir, self.node, self.others = ir, copy.deepcopy(function.node), others
        arguments = [argument.arg for argument in self.node.args.args]
        entity = [phase for phase in (*ir.phases, *ir.reset_phases) if phase.name == function.name]
        if entity or function.name == "env_observe":
            same = {"grid"} if ir.entity_agents else {"grid", "action"}
            over = len(entity[0].over if entity else ir.observe_over)
            known = {*arguments[:2], *(arguments[-over:] if over else ())}
            taken = dict(zip(arguments[3:], entity[0].takes if entity else (), strict=False))
            self.varying = {a for a in arguments if a not in known and taken.get(a) not in same}
        else:  # a helper, whose arguments may be anything: s and p are seen from how they are read
            self.varying = set(arguments)
        self.count = 0
        self.defined: set[str] = set()  # names that have a value at this place of the text, in all lanes
        stored = [n for n in ast.walk(self.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.assigned = {name.id for name in stored}

    def function(self) -> ast.FunctionDef:
        """The lane version. Raises NoLanes."""
        while True:  # until it is known which names vary
            before = set(self.varying)
            self.defined = {argument.arg for argument in self.node.args.args}
            body = self.block(copy.deepcopy(self.node.body), None)
            if before == self.varying:
                break
        made = ast.FunctionDef(f"{self.prefix}{self.node.name}", self.node.args, body or [ast.Pass()], [])
        made.args = ast.arguments([], [ast.arg(a.arg) for a in self.node.args.args], None, [], [], None, [])
        return made

    def varies(self, node: ast.AST) -> bool:
        """Tell whether a value may differ between entities."""
        return any(isinstance(part, ast.Name) and part.id in self.varying for part in ast.walk(node))

    def block(self, statements: list[ast.stmt], mask: ast.expr | None) -> list[ast.stmt]:
        """Statements, for those lanes alone where the mask holds; None: all."""
        made: list[ast.stmt] = []
        for k, statement in enumerate(statements):
            rest = statements[k + 1 :]
            if isinstance(statement, ast.If) and rest and self._skips(statement):
                inverse = ast.BinOp(statement.test, ast.BitXor(), ast.Constant(True))
                if isinstance(statement.body[0], ast.Return) and isinstance(rest[-1], ast.Return) and len(rest) == 1:
                    both = ast.IfExp(statement.test, statement.body[0].value, rest[0].value)  # type: ignore[arg-type, attr-defined]
                    return [*made, *self.statement(ast.Return(both), mask)]
                if isinstance(statement.body[0], ast.Continue):
                    return [*made, *self.statement(ast.If(inverse, rest, []), mask)]
            made += self.statement(statement, mask)
        return made

    def statement(self, node: ast.stmt, mask: ast.expr | None) -> list[ast.stmt]:
        """One statement."""
        match node:
            case ast.Assign(targets=[ast.Name() as name]):
                return [self.assign(name, node.value, mask)]
            case ast.Assign(targets=[ast.Subscript() as place]):
                return [self.store(place, node.value, mask)]
            case ast.If():
                return self.branch(node, mask)
            case ast.For() if not self.varies(node.iter) and isinstance(node.target, ast.Name):
                self.defined.add(node.target.id)
                return [ast.For(node.target, self.value(node.iter), self.block(node.body, mask), [])]
            case ast.Return() if mask is None:
                return [ast.Return(node.value and self.value(node.value))]
            case ast.Expr():
                return [ast.Expr(self.value(node.value))]
            case ast.Pass():
                return []
        raise NoLanes

    def assign(self, name: ast.Name, value: ast.expr, mask: ast.expr | None) -> ast.stmt:
        """name = value, in those lanes."""
        if self.varies(value) or mask is not None:
            self.varying.add(name.id)
        made = self.value(value, mask is not None)
        if mask is not None and name.id in self.defined:
            made = call("lane_select", mask, made, ast.Name(name.id, ast.Load()))
        self.defined.add(name.id)
        return ast.Assign([name], made, lineno=0)

    def store(self, place: ast.Subscript, value: ast.expr, mask: ast.expr | None) -> ast.stmt:
        """array[index] = value, in those lanes."""
        index = self.value(place.slice)
        made = self.value(value, mask is not None)
        if not self.varies(place.slice):
            raise NoLanes
        if mask is not None:
            made = call("lane_select", mask, made, call("lane_get", copy.deepcopy(place.value), copy.deepcopy(index)))
        return ast.Expr(call("lane_set", place.value, index, made))

    def branch(self, node: ast.If, mask: ast.expr | None) -> list[ast.stmt]:
        """if test: ... else: ..."""
        if not self.varies(node.test) and mask is None:
            body = self.block(node.body, None)
            return [ast.If(self.value(node.test), body or [ast.Pass()], self.block(node.orelse, None))]
        self.count += 1
        name = f"_test{self.count}"
        test = self.value(node.test, mask is not None)
        if mask is not None:
            test = ast.BinOp(copy.deepcopy(mask), ast.BitAnd(), test)
        made: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], test, lineno=0)]
        before = set(self.defined)
        body = self.block(node.body, ast.Name(name, ast.Load()))
        self.defined = set(before)  # what only some lanes have is not seen behind it
        made += body
        if node.orelse:
            other = ast.BinOp(self.value(node.test, True), ast.BitXor(), ast.Constant(True))
            # evaluated before the body, which may change what is tested
            inverse = other if mask is None else ast.BinOp(copy.deepcopy(mask), ast.BitAnd(), other)
            made.insert(1, ast.Assign([ast.Name(f"{name}not", ast.Store())], inverse, lineno=0))
            made += self.block(node.orelse, ast.Name(f"{name}not", ast.Load()))
            self.defined = before
        return made

    def value(self, node: ast.expr, guarded: bool = False) -> ast.expr:
        """Rewrite an expression. guarded: it is computed also in lanes that do not want it, with any indices."""
        return self.rewriter(guarded).visit(copy.deepcopy(node))  # type: ignore[no-any-return]

    def rewriter(self, guarded: bool) -> Values:
        """Make an object that rewrites expressions."""
        return Values(self, guarded)

    def _skips(self, node: ast.If) -> bool:
        """if test: continue, or, where lanes differ, if test: return x."""
        if len(node.body) != 1 or node.orelse:
            return False
        return isinstance(node.body[0], ast.Continue) or (
            isinstance(node.body[0], ast.Return) and self.varies(node.test)
        )


class Values(ast.NodeTransformer):
    """Expressions of a lane version."""

    def __init__(self, of: LaneVersion, guarded: bool) -> None:
        self.of, self.guarded = of, guarded

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """A local name, which must have a value in all lanes."""
        if node.id in self.of.assigned and node.id not in self.of.defined:
            raise NoLanes
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call of the lane version of a function."""
        name = node.func.id  # type: ignore[attr-defined]
        if name in SCALAR:
            raise NoLanes
        args = [self.visit(argument) for argument in node.args]
        return ast.Call(ast.Name(self.renamed(name), ast.Load()), args, [])

    def renamed(self, name: str) -> str:
        """Name of the function that is called instead."""
        if name in self.of.others:
            return self.of.prefix + name
        return name if name == "range" or "_over_" in name else f"lane_{name}"

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """a if c else b: both, where lanes differ."""
        if not self.of.varies(node.test):
            return self.generic_visit(node)  # type: ignore[return-value]
        inner = type(self)(self.of, True)
        return call("lane_select", self.visit(node.test), inner.visit(node.body), inner.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """a & b, a | b"""
        inner = type(self)(self.of, True)
        result = self.visit(node.values[0])
        for value in node.values[1:]:
            result = ast.BinOp(
                result, ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), inner.visit(value)
            )
        return result

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Divisions of integers by what may be 0 are refused: a vector of them would stop the process."""
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and self.of.varies(node):
            right = node.right.args[0] if isinstance(node.right, ast.Call) and node.right.args else None
            if not isinstance(right, ast.Constant) or not right.value:
                raise NoLanes
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """An entry of an array: of each entity, or one for all."""
        array = getattr(node, "guarded", False)
        varies = self.of.varies(node.slice)
        if getattr(node, "partial", False) and varies:
            raise NoLanes
        if array and (varies or self.guarded):
            if not is_array(node.value, self.of.ir.constants):
                raise NoLanes
            return call("lane_get", node.value, self.visit(node.slice))
        return self.generic_visit(node)  # type: ignore[return-value]


def is_array(node: ast.expr, constants: Mapping[str, object]) -> bool:
    """s[k], or a constant array; not what is left of an array after an index."""
    if isinstance(node, ast.Name):
        return node.id in constants
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and not getattr(node, "guarded", False)
