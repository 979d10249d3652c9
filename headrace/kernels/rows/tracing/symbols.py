"""Tensors that have shapes and no numbers. They stand for a loss's arguments while it is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace.kernels.rows.reasons import NotRows, place_in, stack_here

if TYPE_CHECKING:
    from torch.fx import Node

CPU = torch.device("cpu")
DEVICE = torch.ops.prim.device.default
CHOOSES = "chooses by the data (such as `if` on a tensor)"
READS = "reads a number of a tensor (such as by .item() or float())"


class Symbol(Tensor):
    """Tensor without numbers that looks like one of the CPU.

    like: a tensor of the same shape, on torch's meta device. node: the node of the graph that computes it. known: its
    value, where it is one number that does not depend on the loss's arguments.
    """

    like: Tensor
    node: Node
    known: Tensor | None

    @staticmethod
    def __new__(cls, like: Tensor, node: Node, known: Tensor | None = None) -> Symbol:
        made: Symbol = Tensor._make_subclass(cls, like, False, dispatch_device=True, device_for_backend_keys=CPU)  # type: ignore[assignment, attr-defined]
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.like, made.node, made.known = like, node, known
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is DEVICE:
            return CPU
        raise NotRows("computes with a tensor of its trace after it has ended")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Symbol(shape={tuple(self.like.shape)}, dtype={self.dtype})"

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """Shape as torch gives it. The count of chosen numbers is a number on which Python may not branch."""
        return torch.Size(map(self._size, self.like.shape)) if self._marks() else self.like.shape

    def size(self, dim: int | None = None) -> Any:
        """Same as torch's."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Same as torch's."""
        return self._size(self.like.numel())

    nelement = numel

    def __len__(self) -> int:
        if isinstance(self.shape[0], Marked):  # which Python's len() would make a usual number of
            raise NotRows("asks for len() of what truth values choose; .shape[0] is compiled", place_in(stack_here()))
        return self.like.shape[0]

    def tolist(self) -> Any:
        """Same as torch's, for a tensor that the loss has made of numbers."""
        if not self.dim():
            return self.item()
        if "constant" in self.node.meta:
            return self.node.meta["constant"].tolist()
        raise NotRows(READS, place_in(stack_here()))

    def _marks(self) -> frozenset[int]:
        return self.node.meta["chosen"] if Marked.shown else frozenset()  # type: ignore[no-any-return]

    def _size(self, size: int) -> int:
        return Chosen(size) if any(size % mark == 0 for mark in self._marks()) else size


class Marked:
    """Number that depends on the data: a prime number that stands for the count of chosen numbers, or a number that
    Python computes from it. Python may compute with it, and may not branch on it.

    shown: whether code that asks for a size gets such a number: the loss does, and torch's own rules do not.
    """

    shown = True

    def __bool__(self) -> bool:
        raise NotRows(CHOOSES, place_in(stack_here()))

    def _compare(self, other: object) -> bool:
        raise NotRows(CHOOSES, place_in(stack_here()))

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Marked) and repr(self) == repr(other)) or self._compare(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __float__(self) -> float:
        raise NotRows("takes the count of numbers that truth values choose out of PyTorch", place_in(stack_here()))


class Chosen(Marked, int):
    """A whole number."""

    __hash__ = int.__hash__


class Share(Marked, float):
    """A number with a fraction."""

    __hash__ = float.__hash__


def _computing(name: str) -> Callable[[Any, Any], Any]:
    def compute(self: Any, other: Any) -> Any:
        plain: Any = int if isinstance(self, int) else float
        found = getattr(plain, name)(self, other)
        if found is NotImplemented and isinstance(other, float):
            found = getattr(float, name)(float(int(self)), other)
        return {int: Chosen, float: Share}.get(type(found), lambda x: x)(found)

    return compute


for _kind in (Chosen, Share):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod"):
        for _side in (f"__{_name}__", f"__r{_name}__"):
            setattr(_kind, _side, _computing(_side))
