"""Joining the backward passes of a network that a loss evaluates more than once.

Equal values of the network's forward pass are computed once. Backwards, each evaluation has a pass of its own, through
the same weights, and a gradient is the sum of theirs. These passes are linear, so their gradients are added before
them, not after them:

    product(x, w) + product(y, w) = product(x + y, w)
    outer(x, h) + outer(y, h)     = outer(x + y, h)
    x * slope + y * slope         = (x + y) * slope

The last one and its like are applied only where one of the first two follows: other losses stay as they are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias

from headrace.kernels.rows.builder import Builder, Key, key_of
from headrace.kernels.rows.row_plan import inlined
from headrace.kernels.rows.row_program import (
    Join,
    Map,
    Outer,
    Pick,
    Product,
    Program,
    Reduce,
    Sort,
    Value,
    View,
    whole,
)

DEEPEST = 32  # linear functions after each other, before which sums are put in one pass over the program
PASSES = 64  # over a program, at most
MOST = 1024  # terms of a sum that are looked at
Parts: TypeAlias = tuple[Key, ...]


def joined(program: Program, build: Builder) -> Program:
    """Join the backward passes of a program where that needs less work. build: the builder that made its values."""
    joins, found = _Joins(build), program
    for _ in range(PASSES):
        again = joins.program(found)
        if again is None:
            break
        found = again
    return found if work(found) < work(program) else program


def work(program: Program) -> int:
    """Floating-point operations of a program's products, for a row."""
    total = 0
    for value in program.values():
        if isinstance(value, Product):
            total += 2 * value.size * value.source.shape[-1]
        elif isinstance(value, Outer):
            total += 2 * value.size * math.prod(value.left.shape[:-1])
    return total


