"""The row program: a loss with its gradients, as computations on one row of a minibatch and sums over all rows.

A value is *uniform* (the same for all rows: a parameter, a coefficient, a sum over rows) or has *rows* (a number, or an
array, for each row of the minibatch). Its shape leaves the rows out. Operations read their operands through views,
which are torch's: a shape, strides and an offset within the operand's numbers in row-major order. So a transposed,
expanded or sliced tensor is no operation, and there are few operations:

    Map        a function of one number, applied to each
    Reduce     sum, product, largest, smallest, over inner axes or over the rows
    Product    source x weights, for each row
    Outer      the sum over rows of left x right: a gradient of weights
    Pick       the numbers at indices
    Sort       values in order, and where they were
    Join       parts side by side

Rows meet nowhere but in Outer and in Reduce over rows. The *phase* of a value counts how often all rows must have been
summed before it can be read: what reads a batch's mean belongs to phase 1, its standardized gradient to phase 2.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

F32, I32, BOOL = "f32", "i32", "bool"
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Count:
    """A number that depends on the number of rows: plus + factor * (rows - less) ** power."""

    factor: float
    power: int
    less: float = 0.0
    plus: float = 0.0

    def at(self, rows: int) -> float:
        """Value for so many rows."""
        return self.plus + self.factor * (rows - self.less) ** float(self.power)

    def __str__(self) -> str:
        base = f"(rows - {self.less:g})" if self.less else "rows"
        return (
            f"{self.plus:g} + {self.factor:g} {base}^{self.power}"
            if self.plus
            else f"{self.factor:g} {base}^{self.power}"
        )


@dataclass(eq=False)
class Value:
    """Result of an operation. shape: without the rows."""

    shape: Shape
    rows: bool
    dtype: str = F32
    number: int = field(default=-1, init=False)  # in its program, for printing
    made: int = field(default_factory=itertools.count().__next__, init=False)  # the order in which values were made

    @property
    def size(self) -> int:
        """Count of numbers, for one row."""
        return math.prod(self.shape)

    @property
    def operands(self) -> tuple[View, ...]:
        """The views that it reads."""
        return ()

    @property
    def phase(self) -> int:
        """Number of passes over all rows that must be finished before the value can be read."""
        return self._phase

    def __post_init__(self) -> None:
        self._phase = max((view.value.phase for view in self.operands), default=0)

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True)
class View:
    """Part of a value, in another shape or order: number [i, j, ...] is the value's number
    offset + i * strides[0] + j * strides[1] + ..."""

    value: Value
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        """Count of numbers, for one row."""
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """Count of the numbers that it reaches over."""
        return 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def whole(self) -> bool:
        """True if the view is all of the value, in order."""
        return self.offset == 0 and self.size == self.value.size and self.in_order

    @property
    def in_order(self) -> bool:
        """True if the numbers lie side by side, in order."""
        expected = contiguous(self.shape)
        return all(n == 1 or own == other for n, own, other in zip(self.shape, self.strides, expected, strict=True))

    def __str__(self) -> str:
        if self.whole and self.shape == self.value.shape:
            return str(self.value)
        strides = ", ".join(map(str, self.strides))
        return f"{self.value}{list(self.shape)}@{self.offset}({strides})"


def contiguous(shape: Shape) -> tuple[int, ...]:
    """The strides of an array in row-major order."""
    strides: list[int] = []
    stride = 1
    for size in reversed(shape):
        strides.insert(0, stride)
        stride *= size
    return tuple(strides)


def whole(value: Value) -> View:
    """The view of all of a value, in its own shape."""
    return View(value, value.shape, contiguous(value.shape))


@dataclass(eq=False)
class Input(Value):
    """A tensor that the caller gives: a column of the minibatch (rows), or a parameter, buffer or coefficient.

    name: for messages and printing. position: among the inputs of its kind. first: of a column, the number with which
    the value begins.
    """

    name: str = ""
    position: int = 0
    first: int = 0


@dataclass(eq=False)
class Constant(Value):
    """Numbers that the program's text contains, in row-major order; uniform."""

    numbers: tuple[float | Count, ...] = ()


@dataclass(eq=False)
class Map(Value):
    """function(operands), for each number of views that have the value's shape. Functions are listed in FUNCTIONS."""

    function: str = ""
    arguments: tuple[View, ...] = ()

    @property
    def operands(self) -> tuple[View, ...]:
        return self.arguments


@dataclass(eq=False)
class Reduce(Value):
    """Reduction over the last axes of the source's view, those that the value's shape has not; if over_rows, over all
    rows as well, which makes a uniform value of the next phase.

    function: sum, prod, max, min (NaN where one is, as torch's), any, all; argmax, argmin over exactly one axis (the
    first of equals; dtype i32). Over rows: sum, max and min.
    """

    function: str = "sum"
    source: View = None  # type: ignore[assignment]
    over_rows: bool = False

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.source,)

    @property
    def inner(self) -> Shape:
        """The sizes of the axes that are reduced."""
        return self.source.shape[len(self.shape) :]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._phase += self.over_rows


