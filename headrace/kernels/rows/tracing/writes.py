"""Writes in place in a traced graph, such as those of torch's own backward passes, as operations that do not write."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from headrace.kernels.rows.tracing.nodes import operation_name

# of these the operation without the underscore has the same arguments
IN_PLACE = {"add_", "sub_", "mul_", "div_", "neg_", "sigmoid_", "tanh_", "relu_", "logical_and_", "masked_fill_"}
IN_PLACE |= {"clamp_", "clamp_min_", "clamp_max_", "abs_", "exp_", "log_", "sqrt_", "square_", "pow_", "reciprocal_"}
IN_PLACE |= {"transpose_"}  # which ends torch's GRU and LSTM with the batch first


def replaced_writes(graph: Graph) -> bool:
    """Replace each write to a tensor that nothing else sees. False where there is another write: the graph is then
    not one to use."""
    places = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if not writes(node):
            continue
        target = node.args[0]
        if not (_is_fresh(target) and all(_sees_before(user, node, places) for user in target.users)):
            return False
        with graph.inserting_before(node):
            new = _without_write(graph, node)
        if new is None:
            return False
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        places[new] = places.get(new, places[node])
    return True


def writes(node: Node) -> bool:
    """Tell whether an operation writes to one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _is_fresh(node: Any) -> bool:
    """Tell whether a node is a tensor in memory of its own."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    made: Any = node.args[0] if operation_name(node) == "getitem" else node
    schema = getattr(made.target, "_schema", None)
    if schema is None:
        return False
    if made is not node and operation_name(made) in ("split", "split_with_sizes"):  # parts, none of another's numbers
        return len(made.args[0].users) == 1 and _is_fresh(made.args[0])
    return all(result.alias_info is None for result in schema.returns)


def _sees_before(user: Node, write: Node, places: dict[Node, int]) -> bool:
    """Tell whether a node reads the tensor before the write, or is the write, and keeps no view of it."""
    if user is write:
        return True
    schema = getattr(user.target, "_schema", None)
    return schema is not None and places[user] < places[write] and not any(a.alias_info for a in schema.arguments)


def _without_write(graph: Graph, node: Node) -> Node | None:
    """Make the node with the numbers that a write writes. None for an unknown operation, or another dtype."""
    own, name = node.meta["val"], node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
    if name == "copy_":
        source = node.args[1]
        found = source.meta["val"] if isinstance(source, Node) else None
        alike = found is not None and (found.shape, found.dtype) == (own.shape, own.dtype)
        return source if alike else None  # type: ignore[return-value]
    others = [arg.meta["val"].dtype for arg in node.args[1:] if isinstance(arg, Node)]
    if name not in IN_PLACE or any(dtype not in (own.dtype, torch.bool) for dtype in others) or node.kwargs:
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"))
    overload = "int" if name == "transpose_" else node.target._overloadname  # type: ignore[union-attr]
    new = graph.call_function(getattr(packet, overload), node.args)
    new.meta = dict(node.meta)
    return new
