"""Torch's tensors as views of row-program values: which dimension the rows are in, and every reshaping as strides.

A dimension of torch's is a sequence of axes of the view, the rows possibly among them: [B * T, F], made from
[B, T, F], has dimensions (ROWS, T) and (F,). So flattening groups axes and never copies, and unflattening splits one.
A dimension of size 1 has no axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.kernels.rows.row_program import Constant, Count, Shape, Value, View, contiguous

ROWS = -1  # in place of an axis' size: the rows
Dimension: TypeAlias = tuple[int, ...]  # the sizes of its axes, ROWS among them where the rows are


class Mismatch(Exception):
    """Tensors that do not go together row by row. The text says what would be needed."""


@dataclass(frozen=True)
class Size:
    """The size of a dimension: inner, or inner times the number of rows."""

    inner: int
    rows: bool = False

    @property
    def one(self) -> bool:
        """True if the size is 1 whatever the number of rows."""
        return self.inner == 1 and not self.rows


@dataclass(frozen=True)
class Tensor:
    """Torch's tensor as a view of a value. dims: one for each of torch's dimensions. The view's axes are those of all
    dims, in order, without the rows.

    The value may be uniform although dims have rows: then it is expanded along them.
    """

    view: View
    dims: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        assert inner_axes(self.dims) == self.view.shape, (self.dims, self.view.shape)

    @property
    def dtype(self) -> str:
        return self.view.value.dtype

    @property
    def rows(self) -> bool:
        """True if the tensor has numbers of its own for each row."""
        return self.view.value.rows

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes of its dimensions."""
        return tuple(Size(math.prod(n for n in dim if n != ROWS), ROWS in dim) for dim in self.dims)

    @property
    def constant(self) -> float | Count | None:
        """Number that all places of the tensor have. None where it is no constant, or has several numbers."""
        value = self.view.value
        return value.numbers[0] if isinstance(value, Constant) and value.size == 1 else None

    def strides(self) -> list[list[int]]:
        """The view's strides by dimension, without the rows'."""
        left = list(self.view.strides)
        return [[left.pop(0) for n in dim if n != ROWS] for dim in self.dims]


def inner_axes(dims: Iterable[Dimension]) -> Shape:
    """The sizes of all axes but the rows."""
    return tuple(n for dim in dims for n in dim if n != ROWS)


def of_value(value: Value, dims: Sequence[Dimension]) -> Tensor:
    """All of a value, its axes grouped in these dimensions."""
    return Tensor(View(value, inner_axes(dims), contiguous(inner_axes(dims))), tuple(dims))


def axes_of(size: Size) -> Dimension:
    """A dimension of this size, with the rows outermost."""
    return ((ROWS,) if size.rows else ()) + ((size.inner,) if size.inner != 1 else ())


def rebuilt(tensor: Tensor, dims: Sequence[Dimension], strides: Sequence[Sequence[int]], offset: int = 0) -> Tensor:
    """The same value, viewed with these strides from `offset` numbers further on."""
    flat = tuple(stride for dim in strides for stride in dim)
    view = View(tensor.view.value, inner_axes(dims), flat, tensor.view.offset + offset)
    return Tensor(view, tuple(dims))


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """Dimensions in another order."""
    strides = tensor.strides()
    return rebuilt(tensor, [tensor.dims[i] for i in order], [strides[i] for i in order])


