"""The loop of a script's own files in which it trains, found in its samples."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import accumulate

from headrace.diagnose.injected.stacks import JITTED
from headrace.diagnose.profile import functions
from headrace.diagnose.profile.functions import Function, Loop, key_of
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.source_context import call_at, is_own, syntax_tree
from headrace.diagnose.profile.spool import Place, Sample, Stack

MODULE, FORWARD = "torch.nn.modules.module.Module", ("_wrapped_call_impl", "_call_impl")
UPDATE_CALLS = {"backward", "value_and_grad", "grad", "apply_gradients", "apply_updates"}  # of torch and JAX
UPDATES = (Role.BACKWARD, Role.OPTIMIZER)
MOST = 0.8  # the loop spans more than this share of the time of the longest loop that updates parameters
LASTING = 0.2  # the longest loop began before the last LASTING of the sampled time
MOST_UPDATES = 0.9  # a loop makes more than this share of the updates since it began
LEAST = 0.5  # a loop of the script spans this share of the time since it began; less where a library has the loop
Evidence = Callable[[Stack], Role | None]  # gives a stack's role by its classes and libraries


OwnTree = tuple[str, str, Loop]  # file, scope and syntax tree of a loop


class OwnLoop:
    """The loop of a process, as its samples show it; `tree` is None where it is in no file of the script."""

    def __init__(
        self,
        samples: Sequence[Sample],
        evidence: Evidence,
        has_gradients: Callable[[Stack], bool],
        elsewhere: Sequence[Sample] = (),
    ) -> None:
        """samples: of the thread in which the loop is searched. elsewhere: of its process's other threads."""
        self.samples, self.evidence, self.has_gradients = samples, evidence, has_gradients
        self.spent: Counter[Stack] = Counter()
        for sample in (*samples, *elsewhere):
            self.spent[sample.stack] += sample.seconds  # type: ignore[assignment]
        self._here = {sample.stack for sample in samples}
        self._own = {stack: _own_places(stack) for stack in self.spent}
        self._loops = {
            stack: {each for place in places for each in loops_at(place)} for stack, places in self._own.items()
        }
        self.files = frozenset(place.code.file for places in self._own.values() for place in places)
        self.updating = sum(sample.seconds for sample in samples if evidence(sample.stack) in UPDATES)
        self.file, self.scope, self.tree = self._find()

    # --- the loop

    def _find(self) -> tuple[str, str, Loop | None]:
        """File, scope and tree of the innermost loop that takes most of the time and updates, or may update."""
        first: dict[OwnTree, int] = {}
        for index, sample in enumerate(self.samples):
            for each in self._loops[sample.stack]:
                first.setdefault(each, index)
        passed = [0.0, *accumulate(sample.seconds for sample in self.samples)]
        updates = [sample.seconds if self.evidence(sample.stack) in UPDATES else 0.0 for sample in self.samples]
        made = [0.0, *accumulate(updates)]

        def since(loop: OwnTree, clock: list[float] = passed) -> float:
            return clock[-1] - clock[first[loop]]

        spans, updated = self._spans(0), self._spans(0, updates)
        # with updates too short to be sampled; an environment's own loops do nothing else than step it
        other = [0.0 if self.evidence(sample.stack) is Role.ENVIRONMENT else sample.seconds for sample in self.samples]
        outside = self._spans(0, other)
        without = [each for each in first if not since(each, made) and outside[each] > 0]
        updating = [each for each in updated if updated[each] > MOST_UPDATES * since(each, made)]
        updating += [each for each in without if updates_by_name(self.files, each[2])]
        held = updating or without
        lasting = [each for each in held if since(each) > LASTING * passed[-1]] or held
        main = max(lasting, key=lambda each: spans[each] / since(each), default=None)
        if main is None or spans[main] + self._of_other_tasks(main, first[main]) < LEAST * since(main):
            return "", "", None
        spans = self._spans(first[main])  # training before this loop is another phase
        held = [each for each in held if spans[each] > MOST * spans[main]]
        inner = max if updating else min  # where nothing is known to be updated, the outermost
        return inner(held, key=lambda each: (self._depth(each), each[2].lineno))

    def _spans(self, first: int, seconds: Sequence[float] | None = None) -> Counter[OwnTree]:
        """Seconds that each loop spans, from the sample `first` on. seconds: seconds to count for each sample."""
        found: Counter[OwnTree] = Counter()
        for index, sample in enumerate(self.samples[first:], first):
            for each in self._loops[sample.stack]:
                found[each] += sample.seconds if seconds is None else seconds[index]  # type: ignore[assignment]
        return found

    def _of_other_tasks(self, loop: OwnTree, first: int) -> float:
        """Seconds, from the sample `first` on, of the other tasks of a loop's event loop; 0 without an event loop."""
        if not any(loop in self._loops[stack] for stack in self._tasks):
            return 0.0
        others = (sample for sample in self.samples[first:] if loop not in self._loops[sample.stack])
        return sum(sample.seconds for sample in others if sample.stack in self._tasks)

    @cached_property
    def _tasks(self) -> dict[Stack, list[Place]]:
        """The places of the script in a task of an event loop, the outermost first."""
        return {stack: places for stack in self.spent if (places := _in_task(stack))}

    def _depth(self, loop: OwnTree) -> int:
        """Number of the script's frames around a loop."""
        depths = (
            depth for places in self._own.values() for depth, place in enumerate(places) if loop in loops_at(place)
        )
        return next(depths, 0)

    @cached_property
    def turns(self) -> list[float]:
        """Times (s of time.monotonic()) at which an iteration of the loop began: the loop was at an earlier line than
        before, or at the same line with other variables.
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
        """The places of the script from the loop on, the outermost first, of the stacks within the loop.

        The stacks of other threads and tasks at that time are part of the loop, too.
        """
        found = {}
        for stack, places in self._own.items():
            index = next((index for index, place in enumerate(places) if self._is_in_loop(place)), None)
            if index is not None:
                found[stack] = places[index:]
        if any(stack in self._tasks for stack in found):
            found = self._tasks | found
        elsewhere = ((stack, self._tasks.get(stack, places)) for stack, places in self._own.items())
        alone = {stack: places for stack, places in elsewhere if stack not in self._here and places}
        return alone | found if found else {}

    @cached_property
    def roots(self) -> set[str]:
        """Keys of the functions that other threads and tasks of an event loop run."""
        found = {
            scope_of(places[0])[1]
            for stack, places in self.inner.items()
            if stack not in self._here or stack in self._tasks
        }
        return found - {"", self.scope, self.file}


@cache
def loops_at(place: Place) -> list[OwnTree]:
    """File, scope and tree of the loops of a scope that a place is in, the outermost first."""
    tree, scope = scope_of(place)
    return [(place.code.file, scope, loop) for loop in functions.loops_at(tree, place.line)] if tree else []


def scope_of(place: Place) -> tuple[ast.AST | None, str]:
    """The syntax tree and the key of the function that a place is in; "" for lambdas and comprehensions."""
    code = place.code
    if code.name == "<module>":
        return syntax_tree(code.file), code.file
    tree = _functions(code.file).get((code.method, code.line))
    return tree, key_of(code.file, tree) if tree is not None else ""


def updates_by_name(files: frozenset[str], tree: ast.AST) -> bool:
    """Tell whether a tree names backward(), one of JAX's functions that compute gradients, or a function that does."""
    return not _names_in(tree).isdisjoint(_updating(files))


