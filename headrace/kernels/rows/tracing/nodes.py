"""Nodes of a traced graph: the names of their operations, and of their arguments; inputs that none reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.tracing.inputs import DTYPES, Given

if TYPE_CHECKING:
    from torch.fx import Graph, Node


def operation_name(node: Node) -> str:
    """The name of a node's operation, without its overload: "add", "mm"."""
    return name_of(node.target)


def name_of(operation: Any) -> str:
    """The name of an operation, without its overload."""
    name: str = getattr(operation, "_overloadpacket", operation).__name__
    return name.removesuffix("_copy")


def given(node: Node, name: str, default: Any = None) -> Any:
    """An argument of a node by the name that it has in the operation's signature."""
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, argument.default_value if argument.has_default_value() else default)
    return default


def leave_out(graphs: list[Graph], found: Given) -> None:
    """Leave out inputs of dtypes that are not compiled. Raises NotRows where one is read."""
    holders = [[node for node in graph.nodes if node.op == "placeholder"] for graph in graphs]
    for source, value, *nodes in zip(found.sources, found.values, *holders, strict=True):
        if value.dtype not in DTYPES:
            if any(node.users for node in nodes):
                dtype = str(value.dtype).removeprefix("torch.")
                raise NotRows(f"{source.name} is of dtype {dtype}; give it as float32")
            for node in nodes:
                node.graph.erase_node(node)
    found.leave_out()
