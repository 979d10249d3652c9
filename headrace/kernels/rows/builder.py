"""Construction of a row program's values: equal ones are made once, and operations that change nothing are left out."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from headrace.kernels.rows.row_program import (
    BOOL,
    F32,
    I32,
    TRUTHS,
    Constant,
    Count,
    Join,
    Map,
    Outer,
    Pick,
    Product,
    Reduce,
    Shape,
    Sort,
    Value,
    View,
    whole,
)

V = TypeVar("V", bound=Value)
Key: TypeAlias = tuple[int, Shape, Shape, int]
_FOLDED: dict[str, Callable[..., float]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "div": operator.truediv},
    **{"exp": math.exp, "log": math.log, "sqrt": math.sqrt},
}
_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}  # as the second operand


class Builder:
    """Makes values. Where two would be equal, the first is returned again."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Value] = {}

    def _once(self, key: Hashable, make: Callable[[], V]) -> V:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found  # type: ignore[return-value]

    def constant(self, numbers: Sequence[float | Count], shape: Shape = (), dtype: str = F32) -> Constant:
        """Numbers of the program's text."""
        key = ("constant", tuple(map(repr, numbers)), shape, dtype)
        return self._once(key, lambda: Constant(shape, False, dtype, numbers=tuple(numbers)))

    def number(self, number: float | Count, shape: Shape, dtype: str = F32) -> View:
        """One number in all places of a shape."""
        return View(self.constant((number,), (), dtype), shape, (0,) * len(shape))

    def steps(self, count: int, shape: Shape, axis: int, dtype: str = I32) -> View:
        """0, 1, 2 ... along an axis of a shape."""
        strides = tuple(int(i == axis) for i in range(len(shape)))
        return View(self.constant([float(i) for i in range(count)], (count,), dtype), shape, strides)

    def map(self, function: str, *arguments: View) -> View:
        """A function of views of one shape; the view is of that shape."""
        shape, dtype = arguments[-1].shape, _dtype(function, arguments)
        if function in ("float", "int", "bool") and arguments[0].value.dtype == dtype:
            return arguments[0]
        numbers = [_number(argument) for argument in arguments]
        if function == "float" and numbers[0] is not None:
            return self.number(numbers[0], shape, dtype)
        if function == "int" and isinstance(numbers[0], float):
            return self.number(float(int(numbers[0])), shape, dtype)
        if function in _NEUTRAL and _NEUTRAL[function] == numbers[1]:
            return arguments[0]
        if function in ("add", "mul") and _NEUTRAL[function] == numbers[0]:
            return arguments[1]
        if function == "add":
            for one, other in (arguments, arguments[::-1]):
                if _takes_bias(one, other):
                    return View(self._with_bias(one.value, other).value, one.shape, one.strides)
                if (joined := self._join_with_bias(one, other)) is not None:
                    return joined
            if (joined := self._join_of_both(*arguments)) is not None:
                return joined
        folded = _fold(function, numbers)
        if folded is not None:
            return self.number(folded, shape, dtype)
        if not any(any(argument.strides) for argument in arguments) and shape:  # one number for all
            one = self.map(function, *(View(a.value, (), (), a.offset) for a in arguments))
            return View(one.value, shape, (0,) * len(shape), one.offset)
        # all values are transposed in the same way: take them in their memory order
        turned = next((a for a in arguments if any(a.strides)), arguments[0])
        if (
            any(turned.strides) and not turned.whole and all(_alike(argument, turned) for argument in arguments)
        ):  # whole values, transposed in the same way
            base = self.map(function, *(self._as_it_lies(argument, turned) for argument in arguments))
            if base.whole:
                return View(base.value, shape, turned.strides)
        rows = any(argument.value.rows for argument in arguments)
        key = ("map", function, shape, tuple(map(key_of, arguments)))
        return whole(self._once(key, lambda: Map(shape, rows, dtype, function=function, arguments=arguments)))

    def _as_it_lies(self, view: View, turned: View) -> View:
        """All of a view's value, or one number for each number of another view's value."""
        if any(view.strides) or not view.shape:
            return whole(view.value)
        return View(view.value, turned.value.shape, (0,) * len(turned.value.shape), view.offset)

    def reduce(self, function: str, source: View, kept: int, over_rows: bool = False) -> View:
        """A reduction over all but the first `kept` axes, and over the rows."""
        if kept == len(source.shape) and not over_rows and function not in ("argmax", "argmin"):
            return source
        dtype = {"any": BOOL, "all": BOOL, "argmax": I32, "argmin": I32}.get(function, source.value.dtype)
        shape, rows = source.shape[:kept], source.value.rows and not over_rows
        key = ("reduce", function, kept, over_rows, key_of(source))
        make = lambda: Reduce(shape, rows, dtype, function=function, source=source, over_rows=over_rows)  # noqa: E731
        return whole(self._once(key, make))

    def product(self, source: View, weight: View, bias: View | None = None) -> View:
        """source [..., K] times weight [N, K], for each row; sums begin with bias [N]."""
        if isinstance(weight.value, Constant):  # which has no memory
            weight = self.packed(weight, always=True)
        shape = (*source.shape[:-1], weight.shape[0])
        key = ("product", key_of(source), key_of(weight), bias and key_of(bias))
        return whole(self._once(key, lambda: Product(shape, True, source=source, weight=weight, bias=bias)))

    def _with_bias(self, product: Value, bias: View) -> View:
        """A product whose sums begin with a bias."""
        assert isinstance(product, Product)
        stride = bias.strides[-1] if product.shape[-1] > 1 else 0
        begin = View(bias.value, product.shape[-1:], (stride,), bias.offset)
        return self.product(product.source, product.weight, begin)

    def _join_with_bias(self, view: View, bias: View) -> View | None:
        """Join of products, as of several networks in one tensor, whose sums begin with their parts of a bias. None
        where the value is no such join."""
        join = view.value
        if not (isinstance(join, Join) and view == whole(join)):
            return None
        at, pairs = 0, list[tuple[View, View]]()
        for part in join.parts:
            strides = tuple(s if n > 1 else 0 for n, s in zip(part.shape, bias.strides, strict=True))
            pairs.append((part, View(bias.value, part.shape, strides, bias.offset + at * bias.strides[join.axis])))
            at += part.shape[join.axis]
        if not all(_takes_bias(*pair) for pair in pairs):
            return None
        return self.join([replace(x, value=self._with_bias(x.value, own).value) for x, own in pairs], join.axis)

    def _join_of_both(self, one: View, other: View) -> View | None:
        """Sum of two joins as the join of sums. For uniform joins, as of gradients of weights, and for joins that have
        zeros where the other has none, as gradients of slices. None for anything else."""
        x, y = one.value, other.value
        if not (isinstance(x, Join) and isinstance(y, Join) and x.axis == y.axis and one == whole(x)):
            return None
        if other != whole(y) or x.shape != y.shape:
            return None
        found, parts = list[View](), (list(x.parts), list(y.parts))
        while parts[0]:
            pair, axis = (parts[0].pop(0), parts[1].pop(0)), x.axis
            size = min(part.shape[axis] for part in pair)
            for part, rest in zip(pair, parts, strict=True):
                if part.shape[axis] > size:
                    rest.insert(0, _cut(part, axis, size, part.shape[axis]))
            if (x.rows or y.rows) and not any(_number(part) == 0.0 for part in pair):
                return None
            found.append(self.map("add", *(_cut(part, axis, 0, size) for part in pair)))
        return self.join(found, x.axis)

    def outer(self, left: View, right: View) -> View:
        """The sum over rows and leading axes of left [..., N] times right [..., K]."""
        shape = (left.shape[-1], right.shape[-1])
        key = ("outer", key_of(left), key_of(right))
        return whole(self._once(key, lambda: Outer(shape, False, left=left, right=right)))

    def pick(self, source: View, index: View) -> View:
        """source[..., index[...]]."""
        rows = source.value.rows or index.value.rows
        key = ("pick", key_of(source), key_of(index))
        make = lambda: Pick(index.shape, rows, source.value.dtype, source=source, index=index)  # noqa: E731
        return whole(self._once(key, make))

    def sort(self, source: View, places: bool = False) -> View:
        """Sort the last axis in ascending order. Gives the numbers, or their former places."""
        dtype = I32 if places else source.value.dtype
        key = ("sort", places, key_of(source))
        make = lambda: Sort(source.shape, source.value.rows, dtype, source=source, places=places)  # noqa: E731
        return whole(self._once(key, make))

    def join(self, parts: Sequence[View], axis: int) -> View:
        """Views side by side along an axis. One part alone is copied, which puts its numbers in order."""
        first = parts[0]
        shape = (*first.shape[:axis], sum(part.shape[axis] for part in parts), *first.shape[axis + 1 :])
        rows = any(part.value.rows for part in parts)
        key = ("join", axis, tuple(map(key_of, parts)))
        make = lambda: Join(shape, rows, first.value.dtype, parts=tuple(parts), axis=axis)  # noqa: E731
        return whole(self._once(key, make))

    def packed(self, view: View, always: bool = False) -> View:
        """Copy of a view's numbers, in order in memory. Made if they are not yet in order, or always."""
        if view.in_order and not always:
            return view
        flat = View(view.value, (*view.shape, 1), (*view.strides, 0), view.offset)
        copy = self.join([flat], len(view.shape))
        return View(copy.value, view.shape, copy.strides[:-1])


