"""From a traced loss to a row program: a rule for each of torch's operations, by where the rows are in its tensors.

Rules are in lower_pointwise, lower_views, lower_sums, lower_features. An operation without a rule, or one that would
need rows beside other rows, refuses the whole loss with the line of the user's that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.kernels.rows.build import Builder
from headrace.kernels.rows.ir import BOOL, F32, I32, Count, Input, Output, Program, View
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.tensors import ROWS, Mismatch, Size, Tensor, axes_of, inner_axes, of_value

if TYPE_CHECKING:
    from torch.fx import Node

    from headrace.kernels.rows.trace import Traced

Lowered: TypeAlias = "Tensor | list[Tensor | None]"
RULES: dict[str, Callable[[Lowering, Node], Lowered]] = {}


class Unsupported(Exception):
    """What cannot be a row program. The text goes on a sentence that begins with the user's file and line."""


def rule(*names: str) -> Callable[[Callable[[Lowering, Node], Lowered]], Callable[[Lowering, Node], Lowered]]:
    """Make a function the rule of operations of these names."""

    def register(function: Callable[[Lowering, Node], Lowered]) -> Callable[[Lowering, Node], Lowered]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Lowering:
    """The state of lowering one graph. tensors: of each node; a list where a node has several results."""

    def __init__(self, traced: Traced) -> None:
        self.traced, self.build = traced, Builder()
        self.tensors: dict[Node, Lowered] = {}
        # arange() over the rows, which index() takes for "in each row"
        self.positions = of_value(Input((), True, I32, "the positions of the rows", -1), [(ROWS,)])

    def tensor(self, node: Node, argument: Any) -> Tensor:
        """An argument of a node as a tensor: another node's, or a number."""
        found = self.tensors.get(argument) if hasattr(argument, "op") else None
        if isinstance(found, Tensor):
            return found
        if found is not None:
            return found[0]  # type: ignore[return-value]
        dtype = BOOL if isinstance(argument, bool) else I32 if isinstance(argument, int) else F32
        return Tensor(self.build.number(float(argument), (), dtype), ())

    def number(self, node: Node, name: str, default: float | None = None) -> float | Count:
        """A number among a node's arguments, which may depend on the number of rows."""
        number = self.traced.number(node, name)
        if number is None:
            assert default is not None
            return default
        return number

    def sizes(self, node: Node, result: int = 0) -> tuple[Size, ...]:
        """The sizes of a node's result."""
        return tuple(Size(inner, bool(power)) for inner, power in self.traced.sizes(node, result))

    def dtype(self, node: Node, result: int = 0) -> str:
        """The dtype of a node's result."""
        return self.traced.dtype(node, result)

    def operation(self, node: Node) -> Lowered:
        """The result of a node, by its rule."""
        name = operation_name(node)
        if name not in RULES:
            raise Unsupported(f"uses {name}, which is not compiled")
        return RULES[name](self, node)


def operation_name(node: Node) -> str:
    """The name of a node's operation, without its overload: "add", "mm"."""
    packet: Any = getattr(node.target, "_overloadpacket", node.target)
    name: str = packet.__name__
    return name.removesuffix("_copy")


def given(node: Node, name: str, default: Any = None) -> Any:
    """An argument of a node by the name that it has in the operation's signature."""
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, argument.default_value if argument.has_default_value() else default)
    return default


def lower(traced: Traced, name: str) -> Program:
    """The row program of a traced loss. Raises traced.refusal(...) where it cannot be one."""
    # the rules register themselves
    from headrace.kernels.rows import lower_features, lower_pointwise, lower_sums, lower_views  # noqa: F401

    lowering = Lowering(traced)
    columns: list[Input] = []
    uniforms: list[Input] = []
    holders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, source in zip(holders, traced.inputs, strict=True):
        kind = columns if source.kind == "column" else uniforms
        dims = [axes_of(size) for size in lowering.sizes(node)]
        value = Input(inner_axes(dims), source.kind == "column", lowering.dtype(node), source.name, len(kind))
        kind.append(value)
        if value.rows and (not dims or dims[0][:1] != (ROWS,)):
            raise traced.refusal(node, "is given a column whose first dimension is not the rows")
        lowering.tensors[node] = of_value(value, dims)
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            numbers, shape = traced.constant(node)
            dims = [(n,) if n != 1 else () for n in shape]
            made = lowering.build.constant(numbers, inner_axes(dims), lowering.dtype(node))
            lowering.tensors[node] = of_value(made, dims)
        if node.op == "call_function":
            try:
                lowering.tensors[node] = lowering.operation(node)
            except Mismatch as error:
                raise traced.refusal(node, f"needs rows together in one computation: {error}") from None
            except Unsupported as error:
                raise traced.refusal(node, str(error)) from None
    outputs = [Output(result.name, _result(lowering, result.node)) for result in traced.outputs]
    program = Program(name, tuple(columns), tuple(uniforms), tuple(outputs))
    positions = lowering.positions.view.value
    if any(view.value is positions for made in program.values() for view in made.operands):
        raise NotRows("computes with the positions of rows (arange over them)")
    return program


def _result(lowering: Lowering, node: Node) -> View:
    tensor = lowering.tensor(node, node)
    inside = [dim for dim in tensor.dims if ROWS in dim]
    if tensor.rows and (not inside or tensor.dims[0][:1] != (ROWS,)):
        raise lowering.traced.refusal(node, "returns a tensor whose first dimension is not the rows")
    return tensor.view