@dataclass(eq=False)
class Product(Value):
    """value[..., n] = bias[n] + sum over k of weight[n, k] * source[..., k]. The source has rows; weight and bias
    (or None) are uniform. The sum is taken in order of k."""

    source: View = None  # type: ignore[assignment]
    weight: View = None  # type: ignore[assignment]
    bias: View | None = None

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.source, self.weight) if self.bias is None else (self.source, self.weight, self.bias)


@dataclass(eq=False)
class Outer(Value):
    """value[n, k] = sum over rows and leading axes of left[..., n] * right[..., k]; uniform, of the next phase."""

    left: View = None  # type: ignore[assignment]
    right: View = None  # type: ignore[assignment]

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.left, self.right)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._phase += 1


@dataclass(eq=False)
class Pick(Value):
    """value[...] = source[..., index[...]]: the numbers at indices (i32) within the source's last axis. The source may
    be uniform: a table of embeddings."""

    source: View = None  # type: ignore[assignment]
    index: View = None  # type: ignore[assignment]

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.source, self.index)


@dataclass(eq=False)
class Sort(Value):
    """The source's last axis in ascending order; if `places`, instead (i32) where each number was. Equals keep their
    order."""

    source: View = None  # type: ignore[assignment]
    places: bool = False

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.source,)


@dataclass(eq=False)
class Join(Value):
    """Views side by side along an axis. parts: they have the value's shape except along that axis."""

    parts: tuple[View, ...] = ()
    axis: int = 0

    @property
    def operands(self) -> tuple[View, ...]:
        return self.parts


@dataclass(frozen=True)
class Output:
    """Result of a program. A uniform one is an array of the caller's that is filled. One with rows is a column: each of
    its rows is filled."""

    name: str
    view: View


Arity: TypeAlias = Literal[1, 2, 3]

# Functions of Map, and how many operands each takes. Comparisons and logic make BOOL, `int` makes I32 (toward zero),
# `float` makes F32, `bool` is x != 0; the others keep their operands' dtype. where(condition, yes, no).
FUNCTIONS: dict[str, Arity] = {
    **dict.fromkeys(("neg", "abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal"), 1),
    **dict.fromkeys(("tanh", "atanh", "sigmoid", "sin", "cos", "erf", "floor", "ceil", "round", "trunc"), 1),
    **dict.fromkeys(("lgamma", "digamma", "trigamma", "isnan", "isinf", "not", "float", "int", "bool"), 1),
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "pow", "fmod"), 2),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"), 2),
    "where": 3,
}
TRUTHS = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "isnan", "isinf", "bool"}
EXPENSIVE = {"exp", "expm1", "log", "log1p", "tanh", "atanh", "sigmoid", "sin", "cos", "erf", "pow", "fmod"} | {
    "lgamma",
    "digamma",
    "trigamma",
    "sqrt",
    "rsqrt",
    "div",
    "reciprocal",
}


@dataclass
class Program:
    """Inputs, and outputs with all that they need.

    columns, uniforms: the inputs with rows and those without, in order of their positions.
    """

    name: str
    columns: tuple[Input, ...]
    uniforms: tuple[Input, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        for number, value in enumerate([*self.columns, *self.uniforms, *self.values()]):
            value.number = number

    def values(self) -> list[Value]:
        """All values but the inputs, in the order in which they were made: those that an output needs, no other."""
        found = {output.view.value for output in self.outputs}
        waiting = list(found)
        while waiting:
            new = {view.value for view in waiting.pop().operands} - found
            found |= new
            waiting += new
        return sorted((value for value in found if not isinstance(value, Input)), key=lambda value: value.made)

    def __str__(self) -> str:
        inputs = [f"  {value} = {value.name}: {_kind(value)}" for value in (*self.columns, *self.uniforms)]
        lines = [f"  {value} = {_text(value)}: {_kind(value)}" for value in self.values()]
        results = [f"  {output.name} = {output.view}" for output in self.outputs]
        return "\n".join([f"program {self.name}", *inputs, *lines, *results])


def _kind(value: Value) -> str:
    rows = "rows " if value.rows else ""
    phase = f" phase {value.phase}" if value.phase else ""
    return f"{rows}{value.dtype}{list(value.shape)}{phase}"


def _text(value: Value) -> str:
    names = ", ".join(map(str, value.operands))
    if isinstance(value, Constant):
        shown = ", ".join(f"{n:g}" if isinstance(n, float) else str(n) for n in value.numbers[:4])
        return f"{shown}{', ...' if len(value.numbers) > 4 else ''}"
    if isinstance(value, Map):
        return f"{value.function}({names})"
    if isinstance(value, Reduce):
        return f"{value.function}{list(value.inner)}{' over rows' if value.over_rows else ''}({names})"
    if isinstance(value, Sort):
        return f"sort{' places' if value.places else ''}({names})"
    if isinstance(value, Join):
        return f"join axis {value.axis}({names})"
    return f"{type(value).__name__.lower()}({names})"
