"""Rows chosen by truth values, x[mask]: a tensor whose size depends on the data.

A row program computes all rows, and leaves those that are not chosen out of sums and of writes. So the size of a
dimension with chosen numbers is that of the mask. While the loss is traced, a mark, which is a prime number, stands for
the count of chosen numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from headrace.kernels.rows.tracing.by_rows import of_rows

if TYPE_CHECKING:
    from torch.fx import Graph, Node


class Selections:
    """Masks of a graph by their marks."""

    def __init__(self, graph: Graph) -> None:
        self.masks: dict[int, Node] = {}
        for node in graph.nodes:
            if node.target is torch.ops.aten.index.Tensor:
                for mask in node.args[1]:
                    if mask is not None and mask.meta["val"].dtype == torch.bool:
                        for mark in marks(node):
                            self.masks.setdefault(mark, mask)

    def size(self, size: int) -> int:
        """A dimension's size, of all numbers instead of the chosen ones."""
        for mark, mask in self.masks.items():
            if size % mark == 0 and size:
                return int(size // mark * mask.meta["val"].numel())
        return size

    def of(self, node: Node) -> Node | None:
        """The mask by which numbers of a node's result were chosen."""
        found = {self.masks.get(mark) for mark in marks(node)}
        return found.pop() if len(found) == 1 else None

    def dimension(self, node: Any) -> int | None:
        """The dimension of a node's result in which numbers were chosen."""
        shape = getattr(node.meta.get("val"), "shape", ())
        return next((d for d, n in enumerate(shape) if n and any(n % mark == 0 for mark in marks(node))), None)


def marks(node: Node) -> frozenset[int]:
    """The marks in the sizes of a node's results."""
    return node.meta["chosen"]  # type: ignore[no-any-return]


def chosen_count(mask: Node, factor: float, power: int, less: float, plus: float) -> None:
    """The target of a node whose number is plus + factor * (count - less)^power, of the count that a mask chooses."""


def name_counts(graphs: Sequence[Graph], selections: Sequence[Selections]) -> None:
    """Replace arguments that are computed from the count of numbers that a mask chooses by nodes."""
    masks = list(zip(*(one.masks.items() for one in selections), strict=True))
    if not masks:
        return
    for nodes in zip(*(list(graph.nodes) for graph in graphs), strict=True):
        for i in _numbers(nodes[0]):
            given = [node.args[i] for node in nodes]
            if len(set(given)) == 1:
                continue
            for pairs in masks:
                count = of_rows([float(n) for n in given], [mark for mark, _ in pairs])
                if count is None:
                    continue
                for node, (_, mask) in zip(nodes, pairs, strict=True):
                    with node.graph.inserting_before(node):
                        arguments = (mask, count.factor, count.power, count.less, count.plus)
                        named = node.graph.call_function(chosen_count, arguments)
                    named.meta = {**node.meta, "val": torch.empty((), device="meta"), "chosen": frozenset()}
                    node.update_arg(i, named)
                break


def _numbers(node: Node) -> list[int]:
    """The places of a node's arguments that are numbers to compute with."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    kinds = [argument.type.kind() for argument in arguments]
    return [
        i
        for i, (value, kind) in enumerate(zip(node.args, kinds, strict=False))
        if type(value) in (int, float) and kind in ("NumberType", "TensorType")
    ]