@cache
def _updating(files: frozenset[str]) -> set[str]:
    """Names of functions that update parameters: torch's and JAX's, those of some files, and objects made of these."""
    made: list[tuple[str, set[str]]] = []
    for file in files:
        made += [(name, _names_in(tree)) for (name, _), tree in _functions(file).items()]
        assigned = (node for node in syntax_tree(file).body if isinstance(node, ast.Assign))
        made += [
            (each.targets[0].id, _names_in(each.value)) for each in assigned if isinstance(each.targets[0], ast.Name)
        ]
    found, before = set(UPDATE_CALLS), 0
    while len(found) > before:
        before = len(found)
        found |= {name for name, names in made if names & found}
    return found


def _names_in(tree: ast.AST) -> set[str]:
    """The names that a tree calls or passes on, as a function may be compiled. UPDATE_CALLS count only if called."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    handed = [part for call in calls for part in (*call.args, *(word.value for word in call.keywords))]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    names |= {part.attr for part in handed if isinstance(part, ast.Attribute)}
    called = {
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "") for call in calls
    }
    return names - UPDATE_CALLS | called  # p.grad is none


@cache
def _functions(file: str) -> dict[tuple[str, int], Function]:
    """The functions of a file, by name and first line."""
    found = [node for node in ast.walk(syntax_tree(file)) if isinstance(node, Function)]
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


def _in_task(stack: Stack) -> list[Place]:
    """The places of the script within a task of an event loop, the outermost first; [] outside."""
    index = next((index for index, place in enumerate(stack) if place.code.module.startswith("asyncio.")), 0)
    return _own_places(stack[:index])


def _is_network(place: Place) -> bool:
    return place.code.method in FORWARD and MODULE in (place.code.ancestors or (f"{place.code.module}.Module",))


def has_network(stack: Stack) -> bool:
    """Tell whether a stack is in the forward pass of a network, or in a function that JAX has compiled."""
    return any(map(_is_network, stack)) or call_at(stack[0]).startswith(JITTED)
