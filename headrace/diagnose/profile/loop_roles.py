"""The role of each call in a script's training loop, from the call's place and from the values that flow through it.

Code that takes a network's output and gives the network's next input is the environment, whatever its name is. Code
without a network, on the way to a change of parameters, is data handling. Code that steps environments, and whose
results never reach a change of parameters, is evaluation. Code whose results the loop does not use is side work.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from headrace.diagnose.injected import variables
from headrace.diagnose.profile.data_flow import MAKES, Node
from headrace.diagnose.profile.loop_search import (
    UPDATES,
    has_network,
)
from headrace.diagnose.profile.profile import LEARNING, Role
from headrace.diagnose.profile.role_patterns import C_FUNCTIONS
from headrace.diagnose.profile.source_context import call_name
from headrace.diagnose.profile.spool import Stack
from headrace.diagnose.profile.training_loop import TrainingLoop

AGAIN = 2  # set-up that is seen in more states of the script's variables than this is repeated set-up
FROM_FILES = 1 / 3  # above this ratio, time of reading / time of setting up, a call counts as reading
WRITING = (Role.LOGGING, Role.SAVING)
SET_UP = (Role.START_UP, Role.READING)
WRITES = 0.1  # a node that logs or saves for more than this share of its time counts as logging or saving
NETWORKS = 1 / 3  # where networks take more than this share of a node's time, the rest counts as learning, too


@dataclass(frozen=True)
class Finding:
    """The role of a stack, by the flow of values; `sure` where it is known, rather than likely."""

    role: Role
    sure: bool


class LoopRoles:
    """Finds the roles of the calls in a loop."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._findings: dict[Stack, Finding | None] = {}

    @cached_property
    def _remade(self) -> set[Node]:
        """The nodes at which something was set up or read in several states of the script's variables: repeatedly."""
        seen = defaultdict(set)
        for sample in self._loop.samples:
            if sample.stack in self._loop.ends and self._loop.evidence(sample.stack) in SET_UP:
                seen[self._loop.ends[sample.stack]].add(sample.variables)
        return {node for node, variables in seen.items() if len(variables) > AGAIN}

    @cached_property
    def _loading(self) -> dict[Node, Role]:
        """Calls that read and set up for most of their time, such as loading an opponent -> their role."""
        spent: defaultdict[Node, Counter[Role | None]] = defaultdict(Counter)
        for stack, node in self._loop.ends.items():
            role = self._loop.evidence(stack)
            again = role is Role.READING or (role is Role.START_UP and node in self._remade)
            spent[node][role if again else None] += self._loop.spent[stack]  # type: ignore[assignment]
        most = {node: each for node, each in spent.items() if each[Role.READING] and each[None] < each.total() / 2}
        return {
            node: Role.READING if each[Role.READING] > FROM_FILES * each[Role.START_UP] else Role.REMADE
            for node, each in most.items()
        }

    @cached_property
    def _playing(self) -> dict[Node, set[Node]]:
        """Networks whose output comes back as their input, by way of an environment -> the nodes of that cycle."""
        return {node: cycle for node, cycle in self._cycles.items() if self._environments & cycle}

    @cached_property
    def _strong(self) -> set[Node]:
        """Networks whose output comes back as their input by values alone, not by objects that calls may change."""
        return set()

    @cached_property
    def _environments(self) -> set[Node]:
        return {node for node in self._loop.nodes if node not in self._loop.networks and self._may_be_environment(node)}

    @cached_property
    def _cycles(self) -> dict[Node, set[Node]]:
        """Networks whose output comes back as their input in any way -> the nodes of that cycle. Networks that generate
        a sequence are among them."""
        found: dict[Node, set[Node]] = {}
        for changes in (False, True):
            edges = self._loop.all_edges if changes else self._loop.value_edges
            reach = {node: _reach(node, edges, self._loop.updating_nodes) for node in self._loop.networks}
            acting = [node for node in self._loop.networks if node in reach[node]]
            acting = [node for node in acting if not any(node in reach[m] and m not in reach[node] for m in acting)]
            acting = [node for node in acting if not self._is_replay_of(node, acting)]
            for node in acting:
                cycle = {m for m in reach[node] if m in acting or node in _reach(m, edges, self._loop.updating_nodes)}
                if node not in found:
                    found[node] = cycle
                    self._strong |= set() if changes else {node}
            if any(self._environments & cycle for cycle in found.values()):
                break
        return found

    def _is_replay_of(self, node: Node, acting: list[Node]) -> bool:
        """Tell whether a network learns from data of another network or an environment: its cycle is a replay's."""
        after = _reach(node, self._loop.all_edges, self._loop.updating_nodes)
        if self._stepping & after:
            return False  # it acts: an environment takes what it gives
        sources = {*acting, *self._stepping} - after
        fed = (_reach(each, self._loop.all_edges, self._loop.updating_nodes) for each in sources)
        return bool(after & self._loop.updating_nodes) and any(node in each for each in fed)

    @cached_property
    def _learned_from(self) -> set[Node]:
        """The nodes from which data reach a change of parameters."""
        cycles = set().union(*self._playing.values())
        backwards = _reversed(self._loop.edges(True, cycles))
        updating = self._loop.updating_nodes
        return updating.union(*(_reach(node, backwards, set()) for node in updating))

    def _is_asked_while_playing(self, node: Node) -> bool:
        """Tell whether the innermost loop around a node acts and updates nothing: its networks act or judge."""
        loop = self._loop.loop_around(node)
        plays = any(self._loop.loop_around(each) is loop for each in self._playing)
        updates = any(self._loop.loop_around(each) is loop for each in self._leading_to_updates)
        return loop is not None and plays and not updates

    @cached_property
    def _leading_to_updates(self) -> set[Node]:
        """The nodes that change parameters, and calls of functions that contain such nodes."""
        found = set(self._loop.updating_nodes)
        before = 0
        while len(found) > before:
            before, holding = len(found), {node.function for node in found}
            found |= {node for node in self._loop.nodes if holding.intersection(node.callees)}
        return found

    def _is_graded(self, node: Node) -> bool:
        """Tell whether code other than a loss judges a network's output, as for sentences and one-step games.

        A call inside the function that updates the parameters is not judged: networks that are called there compute
        targets.
        """
        updating = {each.function for each in self._loop.updating_nodes} - {self._loop.scope}
        return node.function not in updating and bool(
            self._graders & _reach(node, self._loop.all_edges, self._loop.updating_nodes)
        )

    @cached_property
    def _graders(self) -> set[Node]:
        """Environments and functions of the script whose results reach the update, without inputs that have
        gradients."""
        derived = {
            node for stack, node in self._loop.ends.items() if has_network(stack) and self._loop.has_gradients(stack)
        }
        fed = set().union(*(_reach(node, self._loop.all_edges, self._loop.updating_nodes) for node in derived))
        some = {node for node in self._environments if node.callees or node in self._stepping}
        return some & self._learned_from - fed

    @cached_property
    def _stepping(self) -> set[Node]:
        """The nodes in which environments of known classes are stepped."""
        return {node for stack, node in self._loop.ends.items() if self._loop.evidence(stack) is Role.ENVIRONMENT}

    def _may_be_environment(self, node: Node) -> bool:
        """Tell whether a node calls anything but a function of an array library or of Python."""
        if not isinstance(node.tree, ast.Call):
            return False
        function = node.tree.func
        if any(f":{MAKES}:" in key for key in node.callees):
            return False
        if isinstance(function, ast.Name):
            return (
                bool(node.callees) or self._loop.kinds.get(self._loop.flow.token(function.id, node.function), "") != ""
            )
        if isinstance(function, ast.Attribute) and self._loop.is_of_data(function.value, node):
            return False
        return self._loop.kind_of_call(node) == ""

    def finding(self, stack: Stack) -> Finding | None:
        """The role of a stack within the loop; None outside, and where nothing is known."""
        if stack not in self._findings:
            node = self._loop.ends.get(stack) if self._loop.tree is not None else None
            self._findings[stack] = None if node is None else self._judged(stack, node)
        return self._findings[stack]

    def _judged(self, stack: Stack, node: Node) -> Finding | None:
        role = self._loop.evidence(stack)
        if node in self._loading:
            return Finding(self._loading[node], True)
        # JAX traces each of its calls
        eager = role is Role.START_UP and self._loop.kind_of_call(node) == variables.NETWORK
        if role is Role.START_UP and not eager:
            return Finding(Role.REMADE, True) if node in self._remade else None
        if role in (*UPDATES, Role.READING, Role.GARBAGE):
            return Finding(role, True)
        if node.function in self._loop.orphans:
            return None
        plays = [network for network, cycle in self._playing.items() if node is network or node in cycle]
        known = bool(self._loop.updating_nodes)
        learned = node in self._learned_from or any(each in self._learned_from for each in plays)
        some = known and any(each in self._learned_from for each in self._loop.networks)
        if some and not learned and (plays or has_network(stack) or role is Role.ENVIRONMENT):
            return Finding(Role.EVALUATION, True)
        if not self._loop.has_networks and not self._loop.taught and role in (None, Role.DATA):
            recurs = node in self._environments and node in _reach(node, self._loop.value_edges, set())
            return Finding(Role.ENVIRONMENT, False) if recurs else None
        if has_network(stack) or eager or role is Role.FORWARD:
            return self._of_network(stack, node, bool(plays), learned)
        if role in (Role.ENVIRONMENT, Role.WAIT, Role.IDLE, Role.LOGGING) and plays:
            return Finding(Role.ENVIRONMENT, True)
        if role in WRITING and node in self._writing:
            return Finding(self._writing[node], True)
        if role not in (None, Role.FORWARD, Role.DATA, Role.OTHER):
            return None
        found = self._by_flow(node, bool(plays), learned, known)
        weak = bool(plays) and not any(network in self._strong for network in plays)
        return Finding(found.role, False) if found and weak else found

    def _of_network(self, stack: Stack, node: Node, plays: bool, learned: bool) -> Finding:
        """Acting or learning: a network on a way to an update learns, where it has not generated what is learned."""
        if plays or (node in self._stepping and node not in self._loop.updating_nodes):
            return Finding(Role.INFERENCE, True)
        if self._loop.has_gradients(stack):
            return Finding(Role.FORWARD, True)
        generates = node in self._stepping or any(node is each or node in cycle for each, cycle in self._cycles.items())
        if not generates and learned:
            acts = self._is_graded(node) or self._is_asked_while_playing(node)
            return Finding(Role.INFERENCE, False) if acts else Finding(Role.FORWARD, True)
        return Finding(Role.INFERENCE, True)

    def _by_flow(self, node: Node, plays: bool, learned: bool, known: bool) -> Finding | None:
        """The role of code whose class and library do not show its role."""
        if inside := self._loop.in_context(node) & self._loop.networks:  # as no_grad() around a network
            acts = any(each is network or each in cycle for each in inside for network, cycle in self._playing.items())
            return Finding(Role.INFERENCE if acts else Role.FORWARD, False)
        if plays:
            role = self._playing_role(node)  # where an environment is known, another may be of its wrappers
            return Finding(role, role is Role.ENVIRONMENT and not self._stepping)
        if node in self._loop.updating_nodes or (node in self._loop.networks and learned):
            return Finding(Role.FORWARD, False) if node in self._mostly_networks | self._loop.taught else None
        if (waited_for := self._waited_for(node)) is not None:
            return Finding(waited_for, True)
        if node in self._beginning or self._rewards(node):
            return Finding(Role.ENVIRONMENT, False)
        if learned:
            return Finding(self._playing_role(node) if node in self._weakly_playing else Role.DATA, False)
        # code whose result is only written is a part of the writing
        writes = next((each for each in (node, *self._given_to(node)) if each in self._writing), None)
        if writes:
            return Finding(self._writing[writes], True)
        if not known:
            return None
        if self._loop.changes_parameters(node):
            return Finding(Role.OPTIMIZER, False)
        if self._loop.gives_network(node):
            return Finding(Role.REMADE, False)
        written = {C_FUNCTIONS.get(name) for name in self._loop.names_in(node)}  # in the text of what is called
        return Finding(next((role for role in (Role.SAVING, Role.LOGGING) if role in written), Role.SIDE), False)

    @cached_property
    def _beginning(self) -> set[Node]:
        """Nodes that give an acting network its input, and are not on its cycle: they begin episodes."""
        stop = self._loop.networks | self._loop.updating_nodes
        playing = self._strong & self._playing.keys()
        return set().union(*(_reach(node, _reversed(self._loop.value_edges), stop) for node in playing))

    def _rewards(self, node: Node) -> bool:
        """Tell whether a call computes a reward in the loop that steps environments: it gives a number or an array."""
        if not self._may_be_environment(node) or variables.CONTAINER in self._loop.gives(node):
            return False
        given = self._loop.gives(node) & {variables.NUMBER, *([variables.ARRAY] if node.callees else [])}
        loop = self._loop.loop_around(node)
        cycles = (cycle for network, cycle in self._playing.items() if self._loop.loop_around(network) is loop)
        takes = any(node in self._loop.value_edges[each] for cycle in cycles for each in cycle)
        return bool(given) and takes

    @cached_property
    def _mostly_networks(self) -> set[Node]:
        """The nodes in which networks, their updates and torch take a good part of the time."""
        spent: defaultdict[Node, Counter[bool]] = defaultdict(Counter)
        for stack, node in self._loop.ends.items():
            known = self._loop.evidence(stack) in LEARNING
            spent[node][known] += self._loop.spent[stack]  # type: ignore[assignment]
        return {node for node, each in spent.items() if each[True] > NETWORKS * each.total()}

    def _playing_role(self, node: Node) -> Role:
        return Role.ENVIRONMENT if node in self._environments else Role.INFERENCE

    @cached_property
    def _weakly_playing(self) -> set[Node]:
        """Nodes between an acting network's output and its next input, by way of objects that calls may change."""
        found: set[Node] = set()
        stop, edges = self._loop.updating_nodes, self._loop.all_edges
        for network in self._playing:
            found |= _reach(network, edges, stop) & _reach(network, _reversed(edges), stop)
        updating = {node.function for node in self._leading_to_updates}
        plays = {node.function for node in self._playing} - updating  # where nothing is stored, or drawn to learn from
        return {node for node in found if node.function in plays or self._is_asked_while_playing(node)}

    def _given_to(self, node: Node) -> set[Node]:
        """The nodes that use a result: of a call, and of the statement that it is in."""
        users = self._loop.value_edges[node]
        return users.union(*(self._loop.value_edges[each] for each in users))

    def _waited_for(self, node: Node) -> Role | None:
        """The role of the network whose result a call converts, and may wait for, as JAX computes in the background."""
        if not isinstance(node.tree, ast.Call) or node.callees or not isinstance(node.tree.func, ast.Attribute):
            return None
        value = node.tree.func.value
        if isinstance(value, ast.Name) and self._loop.kind_of_value(value, node) == variables.CONTAINER:
            return None
        for role, nodes in ((Role.FORWARD, self._loop.updating_nodes), (Role.INFERENCE, self._loop.networks)):
            if any(node in self._given_to(each) for each in nodes):
                return role
        return None

    @cached_property
    def _writing(self) -> dict[Node, Role]:
        """The nodes that log or save for a part of their time -> which of the two."""
        spent: defaultdict[Node, Counter[Role | None]] = defaultdict(Counter)
        for stack, node in self._loop.ends.items():
            spent[node][self._loop.evidence(stack)] += self._loop.spent[stack]  # type: ignore[assignment]
        found = {}
        for node, each in spent.items():
            writing = sum(each[role] for role in WRITING)
            if writing > WRITES * each.total():  # to save is to write; what serializes a part of it saves
                found[node] = Role.SAVING if each[Role.SAVING] > WRITES * writing else Role.LOGGING
        names = ((node, call_name(node.tree)) for node in self._loop.nodes if isinstance(node.tree, ast.Call))
        return found | {node: C_FUNCTIONS[name] for node, name in names if C_FUNCTIONS.get(name) in WRITING}


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


def _reversed(edges: dict[Node, set[Node]]) -> dict[Node, set[Node]]:
    found: defaultdict[Node, set[Node]] = defaultdict(set)
    for node, following in edges.items():
        for each in following:
            found[each].add(node)
    return found
