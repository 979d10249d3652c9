"""Refusal of races: a phase may write the entries of its own entity alone, and read the fields it writes only there.

Then the entities of a phase can run in any order, or all at once, with the same result. What is checked is lowered
code, in which `s[2][i, 0]` is an entry of the third field of State.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import NoReturn

from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import Field, Function, Over
from headrace.kernels.language.kinds import Array

NAME = "the entity's number"


@dataclass
class _Use:
    """Uses that a function makes of the state it is given."""

    own: dict[int, ast.AST] = field(default_factory=dict)  # fields whose entry of the own entity it writes
    others: dict[int, ast.AST] = field(default_factory=dict)  # fields whose entry of another entity it writes
    read: dict[int, ast.AST] = field(default_factory=dict)  # fields that it reads at another entry, or as a whole


class Races:
    """The check of the phases of one environment. helpers: lowered functions by name. entities: how many."""

    def __init__(self, state: tuple[Field, ...], helpers: dict[str, Function], entities: int) -> None:
        self.state, self.helpers, self.entities = state, helpers, entities

    def check(self, phase: Function, shown: str, over: tuple[Over, ...]) -> None:
        """Raise EnvError at the line of a race. shown: the phase's name; over: its reductions, its last arguments."""
        s, _, i = (argument.arg for argument in phase.node.args.args[:3])
        for node in ast.walk(phase.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == i:
                _fail(phase, node, f"{shown} assigns to {i}, {NAME}", "Use another name")
        use = self._use(phase, s, i)
        reduced = dict(zip([a.arg for a in phase.node.args.args[-len(over) :]], over, strict=False)) if over else {}
        for node in ast.walk(phase.node):
            if isinstance(node, ast.Name) and node.id in reduced:
                use.read.setdefault(reduced[node.id].field, node)
        for k, node in use.others.items():
            name = f"s.{self.state[k].name}"
            wrong = f"{shown} changes `{name}` at another place than [{i}]: entities of a phase run at once"
            _fail(phase, node, wrong, f"Write {name}[{i}] = ... alone; let other entities read it in a later phase")
        for k, node in use.own.items():
            shape = self.state[k].shape
            if shape is None or shape[0] != self.entities:
                wrong = f"{shown} changes s.{self.state[k].name}, which has no entry for each entity"
                _fail(phase, node, wrong, f"Give it {self.entities} entries, or change it in step")
            if k in use.read:
                name = f"s.{self.state[k].name}"
                wrong = f"{shown} changes {name}[{i}] and reads {name} of other entities, which run at once"
                instead = "Read it in an earlier phase, or write the new value to another field"
                _fail(phase, use.read[k], wrong, instead)

    def _use(self, function: Function, s: str, i: str | None) -> _Use:
        use = _Use()
        seen: set[int] = set()  # nodes of accesses that are understood
        for node in ast.walk(function.node):
            if isinstance(node, ast.Subscript) and (k := self._array(node.value, s)) is not None:
                first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
                own = i is not None and isinstance(first, ast.Name) and first.id == i
                if isinstance(node.ctx, ast.Store):
                    (use.own if own else use.others).setdefault(k, node)
                elif not own:
                    use.read.setdefault(k, node)
                seen.add(id(node.value))
        for node in ast.walk(function.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.helpers:
                self._add_call(use, node, s, seen)
        self._add_rest(use, function, s, seen)
        return use

    def _array(self, node: ast.AST, s: str) -> int | None:
        """The number of the array field that a node is, `s[k]`; None for anything else."""
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == s):
            return None
        k = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return k if isinstance(k, int) and isinstance(self.state[k].kind, Array) else None

    def _add_call(self, use: _Use, node: ast.Call, s: str, seen: set[int]) -> None:
        """Add what a helper does: all that it reads and writes counts as entries of other entities."""
        helper = self.helpers[node.func.id]  # type: ignore[attr-defined]
        for argument, parameter in zip(node.args, helper.node.args.args, strict=True):
            if isinstance(argument, ast.Name) and argument.id == s:
                inner = self._use(helper, parameter.arg, None)
                for k in (*inner.others, *inner.own):
                    use.others.setdefault(k, node)
                for k in inner.read:
                    use.read.setdefault(k, node)
                seen.add(id(argument))

    def _add_rest(self, use: _Use, function: Function, s: str, seen: set[int]) -> None:
        """A whole field counts as read; a state or a field under another name is refused."""
        scalars: set[int] = set()
        for node in ast.walk(function.node):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == s:
                scalars.add(id(node.value))
                k = self._array(node, s)
                if k is not None and id(node) not in seen:
                    use.read.setdefault(k, node)
            if isinstance(node, ast.Assign) and self._array(node.value, s) is not None:
                k = self._array(node.value, s)
                name = f"s.{self.state[k].name}"  # type: ignore[index]
                _fail(function, node, f"{name} gets another name in a phase", f"Write {name}[...] each time")
        for node in ast.walk(function.node):
            if isinstance(node, ast.Name) and node.id == s and id(node) not in scalars | seen:
                _fail(function, node, "the state gets another name in a phase", "Use s itself")


def _fail(function: Function, node: ast.AST, wrong: str, instead: str) -> NoReturn:
    raise EnvError(function.file, getattr(node, "lineno", function.line), wrong, instead)
