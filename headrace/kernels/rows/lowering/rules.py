"""The state of lowering a traced loss, and the rules for torch's operations, which register themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.lowering.tensors import ROWS, Size, Tensor, of_value
from headrace.kernels.rows.row_program import BOOL, F32, I32, Count, Input
from headrace.kernels.rows.tracing.nodes import operation_name
from headrace.kernels.rows.tracing.selections import marks

if TYPE_CHECKING:
    from torch.fx import Node

    from headrace.kernels.rows.tracing.trace_loss import Traced

Lowered: TypeAlias = "Tensor | list[Tensor | None]"
RULES: dict[str, Callable[[Lowering, Node], Lowered]] = {}
CHOSEN: set[str] = set()  # the operations that may be given tensors of rows that truth values choose, see selections


class Unsupported(Exception):
    """Operation that no row program can have. The text continues a sentence that begins with the user's line."""


def called(name: str) -> str:
    """Name of an operation in a sentence; for one that computes a gradient, the name of the user's operation."""
    own = name.removesuffix("_backward")
    return name if own == name else f"the gradient of {own}"


def rule(
    *names: str, chosen: bool = False
) -> Callable[[Callable[[Lowering, Node], Lowered]], Callable[[Lowering, Node], Lowered]]:
    """Make a function the rule of operations of these names. chosen: it also takes rows that truth values choose."""

    def register(function: Callable[[Lowering, Node], Lowered]) -> Callable[[Lowering, Node], Lowered]:
        RULES.update(dict.fromkeys(names, function))
        if chosen:
            CHOSEN.update(names)
        return function

    return register


class Lowering:
    """The state of lowering one graph. tensors: of each node; a list where a node has several results."""

    def __init__(self, traced: Traced) -> None:
        self.traced, self.build = traced, Builder()
        self.tensors: dict[Node, Lowered] = {}
        # arange() over the rows, which index() takes for "in each row"
        self.positions = of_value(Input((), True, I32, "the positions of the rows", -1), [(ROWS,)])
        self.counted: Node | None = None  # the node that made them

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
        if any(inner == 0 for inner, _ in self.traced.sizes(node, result)):
            raise Unsupported("makes a tensor without numbers")
        return tuple(Size(inner, bool(power)) for inner, power in self.traced.sizes(node, result))

    def dtype(self, node: Node, result: int = 0) -> str:
        """The dtype of a node's result."""
        return self.traced.dtype(node, result)

    def operation(self, node: Node) -> Lowered:
        """The result of a node, by its rule."""
        name = operation_name(node)
        if name not in RULES:
            raise Unsupported(f"uses {called(name)}, which is not compiled")
        found = {mark for one in (node, *node.all_input_nodes) for mark in marks(one)}
        if found:
            if name not in CHOSEN:
                raise Unsupported(f"computes {name} of what truth values choose, whose size depends on the data")
            masks = {self.traced.selections.masks.get(mark) for mark in found}
            if len(masks) > 1 or None in masks:
                raise Unsupported("computes with what different truth values choose, whose size depends on the data")
        return RULES[name](self, node)
