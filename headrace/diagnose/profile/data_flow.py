"""The flow of values between the calls and statements of a script's own files: a graph from their syntax trees.

A node is a call, or a statement without its calls. A token is a place that may hold a value: a variable of a function,
a global variable, an attribute by its name (whatever object has it), or the result of a call. An edge leads from a node
to each node that uses a token which it defines. A method may change its object, and a function of the script may change
the arguments that its text changes. Such changes are kept apart from values that are passed on, because they connect
many unrelated nodes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.diagnose.profile.functions import (
    Function,
    Position,
    assigned,
    is_resumed,
    key_of,
    name_of,
    parameters,
    position_of,
    required,
)

Token = tuple[str, str]
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
MAKES = "__init__"  # the function that a call of a class calls
SENT = "yield"  # in tokens, the variable through which a generator receives the values sent to it
DEPTH = 3  # effects are followed through so many nested calls of the script's functions


@dataclass(eq=False)
class Node:
    """A call or a statement; `function` is the key of the function that contains it, or the file's at its top level."""

    tree: ast.AST
    file: str
    function: str
    uses: set[Token] = field(default_factory=set)
    defines: set[Token] = field(default_factory=set)
    changes: set[Token] = field(default_factory=set)  # objects whose method is called, or that are changed in place
    # keys of the script's functions that are called. Where there are several, such as handlers of events, each that is
    # not followed has a node of its own
    callees: tuple[str, ...] = ()

    @property
    def start(self) -> tuple[int, int]:
        """Line and column."""
        return self.tree.lineno, self.tree.col_offset  # type: ignore[attr-defined]

    @property
    def end(self) -> tuple[int, int]:
        """Line and column."""
        return self.tree.end_lineno, self.tree.end_col_offset  # type: ignore[attr-defined]


