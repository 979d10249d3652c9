"""The loop of a script's own files in which it trains, found in its samples."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property

from headrace.diagnose.injected.stacks import JITTED
from headrace.diagnose.profile import data_flow
from headrace.diagnose.profile.data_flow import Loop
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.source_context import call_at, is_own, syntax_tree
from headrace.diagnose.profile.spool import Place, Sample, Stack

MODULE, FORWARD = "torch.nn.modules.module.Module", ("_wrapped_call_impl", "_call_impl")
UPDATES = (Role.BACKWARD, Role.OPTIMIZER)
MOST = 0.8  # of the time of the longest loop that updates parameters, which the loop spans at least
LEAST = 0.5  # of the time since it began, that a loop of the script's own spans; less where a library has the loop
Evidence = Callable[[Stack], Role | None]  # the role of a stack by the classes and libraries that it is in


class OwnLoop:
    """The loop of a process, as its samples show it; `tree` is None where it is in no file of the script."""

    def __init__(self, samples: Sequence[Sample], evidence: Evidence, has_gradients: Callable[[Stack], bool]) -> None:
        self.samples, self.evidence, self.has_gradients = samples, evidence, has_gradients
        self.spent: Counter[Stack] = Counter()
        for sample in samples:
            self.spent[sample.stack] += sample.seconds  # type: ignore[assignment]
        self._own = {stack: _own_places(stack) for stack in self.spent}
        self.updating = sum(seconds for stack, seconds in self.spent.items() if evidence(stack) in UPDATES)
        self.file, self.scope, self.tree = self._find()

    # --- the loop

    def _find(self) -> tuple[str, str, Loop | None]:
        spans: Counter[tuple[str, str, Loop]] = Counter()
        updates: Counter[tuple[str, str, Loop]] = Counter()
        for stack, seconds in self.spent.items():
            update = self.evidence(stack) in UPDATES
            found = {each for place in self._own[stack] for each in self._loops(place)}
            for each in found:
                spans[each] += seconds  # type: ignore[assignment]
                updates[each] += seconds if update else 0.0  # type: ignore[assignment]
        most = max(updates.values(), default=0.0)
        for each in spans:  # updates too short to be sampled
            if not most and _updates_by_name(each[0], each[2]):
                updates[each] += 1e-9  # type: ignore[assignment]
        most = max(updates.values(), default=0.0)
        held = [each for each in spans if updates[each] > 0.9 * most] if most else list(spans)
        longest = max((spans[each] for each in held), default=0.0)
        if not held or longest < LEAST * self._since(max(held, key=spans.__getitem__)):
            return "", "", None
        held = [each for each in held if spans[each] > MOST * longest]
        inner = max if most else min  # where nothing is known to be updated, the outermost
        return inner(held, key=lambda each: (self._depth(each), each[2].lineno))

    def _since(self, loop: tuple[str, str, Loop]) -> float:
        """Seconds of samples since a loop was first seen."""
        inside = {stack for stack, places in self._own.items() if any(loop in self._loops(place) for place in places)}
        first = next(index for index, sample in enumerate(self.samples) if sample.stack in inside)
        return sum(sample.seconds for sample in self.samples[first:])

    def _depth(self, loop: tuple[str, str, Loop]) -> int:
        """How many of the script's frames are around a loop."""
        for places in self._own.values():
            for depth, place in enumerate(places):
                if loop in self._loops(place):
                    return depth
        return 0

    @staticmethod
    def _loops(place: Place) -> list[tuple[str, str, Loop]]:
        tree, scope = scope_of(place)
        return [(place.code.file, scope, loop) for loop in data_flow.loops_at(tree, place.line)] if tree else []

    @cached_property
    def turns(self) -> list[float]:
        """When the loop was seen to begin again, in s of time.monotonic(): at an earlier line than before, or at the
        same line with other variables.
        """
        turns, last, variables = [], 0, 0
        for sample in self.samples:
            places = self.inner.get(sample.stack)
            if not places:
                continue
            again = places[0].line == last and len(places) == 1 and sample.variables != variables
            if places[0].line < last or again:
                turns.append(sample.end)
            last, variables = places[0].line, sample.variables
        return turns

    def _is_in_loop(self, place: Place) -> bool:
        if self.tree is None or place.code.file != self.file or scope_of(place)[1] != self.scope:
            return False
        return self.tree.lineno <= place.line <= (self.tree.end_lineno or 0)

    @cached_property
    def inner(self) -> dict[Stack, list[Place]]:
        """The places of the script from the loop on, the outermost first, of the stacks within the loop."""
        found = {}
        for stack, places in self._own.items():
            index = next((index for index, place in enumerate(places) if self._is_in_loop(place)), None)
            if index is not None:
                found[stack] = places[index:]
        return found


def scope_of(place: Place) -> tuple[ast.AST | None, str]:
    """The syntax tree and the key of the function that a place is in; "" for lambdas and comprehensions."""
    code = place.code
    if code.name == "<module>":
        return syntax_tree(code.file), code.file
    tree = _functions(code.file).get((code.method, code.line))
    return tree, data_flow.key_of(code.file, tree) if tree is not None else ""


def _updates_by_name(file: str, loop: Loop) -> bool:
    """Whether a loop calls backward(), or a function of the file that computes gradients."""
    names = {"backward", *(name for (name, _), tree in _functions(file).items() if data_flow.computes_gradients(tree))}
    calls = (node.func for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any((call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")) in names for call in calls)


@cache
def _functions(file: str) -> dict[tuple[str, int], data_flow.Function]:
    """The functions of a file, by name and first line."""
    found = [node for node in ast.walk(syntax_tree(file)) if isinstance(node, data_flow.Function)]
    lines = ((each, (each.lineno, *(part.lineno for part in each.decorator_list))) for each in found)
    return {(each.name, line): each for each, every in lines for line in every}


def _own_places(stack: Stack) -> list[Place]:
    """The places of the script's own files, the outermost first, without those inside a network."""
    found = []
    for place in reversed(stack):
        if _is_network(place):
            break
        if is_own(place.code.file):
            found.append(place)
    return found


def index_of(stack: Stack, place: Place) -> int:
    return next(index for index, each in enumerate(stack) if each is place)


def _is_network(place: Place) -> bool:
    return place.code.method in FORWARD and MODULE in (place.code.ancestors or (f"{place.code.module}.Module",))


def has_network(stack: Stack) -> bool:
    """Whether a stack is in the forward pass of a network, or in a function that JAX has compiled."""
    return any(map(_is_network, stack)) or call_at(stack[0]).startswith(JITTED)
