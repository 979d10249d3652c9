"""Rows chosen by truth values, x[mask]: a tensor whose size depends on the data.

In a row program all rows are computed, and what is not chosen is left out of sums and of writes. So the size of a
dimension with chosen numbers is that of the mask, with a mark: torch's symbol of the count of numbers that are chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import SymInt, Tensor

if TYPE_CHECKING:
    from torch.fx import Graph, Node


class Selections:
    """Which mask each symbol of a graph belongs to."""

    def __init__(self, graph: Graph) -> None:
        self.masks: dict[Any, Node] = {}
        for node in graph.nodes:
            if node.target is torch.ops.aten.index.Tensor:
                for mask in node.args[1]:
                    if mask is not None and mask.meta["val"].dtype == torch.bool:
                        for symbol in symbols(node):
                            self.masks.setdefault(symbol, mask)

    def size(self, size: int | SymInt) -> int | None:
        """A dimension's size, of all numbers instead of the chosen ones; None of a size that is no multiple of their
        count."""
        if not isinstance(size, SymInt):
            return size
        factor, symbol = _multiple(size)
        mask = self.masks.get(symbol)
        return None if mask is None or factor is None else factor * mask.meta["val"].numel()

    def of(self, node: Node) -> Node | None:
        """The mask by which numbers of a node's result were chosen."""
        found = {self.masks.get(symbol) for symbol in symbols(node)}
        return found.pop() if len(found) == 1 else None

    def dimension(self, node: Any) -> int | None:
        """The dimension of a node's result in which numbers were chosen."""
        shape = getattr(node.meta.get("val"), "shape", ())
        return next((d for d, size in enumerate(shape) if isinstance(size, SymInt)), None)

    def factor(self, node: Node) -> tuple[float, Node] | None:
        """How often the count of chosen numbers a node's number is, and the mask."""
        factor, symbol = _multiple(node.meta["val"])
        mask = self.masks.get(symbol)
        return None if factor is None or mask is None else (factor, mask)


def symbols(node: Node) -> set[Any]:
    """The symbols in the sizes of a node's results."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    sizes: list[Any] = [size for one in values if isinstance(one, Tensor) for size in one.shape]
    sizes += [one for one in values if isinstance(one, SymInt)]
    return {symbol for size in sizes if isinstance(size, SymInt) for symbol in size.node.expr.free_symbols}


def _multiple(size: SymInt) -> tuple[int | None, Any]:
    """(c, u) of a size c * u."""
    factor, symbol = size.node.expr.as_coeff_Mul()
    return (int(factor), symbol) if symbol.is_Symbol and factor.is_Integer else (None, None)
