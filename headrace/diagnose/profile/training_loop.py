"""The part of each call in a script's training loop, from evidence: where it is, and what flows through it.

What takes a network's output and gives its next input is the environment, whatever its name is. What lies on the way
to a change of parameters, without a network, is data handling. What plays, and never reaches such a change, evaluates;
what gives nothing that the loop uses is side work.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from headrace.diagnose.injected import variables
from headrace.diagnose.profile import data_flow
from headrace.diagnose.profile.data_flow import DataFlow, Node, Position, Token
from headrace.diagnose.profile.loop_search import LEAST, UPDATES, OwnLoop, has_network, index_of, scope_of
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.source_context import syntax_tree, text_at
from headrace.diagnose.profile.spool import Place, Stack

MANY = 20  # turns of a loop in which no update is seen, from which on it is taken for one that trains
LONGEST = 72  # characters of a statement's text
AGAIN = 2  # states of the script's variables in which something is set up, above which it is set up again and again
SET_UP = (Role.START_UP, Role.READING)
WRITES = 0.1  # share of a node's time from which on it is taken for one that logs or saves
SETS_UP = 0.3  # share of a node's time from which on it is what the node does
WRAPPERS = ("torch", "functools", "contextlib", "jax")  # whose decorators may be between two functions of the script
CONVERSIONS = ("item", "numpy", "tolist", "detach", "sample", "argmax", "float", "long", "astype", "squeeze", "cpu")
WITHOUT_DATA = (  # methods of networks that hand on no data of the loop
    "parameters", "named_parameters", "state_dict", "load_state_dict", "eval", "train", "zero_grad", "to", "modules",
    "requires_grad_", "cuda", "cpu", "share_memory", "buffers", "children",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What the flow says about a stack."""

    role: Role
    sure: bool


