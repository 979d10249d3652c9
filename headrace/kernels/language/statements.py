"""Lowering of statements: the body of one function, its local names each of one kind."""

from __future__ import annotations

import ast
import copy
from typing import NoReturn

from headrace.kernels.language import kinds, ops_over
from headrace.kernels.language.expressions import Expressions
from headrace.kernels.language.kinds import BOOL, I32, NONE, Array, Kind, Tuple, describe
from headrace.kernels.language.typed import NUMBERS, Typed, call, locate
from headrace.kernels.language.within import FORM, within_loop

BANNED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("`try`", "Compiled environments cannot raise: test the condition instead"),
    ast.With: ("`with`", "Take it out of the environment"),
    ast.ClassDef: ("a class in a function", "Move it to module level"),
    ast.FunctionDef: ("a function in a function", "Move it to module level"),
    ast.Import: ("an import in a function", "Move it to the top of the file"),
    ast.ImportFrom: ("an import in a function", "Move it to the top of the file"),
    ast.Raise: ("`raise`", "Compiled environments cannot raise: end the episode, or clip the value"),
    ast.Assert: ("`assert`", "Check it in a test, on headrace.single(cls)"),
    ast.Global: ("`global`", "Keep what changes in State"),
    ast.Nonlocal: ("`nonlocal`", "Keep what changes in State"),
    ast.Delete: ("`del`", "Leave it out"),
    ast.Match: ("`match`", "Write `if` and `elif`"),
}
UNROLLED = 12_000  # nodes of syntax up to which a repetition is written out: some 64 times the step of CartPole