class DataFlow:
    """The graph of some files.

    transparent: keys of functions that are followed, so that arguments flow to their parameters. Every other function
    is one node at each call. called: the functions that samples show calls to call. A call that is not listed there
    calls the only function of that name.
    """

    def __init__(
        self, trees: dict[str, ast.Module], transparent: Collection[str], called: Mapping[Position, tuple[str, ...]]
    ) -> None:
        self.functions: dict[str, Function] = {}
        self.nodes: list[Node] = []
        self.awaited: dict[Position, Position] = {}  # of `await f(x)` -> of f(x)
        self.made_with: list[tuple[Node, set[Token]]] = []  # assignments of calls, and these calls' arguments
        self._transparent, self._called = transparent, dict(called)
        self._named: dict[str, list[str]] = {}  # name of a function -> keys
        self._around: dict[str, str] = {}  # key of a function -> that of the scope around it
        self._locals: dict[str, set[str]] = {}
        self._effects: dict[str, tuple[set[Token], set[Token]]] = {}
        for file, tree in trees.items():
            self._locals[file] = set()
            self._enter(file, tree, file)
        for tree in trees.values():
            self._enter_wrapped(tree)
        for file, tree in trees.items():
            self._visit_body(tree, file, file)
        for key, function in self.functions.items():
            if key in transparent:
                self._visit_body(function, self._file(key), key)

    def _file(self, key: str) -> str:
        while key in self._around:
            key = self._around[key]
        return key

    # --- scopes

    def _enter(self, file: str, tree: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, Function):
                key = key_of(file, child)
                self.functions[key], self._around[key] = child, scope
                self._named.setdefault(child.name, []).append(key)
                self._locals[key] = assigned(child)
                self._enter(file, child, key)
                if child.name == MAKES and isinstance(tree, ast.ClassDef):
                    self._named.setdefault(tree.name, []).append(key)
            else:
                self._enter(file, child, scope)

    def _enter_wrapped(self, tree: ast.Module) -> None:
        """Names of objects made from a function, as by `fast = jax.jit(update)`."""
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                continue
            if isinstance(node.targets[0], ast.Name):
                handed = (part.id for part in node.value.args if isinstance(part, ast.Name))
                keys = [self._named[name] for name in handed if len(self._named.get(name, ())) == 1]
                if keys and node.targets[0].id not in self._named:
                    self._named[node.targets[0].id] = keys[0]

    def token(self, name: str, scope: str) -> Token:
        """The token of a variable that a scope uses."""
        while scope in self._around and name not in self._locals[scope]:
            scope = self._around[scope]
        return scope, name

    def place(self, expression: ast.AST, scope: str) -> Token:
        """The token of a variable or an attribute; ("", "") for other expressions, and for a method's object."""
        if isinstance(expression, ast.Attribute):
            return "", f".{expression.attr}"
        named = isinstance(expression, ast.Name) and expression.id not in ("self", "cls")
        return self.token(expression.id, scope) if named else ("", "")  # type: ignore[attr-defined]

    def resolve(self, call: ast.Call, file: str) -> tuple[str, ...]:
        """The keys of the script's functions that a call calls; () where that is not known."""
        return self._called.get(position_of(call, file)) or self._only(call.func)

    def _only(self, function: ast.expr) -> tuple[str, ...]:
        """The key of the only function of a name; () without one."""
        found = self._named.get(name_of(function), [])
        return tuple(found) if len(found) == 1 else ()

    # --- nodes

    def _visit_body(self, tree: ast.AST, file: str, scope: str) -> None:
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, Function | ast.ClassDef | ast.Lambda):
                continue
            if isinstance(child, ast.stmt):
                self._statement(child, file, scope)
                self._visit_body(child, file, scope)
            elif not isinstance(child, ast.expr):  # with items, handlers, cases
                self._visit_body(child, file, scope)

    def _statement(self, statement: ast.stmt, file: str, scope: str) -> None:
        node = Node(statement, file, scope)
        self.nodes.append(node)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.withitem):
                node.uses |= self._value(child.context_expr, node)
                node.defines |= self._targets([child.optional_vars] if child.optional_vars else [], node)
            elif isinstance(child, ast.expr) and not isinstance(getattr(child, "ctx", None), ast.Store):
                node.uses |= self._value(child, node)
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if isinstance(statement, ast.Delete):
            return
        if isinstance(statement, ast.AugAssign):
            node.uses |= self._value(statement.target, node)
            if isinstance(statement.value, ast.Constant):  # a counter is no data
                return
        node.defines |= self._targets([target for target in targets if target is not None], node)
        if isinstance(statement, ast.Return):
            node.defines.add((scope, "return"))
        elif isinstance(getattr(statement, "value", None), ast.Call):
            self.made_with.append((node, self._handed(statement.value, scope)))  # type: ignore[attr-defined]

    def _handed(self, call: ast.Call, scope: str) -> set[Token]:
        """The variables that a call takes as arguments, unchanged."""
        parts = (*call.args, *(word.value for word in call.keywords))
        return {self.token(part.id, scope) for part in parts if isinstance(part, ast.Name)}

    def _targets(self, targets: Iterable[ast.expr], node: Node) -> set[Token]:
        found: set[Token] = set()
        for target in targets:
            if isinstance(target, ast.Name):
                found.add(self.token(target.id, node.function))
            elif isinstance(target, ast.Attribute):
                found.add(("", f".{target.attr}"))
            elif isinstance(target, ast.Subscript):
                node.uses |= self._value(target.slice, node)
                node.changes |= self._object(target.value, node)
            elif isinstance(target, ast.Starred):
                found |= self._targets([target.value], node)
            elif isinstance(target, ast.Tuple | ast.List):
                found |= self._targets(target.elts, node)
        return found

    def _object(self, expression: ast.expr, node: Node) -> set[Token]:
        """The tokens of the objects that contain an expression: for self.buffer.rows, those of .rows and .buffer."""
        found: set[Token] = set()
        while isinstance(expression, ast.Attribute | ast.Subscript):
            if isinstance(expression, ast.Attribute):
                found.add(("", f".{expression.attr}"))
            expression = expression.value
        if isinstance(expression, ast.Name) and expression.id not in ("self", "cls"):
            found.add(self.token(expression.id, node.function))
        return found

    def _value(self, expression: ast.AST, node: Node) -> set[Token]:
        """The tokens that an expression's value is made of; its calls become nodes."""
        if isinstance(expression, ast.Name):
            return set() if expression.id in ("self", "cls") else {self.token(expression.id, node.function)}
        if isinstance(expression, ast.Attribute):
            return {("", f".{expression.attr}")} | self._value(expression.value, node)
        if isinstance(expression, ast.Call):
            return self._call(expression, node)
        if isinstance(expression, ast.NamedExpr):
            value = self._value(expression.value, node)
            self._add(expression, node, value, self._targets([expression.target], node))
            return value
        if isinstance(expression, ast.Yield | ast.YieldFrom):
            value = self._value(expression.value, node) if expression.value else set()
            self._add(expression, node, value, {(node.function, "return")})
            return {(node.function, SENT)}
        position, found = position_of(expression, node.file), set[Token]()
        awaits = isinstance(expression, ast.Await | ast.YieldFrom) and isinstance(expression.value, ast.Call)
        if awaits:
            self.awaited[position] = position_of(expression.value, node.file)  # type: ignore[attr-defined]
        if position in self._called and awaits:
            self._called.setdefault(self.awaited[position], self._called[position])
        elif position in self._called:  # without a call in the text: of __iter__, __getitem__, a property
            found |= set().union(*(self._result(key, node) for key in self._called[position]))
        if isinstance(expression, COMPREHENSIONS):
            for part in expression.generators:
                self._add(part.iter, node, self._value(part.iter, node), self._targets([part.target], node))
        for child in ast.iter_child_nodes(expression):
            if not isinstance(child, ast.Lambda):
                found |= self._value(child, node)
        return found

    def _result(self, key: str, node: Node) -> set[Token]:
        """The tokens of the result of a script's function that a node calls without arguments of its own."""
        if key in self._transparent:
            return {(key, "return")}
        used, changed = self.effects(key)
        node.changes |= changed
        return used

    def _add(self, tree: ast.AST, around: Node, uses: set[Token], defines: set[Token]) -> Node:
        made = Node(tree, around.file, around.function, uses, defines)
        self.nodes.append(made)
        return made

    def _call(self, call: ast.Call, around: Node) -> set[Token]:
        result = {("call", str(id(call)))}
        receiver: set[Token] = set()
        if isinstance(call.func, ast.Attribute):
            receiver = self._value(call.func.value, around)
        elif not isinstance(call.func, ast.Name):
            receiver = self._value(call.func, around)
        handed = [self._value(part, around) for part in (*call.args, *(word.value for word in call.keywords))]
        made = self._add(call, around, set(receiver), set(result))
        if isinstance(call.func, ast.Name):
            made.uses.add(self.token(call.func.id, around.function))
        made.callees = self.resolve(call, around.file)
        for apart in self._made_elsewhere(call):
            made.uses |= self._call(apart, around)
        followed = [key for key in made.callees if key in self._transparent]
        if followed:
            made.uses = {(key, "return") for key in followed}
            for key in followed:
                self._follow(call, key, handed, around)
        if followed and len(followed) == len(made.callees):
            return result
        made.uses |= set().union(*handed)
        if isinstance(call.func, ast.Attribute):
            made.changes |= self._object(call.func.value, around)
        for key in set(made.callees).difference(followed):
            one = made if len(made.callees) == 1 else self._add(call, around, set(made.uses), result)
            one.callees = (key,)
            used, changed = self.effects(key)
            one.uses |= used
            one.changes |= changed
            for name, tokens in self._bound(call, key, handed):
                one.changes |= tokens if name in self._changed_parameters(key) else set()
        name = "" if made.callees else getattr(call.func, "id", "")
        if name == "next" and handed:
            made.changes |= handed[0]
        elif name not in ("", "print") and isinstance(around.tree, ast.Expr) and around.tree.value is call:
            made.changes |= set().union(*handed)  # a function without a result changes what it is given
        return result

    def _follow(self, call: ast.Call, key: str, handed: list[set[Token]], around: Node) -> None:
        """Let a call's arguments flow to a function's parameters, and back from those that the function changes."""
        for name, tokens in self._bound(call, key, handed):
            self._add(call, around, tokens, {(key, name)})
            if name in self._changed_parameters(key):
                self._add(call, around, {(key, name)}, set()).changes |= tokens

    def _made_elsewhere(self, call: ast.Call) -> Iterator[ast.Call]:
        """Calls of followed functions that a call takes along with all their required arguments, as a thread does."""
        words = {word.arg: word.value for word in call.keywords}
        arguments = getattr(words.get("args"), "elts", [])
        given = [(part, call.args[index:]) for index, part in enumerate(call.args, 1)] + [
            (words.get("target"), arguments)
        ]
        for function, rest in given:
            if not isinstance(function, ast.Name | ast.Attribute):
                continue
            known = (self.functions[key] for key in self._only(function) if key in self._transparent)
            if any(len(rest) >= len(required(each)) for each in known):
                yield ast.copy_location(ast.Call(function, list(rest), []), function)

    def _bound(self, call: ast.Call, key: str, handed: list[set[Token]]) -> Iterator[tuple[str, set[Token]]]:
        """Name of each parameter, and the tokens that a call passes to it."""
        if is_resumed(call, self.functions[key]):  # the parameters are those of an earlier call
            yield SENT, set().union(*handed)
            return
        names = parameters(self.functions[key])
        words = list(zip(call.keywords, handed[len(call.args) :], strict=True))
        needed = set(required(self.functions[key])) - {word.arg for word in call.keywords}
        missing = max(len(needed) - len(call.args), 0)  # a partial has the first ones already
        missing = 0 if any(isinstance(each, ast.Starred) for each in call.args) else missing
        yield from zip(names[missing:], handed[: len(call.args)], strict=False)
        every = self.functions[key].args
        for word, tokens in words:
            if word.arg is None:  # **words
                yield from ((name, tokens) for name in names)
            elif every.kwarg and word.arg not in names:
                yield every.kwarg.arg, tokens
            else:
                yield word.arg, tokens

    def _changed_parameters(self, key: str) -> set[str]:
        return {name for scope, name in self.effects(key)[1] if scope == key}

    def effects(self, key: str, depth: int = DEPTH) -> tuple[set[Token], set[Token]]:
        """Tokens that a function uses, and tokens that it changes or defines. They are globals, attributes and the
        parameters that it changes, without its own variables.
        """
        if key not in self._effects:
            self._effects[key] = set(), set()
            inner = DataFlow.__new__(DataFlow)
            inner.__dict__ = self.__dict__ | {"nodes": [], "_transparent": ()}
            if depth:
                inner._visit_body(self.functions[key], self._file(key), key)
            arguments = self.functions[key].args
            parameters = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
            used = set().union(*(node.uses for node in inner.nodes))
            changed = set().union(*(node.changes | node.defines for node in inner.nodes))
            kept = {token for token in changed if token[0] not in (key, "call")}
            altered = set().union(*(node.changes for node in inner.nodes))
            kept |= {(key, name) for name in parameters if (key, name) in altered}
            self._effects[key] = {token for token in used if token[0] not in (key, "call")}, kept
        return self._effects[key]