class TrainingLoop(OwnLoop):
    """The training loop of one process, with what flows through its calls."""

    @cached_property
    def _findings(self) -> dict[Stack, Finding | None]:
        return {}

    def began(self) -> float | None:
        """When the second turn of the loop began, in s of time.monotonic(); None while it is not seen to train.

        Without an update that is seen, a loop that turns often trains as well, unless it reads files.
        """
        if self.tree is None or len(self.turns) < 2:
            return None
        reads = sum(self.spent[stack] for stack in self.inner if self.evidence(stack) in (Role.READING, Role.DATA))
        often = len(self.turns) > MANY and reads < LEAST * sum(self.spent[stack] for stack in self.inner)
        trains = bool(self._updates) or often
        return self.turns[1] if trains else None

    @cached_property
    def _remade(self) -> set[Node]:
        """The nodes at which something was set up or read while the script's variables were different ones."""
        seen = defaultdict(set)
        for sample in self.samples:
            if sample.stack in self._ends and self.evidence(sample.stack) in SET_UP:
                seen[self._ends[sample.stack]].add(sample.variables)
        return {node for node, variables in seen.items() if len(variables) > AGAIN}

    def _is_set_up(self, node: Node) -> bool:
        """Whether a node takes nothing that the loop changes, and sets something up, or reads it, again and again."""
        elsewhere = set().union(*(each.defines | each.changes for each in self._nodes if each is not node))
        if node.uses & elsewhere or node not in self._remade:
            return False
        total = sum(self.spent[stack] for stack, end in self._ends.items() if end is node)
        set_up = sum(
            self.spent[stack] for stack, end in self._ends.items() if end is node and self.evidence(stack) in SET_UP
        )
        return set_up > SETS_UP * total

    # --- the graph

    @cached_property
    def _transparent(self) -> set[str]:
        """Functions of the script below the loop whose calls are followed: those in which an update is, or a network.

        One that changes nothing, such as `pick(x)`, which several may share, is a network at each of its calls.
        """
        updating, using = set(), set()
        for stack, places in self.inner.items():
            inside = {scope_of(place)[1] for place in places[1:]} - {""}
            if self.evidence(stack) in UPDATES:
                updating |= inside
            elif has_network(stack):
                using |= inside
        plain = DataFlow(self._trees, (), self._called)
        kinds = self._kinds_in(plain)
        return updating | {key for key in using if plain.effects(key)[1] - kinds.keys()}

    @cached_property
    def _called(self) -> dict[Position, str]:
        """Position of a call -> key of the script's function that it was seen to call."""
        found: dict[Position, str] = {}
        for stack, places in self.inner.items():
            for outer, inner in pairwise(places):
                between = stack[index_of(stack, inner) + 1 : index_of(stack, outer)]
                direct = all(place.code.module.partition(".")[0] in WRAPPERS for place in between)
                key = scope_of(inner)[1]
                if direct and key and outer.column is not None:
                    found[outer.code.file, outer.line, outer.column, outer.end_line, outer.end_column] = key
        return found

    @cached_property
    def _orphans(self) -> set[str]:
        """Functions that are followed, but whose calls are not known: what flows into them is not known either."""
        return self._transparent - {node.callee for node in self._nodes}

    @cached_property
    def _trees(self) -> dict[str, ast.Module]:
        files = {place.code.file for places in self.inner.values() for place in places}
        return {file: syntax_tree(file) for file in files}

    @cached_property
    def _flow(self) -> DataFlow:
        return DataFlow(self._trees, self._transparent | {self.scope}, self._called)

    @cached_property
    def _kinds(self) -> dict[Token, str]:
        """Tokens of networks, optimizers, functions, ...: no data of the loop flow through them."""
        return self._kinds_in(self._flow)

    def _kinds_in(self, flow: DataFlow) -> dict[Token, str]:
        found = {}
        for places in self.inner.values():
            for place in places:
                for name, kind in place.kinds:
                    found[("", name) if name.startswith(".") else flow.token(name, scope_of(place)[1])] = kind
        return found

    @cached_property
    def _nodes(self) -> list[Node]:
        first, last = self.tree.lineno, self.tree.end_lineno or 0  # type: ignore[union-attr]
        inside = [
            node
            for node in self._flow.nodes
            if (node.function == self.scope and first <= node.start[0] <= last) or node.function in self._transparent
        ]
        for node in inside:
            for tokens in (node.uses, node.defines, node.changes):
                tokens.difference_update([token for token in tokens if token in self._kinds])
        return inside

    @cached_property
    def _by_place(self) -> dict[str, list[Node]]:
        found = defaultdict(list)
        for node in self._nodes:
            found[node.file].append(node)
        return found

    def _node(self, place: Place) -> Node | None:
        """The smallest node around a place."""
        if place.column is None or place.end_column is None:
            start = end = (place.line, 0)
            around = [node for node in self._by_place[place.code.file] if node.start[0] <= place.line <= node.end[0]]
        else:
            start, end = (place.line, place.column), (place.end_line or place.line, place.end_column)
            around = [node for node in self._by_place[place.code.file] if node.start <= start and end <= node.end]
        around = [node for node in around if isinstance(node.tree, ast.Call | ast.stmt)]
        return max(around, key=_smallness, default=None)

    @cached_property
    def _ends(self) -> dict[Stack, Node]:
        """The node at which a stack leaves the functions that are followed."""
        found = {}
        for stack, places in self.inner.items():
            last = places[0]
            for place in places[1:]:
                scope = scope_of(place)[1]
                if scope and scope not in self._transparent:
                    break
                last = place
            node = self._node(last)
            if node is not None:
                found[stack] = node
        return found

    def _kind_of_call(self, node: Node) -> str:
        """The kind of what a call calls, or of the object whose method it calls; "" for data."""
        if not isinstance(node.tree, ast.Call):
            return ""
        function = node.tree.func
        own = self._kind(function, node)
        if own and own != variables.CODE:
            return own
        if isinstance(function, ast.Attribute) and function.attr not in WITHOUT_DATA:
            return self._kind(function.value, node)
        return ""

    def _kind(self, expression: ast.expr, node: Node) -> str:
        if isinstance(expression, ast.Name):
            return self._kinds.get(self._flow.token(expression.id, node.function), "")
        if isinstance(expression, ast.Attribute):
            return self._kinds.get(("", f".{expression.attr}"), "") or (
                variables.CODE if self._kind(expression.value, node) == variables.CODE else ""
            )
        return ""

    @cached_property
    def _updates(self) -> set[Node]:
        found = {node for stack, node in self._ends.items() if self.evidence(stack) in UPDATES}
        for node in self._nodes:
            if isinstance(node.tree, ast.Call):
                name = node.tree.func.attr if isinstance(node.tree.func, ast.Attribute) else ""
                optimizer = name == "step" and self._kind_of_call(node) == variables.OPTIMIZER
                key = node.callee
                if optimizer or name == "backward" or (key and data_flow.computes_gradients(self._flow.functions[key])):
                    found.add(node)
        return found

    @property
    def updates(self) -> bool:
        """Whether a call that updates parameters is known, sampled or not."""
        return self.tree is not None and bool(self._updates)

    @cached_property
    def _networks(self) -> set[Node]:
        found = {node for stack, node in self._ends.items() if has_network(stack)}
        found |= {node for node in self._nodes if self._kind_of_call(node) in (variables.NETWORK, variables.COMPILED)}
        return found - self._updates

    def _edges(self, changes: bool, without: set[Node]) -> dict[Node, set[Node]]:
        users = defaultdict(set)
        for node in self._nodes:
            for token in node.uses:
                users[token].add(node)
        found = {}
        for node in self._nodes:
            given = node.defines | (node.changes if changes and node not in without else set())
            found[node] = set().union(*(users[token] for token in given)) - {node} if given else set()
            if given & node.uses:
                found[node].add(node)
        return found

    @cached_property
    def _playing(self) -> dict[Node, set[Node]]:
        """Networks whose output comes back as their input, by way of an environment -> the nodes of that cycle."""
        return {node: cycle for node, cycle in self._cycles.items() if self._environments & cycle}

    @cached_property
    def _strong(self) -> set[Node]:
        """Networks whose output comes back by values alone, and not by way of objects that calls may have changed."""
        return set()

    @cached_property
    def _environments(self) -> set[Node]:
        return {node for node in self._nodes if node not in self._networks and self._may_be_environment(node)}

    @cached_property
    def _cycles(self) -> dict[Node, set[Node]]:
        """The same, of networks whose output comes back in whatever way: those that generate a sequence, too."""
        found: dict[Node, set[Node]] = {}
        for changes in (False, True):
            edges = self._edges(changes, set())
            reach = {node: _reach(node, edges, self._updates) for node in self._networks}
            acting = [node for node in self._networks if node in reach[node]]
            acting = [node for node in acting if not any(node in reach[m] and m not in reach[node] for m in acting)]
            for node in acting:
                cycle = {m for m in reach[node] if m in acting or node in _reach(m, edges, self._updates)}
                if node not in found:
                    found[node] = cycle
                    self._strong |= set() if changes else {node}
            if any(self._environments & cycle for cycle in found.values()):
                break
        return found

    @cached_property
    def _learned_from(self) -> set[Node]:
        """The nodes from which data reach a change of parameters."""
        cycles = set().union(*self._playing.values())
        edges = self._edges(True, cycles)
        backwards: defaultdict[Node, set[Node]] = defaultdict(set)
        for node, following in edges.items():
            for each in following:
                backwards[each].add(node)
        return set().union(*(_reach(node, backwards, set()) for node in self._updates)) | self._updates

    def _may_be_environment(self, node: Node) -> bool:
        """Whether a node is a call of something else than a function of an array library or of Python."""
        if not isinstance(node.tree, ast.Call):
            return False
        function = node.tree.func
        if isinstance(function, ast.Name):
            return bool(node.callee) or self._kinds.get(self._flow.token(function.id, node.function), "") != ""
        return self._kind_of_call(node) == "" and not _is_conversion(node.tree) and not self._is_of_arrays(node)

    def _is_of_arrays(self, node: Node) -> bool:
        """Whether a method is of what a network, or a function of a library, has given."""
        value = node.tree.func  # type: ignore[attr-defined]
        while isinstance(value, ast.Attribute | ast.Subscript):
            value = value.value
        return isinstance(value, ast.Call) and self._kind_of_call(Node(value, node.file, node.function)) != ""

    # --- findings

    def statement(self, stack: Stack) -> tuple[str, int, str] | None:
        """File, line and text of the loop's own call or statement that a stack is in; None outside the loop."""
        if self.tree is None or stack not in self.inner:
            return None
        place = self.inner[stack][0]
        node = self._node(place)
        text = ast.unparse(node.tree).partition("\n")[0] if node else text_at(place.code.file, place.line)
        return place.code.file, place.line, text[:LONGEST]

    def finding(self, stack: Stack) -> Finding | None:
        """The role of a stack within the loop; None outside, and where nothing is known."""
        if stack not in self._findings:
            node = self._ends.get(stack) if self.tree is not None else None
            self._findings[stack] = None if node is None else self._judged(stack, node)
        return self._findings[stack]

    def _judged(self, stack: Stack, node: Node) -> Finding | None:
        role = self.evidence(stack)
        eager = role is Role.START_UP and self._kind_of_call(node) == variables.NETWORK  # JAX traces each of its calls
        if not eager and (role is Role.START_UP or self._is_set_up(node)):
            return Finding(Role.REMADE, True) if node in self._remade else None
        if role in (*UPDATES, Role.READING):
            return Finding(role, True)
        if node.function in self._orphans:
            return None
        plays = [network for network, cycle in self._playing.items() if node is network or node in cycle]
        known = bool(self._updates)
        learned = node in self._learned_from or any(each in self._learned_from for each in plays)
        some = known and any(each in self._learned_from for each in self._networks)
        if some and not learned and (plays or has_network(stack) or role is Role.ENVIRONMENT):
            return Finding(Role.EVALUATION, True)
        if has_network(stack) or role is Role.FORWARD or eager:
            generates = any(node is network or node in cycle for network, cycle in self._cycles.items())
            acts = bool(plays) or (not self.has_gradients(stack) and (generates or not learned))
            return Finding(Role.INFERENCE if acts else Role.FORWARD, True)
        if role in (Role.ENVIRONMENT, Role.WAIT, Role.IDLE, Role.LOGGING) and plays:
            return Finding(Role.ENVIRONMENT, True)
        if role is not None and role not in (Role.DATA, Role.OTHER):
            return None
        found = self._by_flow(node, bool(plays), learned, known)
        weak = bool(plays) and not any(network in self._strong for network in plays)
        return Finding(found.role, False) if found and weak else found

    def _by_flow(self, node: Node, plays: bool, learned: bool, known: bool) -> Finding | None:
        """The role of code of which no class and no library tells what it is."""
        if plays:
            environment = node in self._environments
            return Finding(Role.ENVIRONMENT if environment else Role.INFERENCE, environment)
        if node in self._updates or (node in self._networks and learned):
            return Finding(Role.FORWARD, False)
        if not known:
            gives = _reach(node, self._all_edges, set()) - {node}
            return Finding(Role.SIDE, False) if not gives and isinstance(node.tree, ast.Call) else None
        if learned:
            return Finding(Role.DATA, False)
        return Finding(self._writing.get(node, Role.SIDE), node in self._writing)

    @cached_property
    def _writing(self) -> dict[Node, Role]:
        """The nodes that log or save for a part of their time, and which of both they do."""
        spent: defaultdict[Node, Counter[Role | None]] = defaultdict(Counter)
        for stack, node in self._ends.items():
            spent[node][self.evidence(stack)] += self.spent[stack]  # type: ignore[assignment]
        roles = {node: max((Role.LOGGING, Role.SAVING), key=each.__getitem__) for node, each in spent.items()}
        return {node: role for node, role in roles.items() if spent[node][role] > WRITES * spent[node].total()}

    @cached_property
    def _all_edges(self) -> dict[Node, set[Node]]:
        return self._edges(True, set())


def _reach(start: Node, edges: dict[Node, set[Node]], stop: set[Node]) -> set[Node]:
    """The nodes that follow a node, without what follows those of `stop`."""
    seen: set[Node] = set()
    left = [start]
    while left:
        for node in edges.get(left.pop(), ()):
            if node not in seen:
                seen.add(node)
                if node not in stop:
                    left.append(node)
    return seen


def _smallness(node: Node) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """An order of nodes around a place: the smallest last, of a statement that is a call the call."""
    return node.start, (-node.end[0], -node.end[1]), isinstance(node.tree, ast.Call)


def _is_conversion(call: ast.Call) -> bool:
    """Whether a method converts its object, and does nothing else."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in CONVERSIONS