class Statements:
    """Lowers one function's body. `returns`: what its results must be, or None to find out."""

    def __init__(self, expressions: Expressions, returns: Kind | None, role: str) -> None:
        self.of, self.scope = expressions, expressions.scope
        self.expected, self.role = returns, role
        self.returned: Kind | None = returns
        self.count = 0

    def body(self) -> list[ast.stmt]:
        """The lowered body. Repeats until the kinds of local names stand still."""
        while True:
            before = (dict(self.of.kinds), self.returned)
            self.count = 0
            lowered = self._block(self.scope.node.body)
            if before == (self.of.kinds, self.returned):
                break
        if self.expected not in (None, NONE) and not _always_returns(lowered):
            self.scope.fail(self.scope.node, f"{self.scope.node.name} can end without `return`", "Return at its end")
        return lowered

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        lowered: list[ast.stmt] = []
        for statement in statements:
            for made in self._statement(statement):
                locate(made, statement)
                lowered.append(made)
        return lowered

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return []
            case ast.Expr(value=ast.Call(func=function)) if self.of.program.prints and self._is_print(function):
                return []
            case ast.Expr():
                return [ast.Expr(self.of.expression(node.value).node)]
            case ast.Assign():
                return self._assign(node)
            case ast.AugAssign():
                return self._augmented(node)
            case ast.AnnAssign(value=ast.expr(), target=ast.Name()):
                return self._bind(node.target, self.of.expression(node.value), node)  # type: ignore[arg-type]
            case ast.Return():
                return self._return(node)
            case ast.If():
                return self._if(node)
            case ast.For():
                return self._for(node)
            case ast.While():
                return self._while(node)
            case ast.Break() | ast.Continue():
                return [copy.copy(node)]
        wrong, instead = BANNED.get(type(node), (f"`{type(node).__name__}`", "Write assignments, if, for and while"))
        self.scope.fail(node, f"{wrong} cannot be compiled", instead)

    def _is_print(self, function: ast.expr) -> bool:
        return isinstance(function, ast.Name) and self.scope.resolve(function) is print

    # Assignments

    def _assign(self, node: ast.Assign) -> list[ast.stmt]:
        if len(node.targets) > 1:
            name = next((t for t in node.targets if isinstance(t, ast.Name)), None)
            if name is None:
                self.scope.fail(node, "a chain of assignments", "Write one on each line")
            lowered = self._bind(name, self.of.expression(node.value), node)
            for target in node.targets:
                if target is not name:
                    lowered += self._bind(target, self.of.expression(ast.copy_location(_load(name), node)), node)
            return lowered
        return self._bind(node.targets[0], self.of.expression(node.value), node)

    def _bind(self, target: ast.expr, typed: Typed, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            return [self._bind_name(target, typed, node)]
        if isinstance(target, (ast.Tuple, ast.List)):
            return self._unpack(target, typed, node)
        if isinstance(target, ast.Subscript):
            return self._store(target, typed, node)
        if isinstance(target, ast.Attribute):
            wrong = f"`{ast.unparse(target)}` is assigned to"
            self.scope.fail(node, wrong, "Return a new State instead: State(...) or s._replace(...)")
        self.scope.fail(node, f"`{ast.unparse(target)}` is assigned to", "Assign to a name or to an array's entry")

    def _bind_name(self, target: ast.Name, typed: Typed, node: ast.stmt) -> ast.stmt:
        kind = kinds.join(self.of.kinds.get(target.id, typed.kind), typed.kind)
        if kind is None or kind == NONE:
            known = describe(self.of.kinds.get(target.id, typed.kind))
            self.scope.fail(node, f"{target.id!r} is {known} and becomes {describe(typed.kind)}", "Use another name")
        self.of.kinds[target.id] = kind
        name = ast.Name(self.of.program.local(target.id), ast.Store())
        return ast.Assign([name], self.of.cast(typed, kind))

    def _unpack(self, target: ast.Tuple | ast.List, typed: Typed, node: ast.stmt) -> list[ast.stmt]:
        """a, b = ...: a tuple written out goes through temporary names, so that each is read before any is written."""
        entries = self.of.items(typed.kind)
        if len(entries) != len(target.elts):
            found = f"{len(entries)} values" if entries else describe(typed.kind)
            self.scope.fail(node, f"{len(target.elts)} names for {found}", "Give as many names as there are values")
        lowered: list[ast.stmt] = []
        if not isinstance(typed.node, ast.Tuple):
            whole, typed = self._temporary(typed)
            lowered.append(whole)
        parts = [self.of.item(typed, k) for k in range(len(entries))]
        written = {n.id for t in target.elts for n in ast.walk(t) if isinstance(n, ast.Name)}
        read = {n.id for part in parts for n in ast.walk(part.node) if isinstance(n, ast.Name)}
        if written & read or not all(isinstance(t, ast.Name) for t in target.elts):
            held = [self._temporary(part) for part in parts]
            lowered += [statement for statement, _ in held]
            parts = [part for _, part in held]
        for name, part in zip(target.elts, parts, strict=True):
            lowered += self._bind(name, part, node)
        return lowered

    def _temporary(self, typed: Typed) -> tuple[ast.stmt, Typed]:
        self.count += 1
        name = f"_part{self.count}"
        return ast.Assign([ast.Name(name, ast.Store())], self.of.value(typed)), Typed(
            ast.Name(name, ast.Load()), typed.kind
        )

    def _store(self, target: ast.Subscript, typed: Typed, node: ast.stmt) -> list[ast.stmt]:
        inner = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        whole = [part for part in inner if isinstance(part, ast.Slice)]
        if any(part.lower or part.upper or part.step for part in whole):
            wrong = f"`{ast.unparse(target)}` is a part of an array"
            self.scope.fail(node, wrong, "Write a `for` loop over the indices")
        base = self.of.expression(target.value)
        if not isinstance(base.kind, Array) or base.kind.field is None:
            wrong = f"`{ast.unparse(target)}`: {describe(base.kind)} cannot be changed"
            self.scope.fail(node, wrong, "Change array fields of s, or out")
        if self.role in ("observe", "action_mask", "pixel") and base.kind.field != "out":
            seen = "pixel only returns gray levels" if self.role == "pixel" else f"{self.role} only fills out"
            self.scope.fail(node, f"{self.role} changes s.{base.kind.field}", f"Change it in step; {seen}")
        if whole or len(inner) < len(base.kind.shape):
            return self._fill(target, base, inner, typed, node)
        element = self.of._subscript(target)
        return [self._set(element, typed, node)]

    def _set(self, element: Typed, typed: Typed, node: ast.stmt) -> ast.stmt:
        place = element.node.args[0] if isinstance(element.node, ast.Call) else element.node
        if typed.kind not in NUMBERS:
            self.scope.fail(node, f"an entry is set to {describe(typed.kind)}", "Set it to a number")
        value = self.of.cast(typed, element.kind, node)
        target = ast.Subscript(place.value, place.slice, ast.Store())  # type: ignore[attr-defined]
        return ast.Assign([target], value)

    def _fill(
        self, target: ast.Subscript, base: Typed, inner: list[ast.expr], typed: Typed, node: ast.stmt
    ) -> list[ast.stmt]:
        """x[:] = value, x[i, :] = value: loops over the dimensions left open."""
        shape = base.kind.shape  # type: ignore[union-attr]
        inner = inner + [ast.Slice()] * (len(shape) - len(inner))
        opened: list[tuple[str, int]] = []
        indices: list[Typed] = []
        for part, size in zip(inner, shape, strict=False):
            if not isinstance(part, ast.Slice):
                indices.append(self.of.number(part))
                continue
            self.count += 1
            opened.append((f"_index{self.count}", size))
            indices.append(Typed(ast.Name(opened[-1][0], ast.Load()), I32))
        value = typed
        if isinstance(typed.kind, Array):
            if typed.kind.shape != tuple(size for _, size in opened):
                wrong = f"{describe(typed.kind)} does not fit in `{ast.unparse(target)}`"
                self.scope.fail(node, wrong, "Match the shapes")
            value = self.of._element(typed, [Typed(ast.Name(name, ast.Load()), I32) for name, _ in opened], target)
        loop = self._set(self.of._element(base, indices, target), value, node)
        for name, size in reversed(opened):
            loop = ast.For(ast.Name(name, ast.Store()), call("range", call("I32", ast.Constant(size))), [loop], [])
        return [loop]

    def _augmented(self, node: ast.AugAssign) -> list[ast.stmt]:
        value = self.of.binary(
            ast.copy_location(ast.BinOp(_load(node.target), node.op, node.value), node),
            self.of.number(_load(node.target)),
            self.of.number(node.value),
            node.op,
        )
        return self._bind(node.target, value, node)

    # Control

    def _return(self, node: ast.Return) -> list[ast.stmt]:
        typed = self.of.expression(node.value) if node.value else Typed(ast.Constant(None), NONE)
        if self.expected is not None:
            self._check_result(typed, node)
            return [ast.Return(self.of.cast(typed, self.expected, node.value))]
        before = self.returned or typed.kind
        kind = kinds.join(before, typed.kind)
        if kind is None:
            wrong = f"{describe(typed.kind)} is returned, elsewhere {describe(before)}"
            self.scope.fail(node, wrong, "Return one kind of value")
        self.returned = kind
        return [ast.Return(None if kind == NONE else self.of.cast(typed, kind, node.value))]

    def _check_result(self, typed: Typed, node: ast.Return) -> None:
        """The results of reset, step, observe and pixel: how many, and of what kind."""
        expected = self.expected
        if expected == NONE and typed.kind != NONE:
            if self.role == "phase":
                wrong, instead = (
                    f"{self.scope.node.name} returns a value",
                    "Phases write s.x[i] = ... and return nothing",
                )
                self.scope.fail(node, wrong, instead)
            self.scope.fail(node, "observe(s, p, out) returns a value", "Fill out and return nothing")
        if expected == NONE:
            return
        wanted = self._form()
        if _fits(typed.kind, expected):  # type: ignore[arg-type]
            return
        if isinstance(expected, Tuple):
            count = len(expected.items)
            if not isinstance(typed.kind, Tuple):
                self._wrong_result(node, describe(typed.kind), wanted, count)
            if self.role == "step" and len(typed.kind.items) == 5:
                instead = f"Return {wanted}: observe gives observations, max_steps truncates, and there is no info"
                self.scope.fail(node, "step returns 5 values, as a gymnasium.Env's does", instead)
            if len(typed.kind.items) != count:
                self._wrong_result(node, f"{len(typed.kind.items)} values", wanted, count)
            for k, (have, want) in enumerate(zip(typed.kind.items, expected.items, strict=True)):
                if not _fits(have, want):
                    self.scope.fail(node, f"value {k} that {self.role} returns is {describe(have)}", f"Return {wanted}")
        self.scope.fail(node, f"{self.role} returns {describe(typed.kind)}", f"Return {wanted}")

    def _form(self) -> str:
        """Form of what reset, step, observe or pixel has to return, for a message."""
        agents = self.of.program.declarations.num_agents
        if self.role == "step" and self.of.program.declarations.entity_agents:
            return "State(...), s.reward, terminated, where State has `reward: array(f32, num_entities)`"
        if self.role == "step" and agents > 1:
            return f"State(...), ({', '.join(['reward'] * agents)}), terminated"
        return _FORMS[self.role]

    def _wrong_result(self, node: ast.Return, found: str, wanted: str, count: int) -> NoReturn:
        declarations = self.of.program.declarations
        shape = declarations.observation_space.shape
        if self.role == "observe":
            wrong = f"observe returns {found}, but observation_space has shape {shape}"
            self.scope.fail(node, wrong, f"Return a tuple of {count}, or change observation_space")
        if self.role == "pixel":
            self.scope.fail(
                node,
                f"pixel returns {found}, but observation_space has shape {shape}, {count} channels a frame",
                f"Return a tuple of {count} gray levels, or give frames and [channels, height, width] that agree",
            )
        self.scope.fail(node, f"{self.role} returns {found}", f"Return {wanted}")

    def _if(self, node: ast.If) -> list[ast.stmt]:
        test = self.of.truth(node.test)
        if test.constant:  # settled now: a switch in the class or module
            return self._block(node.body if test.node.value else node.orelse)  # type: ignore[attr-defined]
        return [ast.If(test.node, self._block(node.body) or [ast.Pass()], self._block(node.orelse))]

    def _while(self, node: ast.While) -> list[ast.stmt]:
        if node.orelse:
            self.scope.fail(node, "`while ... else`", "Write it without `else`")
        return [ast.While(self.of.truth(node.test).node, self._block(node.body) or [ast.Pass()], [])]

    def _for(self, node: ast.For) -> list[ast.stmt]:
        over = node.iter
        if isinstance(over, ast.Call) and self.scope.resolve(over.func) is ops_over.within:
            return self._for_within(node)
        ranged = isinstance(over, ast.Call) and self.scope.resolve(over.func) is range and not over.keywords
        if not ranged or not isinstance(node.target, ast.Name) or node.orelse:
            wrong = f"`for {ast.unparse(node.target)} in {ast.unparse(over)}`"
            self.scope.fail(node, wrong, "Loop `for i in range(n):`")
        bounds = [self.of.number(argument) for argument in over.args]  # type: ignore[attr-defined]
        for typed, argument in zip(bounds, over.args, strict=True):  # type: ignore[attr-defined]
            if typed.kind not in (I32, BOOL):
                self.scope.fail(node, f"range() of {describe(typed.kind)}", f"Write int({ast.unparse(argument)})")
        known = kinds.join(self.of.kinds.get(node.target.id, I32), I32)
        if known != I32:
            self.scope.fail(node, f"{node.target.id!r} is a loop index and also another kind", "Use another name")
        self.of.kinds[node.target.id] = I32
        body = self._block(node.body)
        if all(typed.constant for typed in bounds) and self._unrolls(node.target.id, body):
            times = len(range(*(int(typed.node.value) for typed in bounds)))  # type: ignore[attr-defined]
            if times * sum(1 for statement in body for _ in ast.walk(statement)) <= UNROLLED:
                return [copy.deepcopy(statement) for _ in range(times) for statement in body]
        target = ast.Name(self.of.program.local(node.target.id), ast.Store())
        loop = call("range", *(self.of.cast(typed, I32) for typed in bounds))
        return [ast.For(target, loop, body or [ast.Pass()], [])]

    def _for_within(self, node: ast.For) -> list[ast.stmt]:
        """for j in within(s.x, s.y, i, radius): ..."""
        if not isinstance(node.target, ast.Name) or node.orelse or self.of.kinds.get(node.target.id, I32) != I32:
            self.scope.fail(node, f"`for {ast.unparse(node.target)} in within(...)`", f"Write `{FORM}`")
        self.of.kinds[node.target.id] = I32
        target = self.of.program.local(node.target.id)
        self.count += 1
        before, test, over = within_loop(self.of, node, target, self.count)
        entities = call("I32", ast.Constant(self.of.program.declarations.entities))
        body: list[ast.stmt] = [ast.If(test, self._block(node.body) or [ast.Pass()], [])]
        loop = ast.For(ast.Name(target, ast.Store()), call("range", entities), body, [])
        loop.within = over  # type: ignore[attr-defined]
        return [*before, loop]

    def _unrolls(self, index: str, body: list[ast.stmt]) -> bool:
        """Tell whether a loop only repeats its body: the index is read nowhere, and no statement leaves or branches.

        Such sub-steps are written out, because LLVM vectorises over environments only where no loop is left inside.
        """
        everywhere = ast.walk(self.scope.node)
        if any(isinstance(n, ast.Name) and n.id == index and isinstance(n.ctx, ast.Load) for n in everywhere):
            return False
        return all(isinstance(statement, (ast.Assign, ast.Expr)) for statement in body)


_FORMS = {
    "reset": "State(...)",
    "step": "State(...), reward, terminated",
    "action_mask": "one bool for each choice of an action, as a tuple",
    "observe": "one float for each entry of observation_space, as a tuple",
    "pixel": "one number from 0 to 255, the gray level of this pixel",
}


def _fits(have: Kind, want: Kind) -> bool:
    """Tell whether a value can be converted to the kind that is wanted."""
    if isinstance(have, Tuple) and isinstance(want, Tuple) and len(have.items) == len(want.items):
        return all(_fits(a, b) for a, b in zip(have.items, want.items, strict=True))
    return have == want or (have in NUMBERS and want in NUMBERS)


def _always_returns(body: list[ast.stmt]) -> bool:
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    if isinstance(last, ast.While):
        return isinstance(last.test, ast.Constant)
    return isinstance(last, ast.Return)


def _load(target: ast.expr) -> ast.expr:
    """The same place, read instead of written."""
    loaded = copy.deepcopy(target)
    loaded.ctx = ast.Load()  # type: ignore[attr-defined]
    return loaded
