"""A script's training loop, and the graph of what flows through its calls."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property
from itertools import pairwise

from headrace.diagnose.injected import variables
from headrace.diagnose.profile import functions
from headrace.diagnose.profile.data_flow import DataFlow, Node, Token
from headrace.diagnose.profile.functions import Loop, Position
from headrace.diagnose.profile.loop_search import (
    LEAST,
    UPDATES,
    OwnLoop,
    has_network,
    loops_at,
    scope_of,
    updates_by_name,
)
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.source_context import call_name, syntax_tree, text_at
from headrace.diagnose.profile.spool import Place, Stack

Statement = tuple[str, int, str]  # file, line and text
MANY = 20  # a loop without a sampled update counts as training after more iterations than this
LONGEST = 72  # characters of a statement's text
WRAPPERS = ("torch", "functools", "contextlib", "jax")  # their decorators may be between two functions of the script
DATA = (variables.ARRAY, variables.CONTAINER, variables.NUMBER)


class TrainingLoop(OwnLoop):
    """The training loop of one process, with what flows through its calls."""

    def began(self) -> float | None:
        """Time (s of time.monotonic()) of the loop's second iteration, or of the second update in it; None before.

        A loop without a sampled update counts as training, too, after more than MANY iterations, unless it mostly reads
        files or handles data, or the script's text updates parameters elsewhere.
        """
        if self.tree is None:
            return None
        if len(self.turns) < 2:
            return next(iter(self._updates[1:]), None)
        if not self.updating_nodes and self.is_before_updates:
            return None
        reads = sum(self.spent[stack] for stack in self.inner if self.evidence(stack) in (Role.READING, Role.DATA))
        often = len(self.turns) > MANY and reads < LEAST * sum(self.spent[stack] for stack in self.inner)
        return self.turns[1] if self.updating_nodes or often else None

    @cached_property
    def _updates(self) -> list[float]:
        """Times at which samples show that an update within the loop began, in s of time.monotonic()."""
        samples = [
            (each.end, self.evidence(each.stack) in UPDATES) for each in self.samples if each.stack in self.inner
        ]
        return [end for (_, before), (end, now) in pairwise([(0.0, False), *samples]) if now and not before]

    @cached_property
    def entered(self) -> float:
        """Time of the first sample within the loop, in s of time.monotonic()."""
        return next((each.end - each.seconds for each in self.samples if each.stack in self.inner), 0.0)

    @property
    def is_before_updates(self) -> bool:
        """Tell whether the text of the script updates parameters, and no code sampled so far leads to that update."""
        led_to = any(updates_by_name(self.files, each[2]) for loops in self._loops.values() for each in loops)
        updates = any(updates_by_name(self.files, syntax_tree(each)) for each in self.files)
        return updates and not self.updating and not led_to

    def statements(self, stack: Stack) -> list[Statement]:
        """The loop's call or statement that contains a stack, and the one at which it leaves the followed functions.

        [] outside the loop.
        """
        if self.tree is None or stack not in self.inner:
            return []
        place = self.inner[stack][0]
        nodes = (self._node(place), self.ends.get(stack))
        line = place.code.file, place.line, text_at(place.code.file, place.line)[:LONGEST]
        return [
            (node.file, place.line if index == 0 else node.start[0], _text(node.tree)) if node else line
            for index, node in enumerate(nodes)
        ]

    @cached_property
    def transparent(self) -> set[str]:
        """Keys of the functions below the loop whose calls are followed: those that contain an update or a network.

        A function that contains a network, changes nothing and has no loop around the network, such as `pick(x)`, is
        not followed: several callers may share it, so each call counts as a network.
        """
        updating, using, repeating = set(), set(), set()
        for stack, places in self.inner.items():
            inside = {scope_of(place)[1] for place in places[1:]} - {""}
            if self.evidence(stack) in UPDATES:
                updating |= inside
            elif has_network(stack):
                using |= inside
                repeating |= {scope_of(place)[1] for place in places[1:] if loops_at(place)}
            elif not self.has_networks:  # all functions that call code of the script in a loop
                calling = [place for place in places[1:] if scope_of(place)[1]][:-1]  # without comprehensions
                repeating |= {scope_of(place)[1] for place in calling if loops_at(place)}
        changing = {key for key in using if self._plain.effects(key)[1] - self.kinds.keys()}
        return self.roots | updating | repeating | changing

    @cached_property
    def has_networks(self) -> bool:
        """Tell whether networks are seen in the loop; a script may learn without, as evolution strategies do."""
        kinds = {kind for places in self.inner.values() for place in places for _, kind in place.kinds}
        known = kinds & {variables.NETWORK, variables.COMPILED, variables.OPTIMIZER}
        return bool(known) or any(map(has_network, self.inner))

    @cached_property
    def _called(self) -> dict[Position, tuple[str, ...]]:
        """Position of a call -> keys of the script's functions that it was seen to call."""
        found: dict[Position, tuple[str, ...]] = {}
        for stack, places in self.inner.items():
            for outer, inner in pairwise(places):
                between = stack[stack.index(inner) + 1 : stack.index(outer)]
                direct = all(place.code.module.partition(".")[0] in WRAPPERS for place in between)
                key = scope_of(inner)[1]
                if direct and key and outer.column is not None:
                    position = outer.code.file, outer.line, outer.column, outer.end_line, outer.end_column
                    found[position] = tuple(dict.fromkeys((*found.get(position, ()), key)))
        return found

    @cached_property
    def orphans(self) -> set[str]:
        """Followed functions whose calls are not known, so that the values of their parameters are not known."""
        return self.transparent - self.roots - {key for node in self.nodes for key in node.callees}

    @cached_property
    def _trees(self) -> dict[str, ast.Module]:
        files = {place.code.file for places in self.inner.values() for place in places}
        return {file: syntax_tree(file) for file in files}

    @cached_property
    def _plain(self) -> DataFlow:
        """The graph in which no function is followed."""
        return DataFlow(self._trees, (), self._called)

    @cached_property
    def flow(self) -> DataFlow:
        return DataFlow(self._trees, self.transparent | {self.scope}, self._called)

    @cached_property
    def kinds(self) -> dict[Token, str]:
        """Tokens of networks, optimizers, functions, ...: no data of the loop flow through them."""
        return {token: kind for token, kind in self._kinds.items() if kind not in DATA}

    @cached_property
    def _kinds(self) -> dict[Token, str]:
        """Kind of every token that has one, including tokens of data."""
        found = {}
        for place in {place for places in self.inner.values() for place in places}:
            for name, kind in place.kinds:
                found[("", name) if name.startswith(".") else self._plain.token(name, scope_of(place)[1])] = kind
        return found

    def is_of_data(self, expression: ast.expr, node: Node) -> bool:
        """Tell whether an expression is an array, a part of one, a number or a container, or is computed of them."""
        if isinstance(expression, ast.Constant | ast.BinOp | ast.UnaryOp | ast.Compare):
            return True
        if isinstance(expression, ast.Call):  # the result of a network or of a library's function
            call = Node(expression, node.file, node.function)
            return self.kind_of_call(call) != "" or self.is_of_data(expression.func, node)
        whole = expression
        while isinstance(whole, ast.Subscript):
            whole = whole.value
        kind = self.kind_of_value(whole, node)
        method = isinstance(whole, ast.Attribute) and self.is_of_data(whole.value, node)
        return kind == variables.ARRAY or (kind in DATA and whole is expression) or method

    def kind_of_value(self, expression: ast.expr, node: Node) -> str:
        """The kind of a variable or an attribute, including kinds of data; "" for other expressions."""
        return self._kinds.get(self.flow.place(expression, node.function), "")

    def gives(self, node: Node) -> set[str]:
        """Kinds of the variables to which the statement around a call assigns the call's result."""
        trees = ((each, each.tree) for each in self.value_edges[node] | {node} if isinstance(each.tree, ast.stmt))
        targets = ((each, getattr(tree, "targets", None) or [getattr(tree, "target", None)]) for each, tree in trees)
        parts = ((each, part) for each, some in targets for part in some if isinstance(part, ast.Name | ast.Attribute))
        return {self.kind_of_value(part, each) for each, part in parts}

    @cached_property
    def nodes(self) -> list[Node]:
        first, last = self.tree.lineno, self.tree.end_lineno or 0  # type: ignore[union-attr]
        inside = [
            node
            for node in self.flow.nodes
            if (node.function == self.scope and first <= node.start[0] <= last) or node.function in self.transparent
        ]
        inside += self._started_before(set(inside))
        for node in inside:
            for tokens in (node.uses, node.defines, node.changes):
                tokens.difference_update([token for token in tokens if token in self.kinds])
        return inside

    def _started_before(self, inside: set[Node]) -> list[Node]:
        """The nodes before the loop that create generators, coroutines and thread functions which run in the loop."""
        lasting = {key for key in self.transparent if functions.is_resumable(self.flow.functions[key])} | self.roots
        found: list[Node] = []
        given: set[Token] = set()
        for node in reversed(self.flow.nodes):  # a statement's calls come after it, inner calls last
            tokens = node.uses | node.defines | node.changes
            if node not in inside and (tokens & given or any(scope in lasting for scope, _ in tokens)):
                found.append(node)
                given |= {token for token in node.defines if token[0] == "call"}
        return found

    @cached_property
    def _by_place(self) -> dict[str, list[Node]]:
        found = defaultdict(list)
        for node in self.nodes:
            found[node.file].append(node)
        return found

    def _node(self, place: Place) -> Node | None:
        """The smallest node around a place."""
        if place.column is None or place.end_column is None:
            start = end = (place.line, 0)
            around = [node for node in self._by_place[place.code.file] if node.start[0] <= place.line <= node.end[0]]
        else:
            position = place.code.file, place.line, place.column, place.end_line or place.line, place.end_column
            _, line, column, *last = self.flow.awaited.get(position, position)
            start, end = (line, column or 0), (last[0] or line, last[1] or 0)
            around = [node for node in self._by_place[place.code.file] if node.start <= start and end <= node.end]
        around = [node for node in around if isinstance(node.tree, ast.Call | ast.stmt)]
        return max(around, key=_smallness, default=None)

    @cached_property
    def ends(self) -> dict[Stack, Node]:
        """The node at which a stack leaves the functions that are followed."""
        found = {}
        for stack, places in self.inner.items():
            last, beyond = places[0], ""
            for place in places[1:]:
                scope = scope_of(place)[1]
                if scope and scope not in self.transparent:
                    beyond = scope
                    break
                last = place
            node = self._node(last)
            if node is not None:
                found[stack] = self._apart.get((id(node.tree), beyond), node)
        return found

    @cached_property
    def _apart(self) -> dict[tuple[int, str], Node]:
        """The nodes of calls with exactly one known function, by the call's tree and that function."""
        return {(id(node.tree), node.callees[0]): node for node in self.nodes if len(node.callees) == 1}

    def kind_of_call(self, node: Node) -> str:
        """The kind of the called object, or of the object whose method is called; "" for data.

        A method without arguments, such as parameters(), passes on no data of the loop.
        """
        if not isinstance(node.tree, ast.Call):
            return ""
        function = node.tree.func
        own = self._kind(function, node)
        if own and own != variables.CODE:
            return own
        given = (*node.tree.args, *(word.value for word in node.tree.keywords))
        takes = any(not isinstance(each, ast.Constant) for each in given)
        return self._kind(function.value, node) if isinstance(function, ast.Attribute) and takes else ""

    def _kind(self, expression: ast.expr, node: Node) -> str:
        found = self.kinds.get(self.flow.place(expression, node.function), "")
        of_module = isinstance(expression, ast.Attribute) and self._kind(expression.value, node) == variables.CODE
        return found or (variables.CODE if of_module else "")

    @cached_property
    def updating_nodes(self) -> set[Node]:
        found = {node for stack, node in self.ends.items() if self.evidence(stack) in UPDATES}
        for node in self.nodes:
            if isinstance(node.tree, ast.Call):
                name = node.tree.func.attr if isinstance(node.tree.func, ast.Attribute) else ""
                optimizer = name == "step" and self.kind_of_call(node) == variables.OPTIMIZER
                learns = any(key not in self.transparent and self._learns(key) for key in node.callees)
                if optimizer or name == "backward" or learns:
                    found.add(node)
        return found | {node for node in self.taught if self._gives_nothing(node)}

    @cached_property
    def taught(self) -> set[Node]:
        """Method calls of an object that acts as a network, where no network of a known class is seen.

        One method takes data and returns nothing: what is learned stays in the object. Another returns a result.
        """
        if self.has_networks:
            return set()
        methods: defaultdict[Token, list[Node]] = defaultdict(list)
        for node in self.nodes:
            if _is_method(node.tree) and node.callees:
                owner = self.flow.place(node.tree.func.value, node.function)  # type: ignore[attr-defined]
                taken = {token for token in node.uses - {owner} if self._kinds.get(token) != variables.NUMBER}
                methods[owner] += [node] if taken and owner[1] else []
        both = (each for each in methods.values() if len({self._gives_nothing(node) for node in each}) > 1)
        return set().union(*both)

    def _gives_nothing(self, node: Node) -> bool:
        return all(isinstance(user.tree, ast.Expr) for user in self.value_edges[node])

    def _learns(self, key: str) -> bool:
        """Tell whether a function of the script updates parameters, by its text."""
        return updates_by_name(self.files, self.flow.functions[key])

    def changes_parameters(self, node: Node) -> bool:
        """Tell whether a call sets or moves the parameters of a network in place, such as a target network's."""
        if not isinstance(node.tree, ast.Call):
            return False
        names = self.names_in(node)
        in_place = any(name.endswith("_") and not name.endswith("__") for name in names)
        return "load_state_dict" in names or (in_place and (not node.callees or "parameters" in names))

    def names_in(self, node: Node) -> set[str]:
        """Names of the functions called by a call's text, and by the script's functions that it calls."""
        trees = (node.tree, *(self.flow.functions[key] for key in node.callees))
        return {call_name(each) for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Call)}

    def in_context(self, node: Node) -> set[Node]:
        """Nodes in the body of a `with` statement, or of a context manager that it enters. Empty for other nodes."""
        statements = (each.tree for each in self.nodes if isinstance(each.tree, ast.With) and each.file == node.file)
        for tree in statements:
            if tree is node.tree or any(item.context_expr is node.tree for item in tree.items):
                last = tree.end_lineno or 0
                return {each for each in self._by_place[node.file] if tree.body[0].lineno <= each.start[0] <= last}
        return set()

    def gives_network(self, node: Node) -> bool:
        """Tell whether the statement around a node assigns a network, such as a copy of one."""
        statements = (each for each in self.nodes if isinstance(each.tree, ast.Assign) and each.file == node.file)
        around = (each for each in statements if each.start <= node.start and node.end <= each.end)
        kinds = {self._kind(target, each) for each in around for target in each.tree.targets}  # type: ignore[attr-defined]
        return variables.NETWORK in kinds

    def loop_around(self, node: Node) -> Loop | None:
        """The innermost loop around a node, within its function."""
        tree = self.flow.functions.get(node.function) or self._trees[node.file]
        return max(functions.loops_at(tree, node.start[0]), key=lambda loop: loop.lineno, default=None)

    @cached_property
    def networks(self) -> set[Node]:
        found = {node for stack, node in self.ends.items() if has_network(stack)}
        found |= {node for node in self.nodes if self.kind_of_call(node) in (variables.NETWORK, variables.COMPILED)}
        return (found | self.taught) - self.updating_nodes

    def edges(self, changes: bool, without: set[Node]) -> dict[Node, set[Node]]:
        """Node -> nodes that use its results. changes: also those that use objects it changed, except in `without`."""
        users = defaultdict(set)
        for node in self.nodes:
            for token in node.uses:
                users[token].add(node)
        found = {}
        for node in self.nodes:
            given = set(node.defines)
            if changes and node not in without:
                given |= node.changes.union(*(self._parts.get(token, ()) for token in node.changes))
            found[node] = set().union(*(users[token] for token in given)) - {node} if given else set()
            if given & node.uses:
                found[node].add(node)
        return found

    @cached_property
    def _parts(self) -> dict[Token, set[Token]]:
        """Object that outlasts the loop, such as a buffer -> objects, except learners, that it was made with."""
        receivers = (node.tree.func.value for node in self.updating_nodes if _is_method(node.tree))  # type: ignore[attr-defined]
        learners = {each.id for each in receivers if isinstance(each, ast.Name)}
        made_here = set().union(*(node.defines for node in self.nodes)) | self.kinds.keys()
        found = {}
        for node, handed in self.flow.made_with:
            kept = {token for token in handed - made_here if token[1] not in learners}
            found.update({token: kept for token in node.defines - made_here})
        return found

    @cached_property
    def value_edges(self) -> dict[Node, set[Node]]:
        return self.edges(False, set())

    @cached_property
    def all_edges(self) -> dict[Node, set[Node]]:
        return self.edges(True, set())


def _text(tree: ast.AST) -> str:
    return ast.unparse(tree).partition("\n")[0][:LONGEST]


def _smallness(node: Node) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """Sort key of nodes around a place: the smallest node last, and a call after the statement that consists of it."""
    return node.start, (-node.end[0], -node.end[1]), isinstance(node.tree, ast.Call)


def _is_method(tree: ast.AST) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute)