def key_of(view: View) -> Key:
    """Key that is equal for views of the same numbers, as long as the builder exists."""
    return (id(view.value), view.shape, view.strides, view.offset)


def _number(view: View) -> float | Count | None:
    value = view.value
    return value.numbers[0] if isinstance(value, Constant) and value.size == 1 else None


def _cut(view: View, axis: int, first: int, end: int) -> View:
    """Part of a view along an axis."""
    shape = (*view.shape[:axis], end - first, *view.shape[axis + 1 :])
    return replace(view, shape=shape, offset=view.offset + first * view.strides[axis])


def _alike(view: View, other: View) -> bool:
    """Tell whether a view is one number, or all of a value that has the other's shape, in the same order."""
    if not any(view.strides):
        return True
    same = (view.shape, view.strides, view.offset) == (other.shape, other.strides, 0)
    return same and view.value.shape == other.value.shape and view.size == view.value.size == view.span


def _takes_bias(view: View, bias: View) -> bool:
    """Tell whether `view` is all of a product's sums, and `bias` has a number for each of the product's columns."""
    value = view.value
    if (
        not isinstance(value, Product)
        or value.bias is not None
        or bias.value.rows
        or bias.value.phase
        or isinstance(bias.value, Constant)
    ):
        return False
    leading = bias.strides if value.shape[-1] == 1 else bias.strides[:-1]
    return view.whole and view.shape[-1:] == value.shape[-1:] and not any(leading)


def _dtype(function: str, arguments: Sequence[View]) -> str:
    if function in TRUTHS:
        return BOOL
    return {"float": F32, "int": I32}.get(function, arguments[-1].value.dtype)


def _fold(function: str, numbers: Sequence[float | Count | None]) -> float | None:
    if function not in _FOLDED or not all(isinstance(number, (float, int)) for number in numbers):
        return None
    try:
        return _FOLDED[function](*numbers)
    except (ArithmeticError, ValueError):
        return None