def reshaped(tensor: Tensor, sizes: Sequence[Size]) -> Tensor:
    """The same numbers in the same order, in dimensions of these sizes.

    Raises Mismatch where a border of the new dimensions falls between rows.
    """
    axes = [n for dim in tensor.dims for n in dim]
    steps = iter(tensor.view.strides)
    waiting = [(n, 0 if n == ROWS else next(steps)) for n in axes]
    dims: list[Dimension] = []
    strides: list[list[int]] = []
    for size in sizes:
        dim, own, inner, rows = list[int](), list[int](), size.inner, size.rows
        while rows or inner != 1:
            if not waiting:
                raise Mismatch("a reshaped tensor whose dimensions mix rows")
            n, stride = waiting.pop(0)
            if n == ROWS:
                if not rows:
                    raise Mismatch("a reshaped tensor whose dimensions mix rows with each other")
                rows = False
                dim.append(ROWS)
                continue
            taken = math.gcd(n, inner)
            if (n % inner and inner % n) or taken == 1:
                raise Mismatch("a reshaped tensor whose dimensions mix rows with each other")
            if taken < n:  # the rest of this axis belongs to the next dimension
                waiting.insert(0, (n // taken, stride))
                stride *= n // taken
            dim.append(taken)
            own.append(stride)
            inner //= taken
        dims.append(tuple(dim))
        strides.append(own)
    return rebuilt(tensor, dims, strides)


def expanded(tensor: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Dimensions of size 1, and new ones in front, repeated to these sizes."""
    new = len(sizes) - len(tensor.dims)
    dims: list[Dimension] = [()] * new + list(tensor.dims)
    strides: list[list[int]] = [[]] * new + tensor.strides()
    for i, (size, own) in enumerate(zip(sizes, tensor_sizes(dims), strict=True)):
        if own.one and not size.one:
            dims[i] = axes_of(size)
            strides[i] = [0] * (size.inner != 1)
        elif own != size:
            raise Mismatch(f"a dimension of {shown(own)} beside one of {shown(size)}")
    return rebuilt(tensor, dims, strides)


def tensor_sizes(dims: Sequence[Dimension]) -> list[Size]:
    """The sizes of these dimensions."""
    return [Size(math.prod(n for n in dim if n != ROWS), ROWS in dim) for dim in dims]


def together(tensors: Sequence[Tensor]) -> tuple[list[Tensor], tuple[Dimension, ...]]:
    """Tensors broadcast against each other, with the same axes; and their dimensions.

    Raises Mismatch where the rows of one meet another order of rows, or something else.
    """
    count = max(len(tensor.dims) for tensor in tensors)
    sizes: list[Size] = []
    for i in range(-count, 0):
        known = [t.sizes[i] for t in tensors if len(t.dims) >= -i and not t.sizes[i].one]
        if len(set(known)) > 1:
            raise Mismatch(
                f"a dimension of {shown(known[0])} beside one of {shown(next(n for n in known if n != known[0]))}"
            )
        sizes.append(known[0] if known else Size(1))
    dims = []
    for i in range(-count, 0):
        own = [t for t in tensors if len(t.dims) >= -i and t.dims[i]]
        found = [t.dims[i] for t in own if not _same_throughout(t, i)] or [t.dims[i] for t in own[:1]]
        dims.append(finest(found) if found else ())
    wide = [expanded(tensor, sizes) for tensor in tensors]
    return [split(tensor, dims, sizes) for tensor in wide], tuple(dims)


def _same_throughout(tensor: Tensor, dim: int) -> bool:
    """Tell whether a tensor has the same numbers all along a dimension. Any axes may then replace that dimension."""
    return not any(tensor.strides()[dim]) and not (tensor.rows and ROWS in tensor.dims[dim])


def finest(dims: Sequence[Dimension]) -> Dimension:
    """Axes into which each of these dimensions, all of one size, can be split."""
    found = dims[0]
    for dim in dims[1:]:
        found = _common(found, dim)
    return found


def _common(one: Dimension, other: Dimension) -> Dimension:
    left, right, found = list(one), list(other), list[int]()
    while left and right:
        a, b = left.pop(0), right.pop(0)
        if a == ROWS or b == ROWS:
            if a != b:
                raise Mismatch("rows beside the rows in another order")
            found.append(ROWS)
            continue
        taken = math.gcd(a, b)
        if (taken == 1 and (a, b) != (1, 1)) or (a % b and b % a):
            raise Mismatch("two groups of axes of which neither divides the other")
        found.append(taken)
        if a > taken:
            left.insert(0, a // taken)
        if b > taken:
            right.insert(0, b // taken)
    return tuple(found)


def split(tensor: Tensor, dims: Sequence[Dimension], sizes: Sequence[Size] | None = None) -> Tensor:
    """Tensor whose dimensions have these finer axes. Expanded dimensions take any."""
    strides: list[list[int]] = []
    for own, new, old in zip(tensor.dims, dims, tensor.strides(), strict=True):
        if own == new:
            strides.append(old)
        elif not any(old) and (not tensor.rows or _before_rows(own) == _before_rows(new)):  # one number throughout
            strides.append([0] * sum(n != ROWS for n in new))
        else:
            strides.append(_split_strides(own, new, old))
    return rebuilt(tensor, dims, strides)


def _before_rows(dim: Dimension) -> int:
    """Number of times that all rows are repeated along a dimension; 0 where they are not in it."""
    return math.prod(dim[: dim.index(ROWS)]) if ROWS in dim else 0


def _split_strides(own: Dimension, new: Dimension, strides: list[int]) -> list[int]:
    if [n == ROWS for n in own if n == ROWS] != [n == ROWS for n in new if n == ROWS]:
        raise Mismatch("rows beside the rows in another order")
    left = [(n, stride) for n, stride in zip([n for n in own if n != ROWS], strides, strict=True)]
    found: list[int] = []
    for n in (n for n in new if n != ROWS):
        size, stride = left.pop(0)
        if size % n:
            raise Mismatch("two groups of axes of which neither divides the other")
        found.append(stride * (size // n))
        if size > n:
            left.insert(0, (size // n, stride))
    return found


def shown(size: Size) -> str:
    """A dimension's size, for messages."""
    if not size.rows:
        return str(size.inner)
    return "the rows" if size.inner == 1 else f"{size.inner} times the rows"
