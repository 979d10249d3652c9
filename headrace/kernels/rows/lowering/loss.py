"""Lowering of a traced loss to a row program. Each of torch's operations has a rule, which depends on where the rows
are in its tensors.

Rules are in this folder's other modules. An operation without a rule, or one that would compute one row from another,
refuses the whole loss with the line of the user's that made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.kernels.rows.joins import joined
from headrace.kernels.rows.lowering import counting, features, gathering, indices, pointwise, selecting, sums, views
from headrace.kernels.rows.lowering.rules import Lowering, Unsupported
from headrace.kernels.rows.lowering.tensors import ROWS, Mismatch, axes_of, inner_axes, of_value
from headrace.kernels.rows.narrow import narrowed
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.row_program import Input, Output, Program, View
from headrace.kernels.rows.tracing.selections import marks

if TYPE_CHECKING:
    from torch.fx import Node

    from headrace.kernels.rows.tracing.trace_loss import Traced

# the rules register themselves where they are imported
RULES = (counting, features, gathering, indices, pointwise, selecting, sums, views)


def lower(traced: Traced, name: str) -> Program:
    """The row program of a traced loss. Raises traced.refusal(...) where it cannot be one."""
    lowering = Lowering(traced)
    columns: list[Input] = []
    uniforms: list[Input] = []
    holders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, source in zip(holders, traced.inputs, strict=True):
        kind = columns if source.kind == "column" else uniforms
        with _refusing(traced, node):
            dims = [axes_of(size) for size in lowering.sizes(node)]
        value = Input(inner_axes(dims), source.kind == "column", lowering.dtype(node), source.name, len(kind))
        kind.append(value)
        if value.rows and (not dims or dims[0][:1] != (ROWS,)):
            raise traced.refusal(node, "is given a column whose first dimension is not the rows")
        lowering.tensors[node] = of_value(value, dims)
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            found = traced.constant(node)
            if found is None:
                lowering.tensors[node] = lowering.positions
                continue
            numbers, shape = found
            dims = [(n,) if n != 1 else () for n in shape]
            made = lowering.build.constant(numbers, inner_axes(dims), lowering.dtype(node))
            lowering.tensors[node] = of_value(made, dims)
        if node.op == "call_function":
            with _refusing(traced, node):
                lowering.tensors[node] = lowering.operation(node)
    outputs = [Output(result.name, _result(lowering, result.node)) for result in traced.outputs]
    program = Program(name, tuple(columns), tuple(uniforms), tuple(outputs))
    positions = lowering.positions.view.value
    if any(view.value is positions for made in program.values() for view in made.operands):
        reason = "computes with the positions of rows (arange over them)"
        raise traced.refusal(lowering.counted, reason) if lowering.counted is not None else NotRows(reason)
    return narrowed(joined(program, lowering.build))


@contextmanager
def _refusing(traced: Traced, node: Node) -> Iterator[None]:
    """Refuse the loss, with a node's line, if the node cannot be lowered within this block."""
    try:
        yield
    except Mismatch as error:
        raise traced.refusal(node, f"needs rows together in one computation: {error}") from None
    except Unsupported as error:
        raise traced.refusal(node, str(error)) from None


def _result(lowering: Lowering, node: Node) -> View:
    tensor = lowering.tensor(node, node)
    if marks(node):
        raise lowering.traced.refusal(node, "returns a tensor whose size depends on the data")
    inside = [dim for dim in tensor.dims if ROWS in dim]
    if tensor.rows and (not inside or tensor.dims[0][:1] != (ROWS,)):
        raise lowering.traced.refusal(node, "returns a tensor whose first dimension is not the rows")
    return tensor.view