class _Joins:
    """Makes a program's values again, with sums before linear functions.

    sums: values that were made, by their terms. parts: terms of the values that were made. tried: pairs of values, how
    many sums there were, and what was found. made: new values of those old ones that have changed.
    """

    def __init__(self, build: Builder) -> None:
        self.build = build
        self.sums: dict[Parts, View] = {}
        self.parts: dict[Key, Parts] = {}
        self.tried: dict[Hashable, tuple[int, View | None]] = {}
        self.made: dict[Value, View] = {}
        self.depth = 0

    def program(self, old: Program) -> Program | None:
        """The new program; None where it is the old one."""
        self.made, values = {}, old.values()
        readers = defaultdict[Value, list[Value | None]](list)
        for value in values:
            for view in value.operands:
                readers[view.value].append(value)
        for output in old.outputs:
            readers[output.view.value].append(None)
        for value in values:
            within = len(readers[value]) == 1 and _is_sum(readers[value][0])  # its terms include this one's
            new = self._again(value, within)
            if new is not None and new != whole(value):
                self.made[value] = new
        if not self.made:
            return None
        return replace(old, outputs=tuple(replace(o, view=self._view(o.view)) for o in old.outputs))

    def _again(self, value: Value, within: bool) -> View | None:
        """View that stands for a value in the new program. None where the value itself stays."""
        operands = [self._view(view) for view in value.operands]
        if _is_sum(value) and not within:
            terms = [term for view in operands for term in _terms(view)]
            if (total := self._total(terms, False)) is not None:
                return total
        return None if operands == list(value.operands) else _of(self.build, value, operands)

    def _view(self, view: View) -> View:
        """View of a new value that stands for a view of an old one."""
        new = self.made.get(view.value)
        if new is None:
            return view
        return inlined(view, new) or replace(view, value=self.build.packed(new, always=True).value)

    def _total(self, terms: Sequence[View], eager: bool) -> View | None:
        """Sum of terms in which some terms are joined. None where none are."""
        left: list[View] = []
        for term in terms:
            for i, other in enumerate(left):
                if (pair := self._pair(other, term, eager)) is not None:
                    left[i] = pair
                    break
            else:
                left.append(term)
        if len(left) == len(terms):
            return None
        total = left[0]
        for term in left[1:]:
            total = self.build.map("add", total, term)
        return total

    def _plus(self, x: View, y: View) -> View:
        """Sum of the operands of linear functions."""
        if (known := self._known(x, y)) is not None:
            return known
        self.depth += 1
        found = self._total([*_terms(x), *_terms(y)], True) if self.depth < DEEPEST else None
        self.depth -= 1
        return self._keep(x, y, found or self.build.map("add", x, y))

    def _keep(self, x: View, y: View, total: View) -> View:
        parts = self._parts(x, y)
        self.parts[key_of(total)] = parts
        return self.sums.setdefault(parts, total)

    def _known(self, x: View, y: View) -> View | None:
        return self.sums.get(self._parts(x, y))

    def _parts(self, x: View, y: View) -> Parts:
        """Terms of the sums that two terms are."""
        return tuple(sorted(part for key in (key_of(x), key_of(y)) for part in self.parts.get(key, (key,))))

    def _pair(self, x: View, y: View, eager: bool) -> View | None:
        """Sum of two terms as one linear function of a sum. None where they are no linear functions, or not of a
        product. eager: whether any linear function will do."""
        if (x.shape, x.strides, x.offset, x.value.shape) != (y.shape, y.strides, y.offset, y.value.shape):
            return None
        if type(x.value) is not type(y.value) or x.value is y.value:
            return None
        key = id(x.value), id(y.value), eager
        if (known := self._known(x, y)) is not None and not _is_sum(known.value):
            return known
        sums, found = self.tried.get(key, (-1, None))
        if found is None and sums < len(self.sums):  # a pair without a sum may have one now
            found = self._pair_of_values(x.value, y.value, eager)
            self.tried[key] = len(self.sums), found
        return None if found is None or not found.whole else self._keep(x, y, replace(x, value=found.value))

    def _pair_of_values(self, x: Value, y: Value, eager: bool) -> View | None:
        build = self.build
        if isinstance(x, Product) and isinstance(y, Product):
            if x.bias is None and y.bias is None and x.weight == y.weight and x.source.shape == y.source.shape:
                return build.product(self._plus(x.source, y.source), x.weight)
        elif isinstance(x, Outer) and isinstance(y, Outer):
            if x.right == y.right and x.left.shape == y.left.shape:
                return build.outer(self._plus(x.left, y.left), x.right)
            if x.left == y.left and x.right.shape == y.right.shape:
                return build.outer(x.left, self._plus(x.right, y.right))
        elif isinstance(x, Reduce) and isinstance(y, Reduce):
            return self._pair_of_reductions(x, y, eager)
        elif isinstance(x, Map) and isinstance(y, Map) and x.function == y.function:
            return self._pair_of_maps(x, y, eager)
        elif isinstance(x, Join) and isinstance(y, Join):
            parts = self._all(x.parts, y.parts, eager) if x.axis == y.axis else None
            return None if parts is None else build.join(parts, x.axis)
        return None

    def _pair_of_reductions(self, x: Reduce, y: Reduce, eager: bool) -> View | None:
        one, other = x.source, y.source
        if (x.function, y.function) != ("sum", "sum") or (x.over_rows, one.shape) != (y.over_rows, other.shape):
            return None
        source = self._known(one, other) or self._inner(one, other, eager)
        return None if source is None else self.build.reduce("sum", source, len(x.shape), x.over_rows)

    def _pair_of_maps(self, x: Map, y: Map, eager: bool) -> View | None:
        function, build = x.function, self.build
        if function in ("mul", "div"):
            for i, j in ((0, 0), (1, 1), (0, 1), (1, 0)) if function == "mul" else ((1, 1),):
                if x.arguments[i] == y.arguments[j]:
                    inner = self._inner(x.arguments[1 - i], y.arguments[1 - j], eager)
                    return None if inner is None else build.map(function, inner, x.arguments[i])
        elif function == "neg":
            inner = self._inner(x.arguments[0], y.arguments[0], eager)
            return None if inner is None else build.map("neg", inner)
        elif function == "sub":
            pairs = self._all(x.arguments, y.arguments, False)
            return None if pairs is None else build.map("sub", *pairs)
        elif function == "where" and x.arguments[0] == y.arguments[0]:
            pairs = self._all(x.arguments[1:], y.arguments[1:], eager)
            return None if pairs is None else build.map("where", x.arguments[0], *pairs)
        elif function == "add":
            return self._total([term for v in (*x.arguments, *y.arguments) for term in _terms(v)], eager)
        return None

    def _inner(self, x: View, y: View, eager: bool) -> View | None:
        """The sum of what two linear functions read."""
        return self._plus(x, y) if eager else self._total([*_terms(x), *_terms(y)], False)

    def _all(self, xs: Sequence[View], ys: Sequence[View], eager: bool) -> list[View] | None:
        """Sums of several pairs, if one of these is joined, or eager. None for pairs of different shapes."""
        if [x.shape for x in xs] != [y.shape for y in ys]:
            return None
        pairs = list(zip(xs, ys, strict=True))
        found = [self._inner(x, y, False) for x, y in pairs]
        if not eager and not any(found):
            return None
        return [pair or self._plus(x, y) for pair, (x, y) in zip(found, pairs, strict=True)]


def _is_sum(value: Value | None) -> bool:
    return isinstance(value, Map) and value.function == "add"


def _terms(view: View) -> list[View]:
    """Terms of the sum that a view is; the view itself where it is no sum."""
    found, waiting = list[View](), [view]
    while waiting:
        term = waiting.pop()
        if _is_sum(term.value) and term == whole(term.value) and len(found) + len(waiting) < MOST:
            waiting += reversed(term.value.operands)
        else:
            found.append(term)
    return found


def _of(build: Builder, value: Value, operands: Sequence[View]) -> View:
    """The value that the same operation makes of other operands."""
    if isinstance(value, Map):
        return build.map(value.function, *operands)
    if isinstance(value, Reduce):
        return build.reduce(value.function, operands[0], len(value.shape), value.over_rows)
    if isinstance(value, Product):
        return build.product(operands[0], operands[1], *operands[2:])
    if isinstance(value, Outer):
        return build.outer(*operands)
    if isinstance(value, Pick):
        return build.pick(*operands)
    if isinstance(value, Sort):
        return build.sort(operands[0], value.places)
    assert isinstance(value, Join), value
    return build.join(operands, value.axis)
