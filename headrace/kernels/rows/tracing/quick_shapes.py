"""Shapes and dtypes of the results of the commonest operations.

torch's rules for these are in Python. They take a tenth of a millisecond each, and the first takes a second, since it
imports torch's compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

KINDS = {
    "one": "neg exp log tanh relu sigmoid abs sqrt rsqrt reciprocal square sin cos log1p expm1 erf sign clamp "
    "masked_fill cumsum",
    "two": "div pow",
    "whole": "add sub mul maximum minimum rsub",  # also of whole numbers
    "alike": "threshold_backward tanh_backward sigmoid_backward",
    "bits": "bitwise_and bitwise_or bitwise_xor bitwise_not",  # of truth values
    "truths": "eq ne lt le gt ge logical_and logical_or logical_not isnan isfinite isinf",
    "where": "where",
    "reduced": "sum mean amax amin",
    "product": "mm addmm dot",
}
WRITTEN = "one", "two", "whole"  # these also in place
OVERLOADS = "default Tensor Scalar self Tensor_Scalar Tensor_Tensor dim dim_IntList"


def quick_shape(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """The result of an operation on tensors of torch's meta device; None where torch's own rule is needed."""
    kind = _kinds().get(func)
    if kind is None or kwargs.keys() - {"alpha", "beta", "keepdim"}:
        return None
    if kind == "product":
        return _product(*args)
    if kind == "reduced":
        return _reduced(*args, **kwargs)
    tensors = [x for x in args if isinstance(x, Tensor)]
    if not all(x.is_contiguous() or _in_order(x) for x in tensors):
        return None  # the result has its dimensions in another order, too
    dtype = torch.bool if kind == "truths" else _dtype(kind, args)
    if dtype is None:
        return None
    if func._schema.is_mutable:
        return tensors[0] if dtype == tensors[0].dtype and _fit(tensors) else None
    shape = tensors[0].shape if len(tensors) == 1 else torch.broadcast_tensors(*tensors)[0].shape
    return torch.empty(shape, dtype=dtype, device="meta")


def _in_order(x: Tensor) -> bool:
    """Tell whether dimensions lie in memory in their own order."""
    steps = [step for n, step in zip(x.shape, x.stride(), strict=True) if n != 1 and step]
    return all(one > other for one, other in pairwise(steps))


def _dtype(kind: str, args: Any) -> torch.dtype | None:
    """Dtype of the result of an operation with one operand or two. None where it is not found quickly."""
    first: Any
    second: Any
    first, second = args[1:3] if kind == "where" else (args[0], None if kind == "one" or len(args) < 2 else args[1])
    if kind == "alike" and first.dtype != second.dtype:
        return None
    dtype = first.dtype if second is None else torch.result_type(first, second)
    if kind == "bits":
        return dtype if dtype == torch.bool == first.dtype else None
    known = dtype.is_floating_point or (kind == "whole" and not dtype.is_complex and dtype != torch.bool)
    return dtype if known else None


def _fit(tensors: list[Tensor]) -> bool:
    """Tell whether the first tensor has the shape of all of them broadcast together."""
    return torch.broadcast_tensors(*tensors)[0].shape == tensors[0].shape


def _product(*args: Any) -> Tensor | None:
    """[bias +] left @ right."""
    left, right = args[-2:]
    alike = all(isinstance(x, Tensor) and x.dtype == left.dtype for x in args)
    if alike and left.dim() == 1 and left.shape == right.shape:
        return torch.empty((), dtype=left.dtype, device="meta")
    if not alike or left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        return None
    made = torch.empty((left.shape[0], right.shape[1]), dtype=left.dtype, device="meta")
    if len(args) > 2:
        args[0].expand(made.shape)  # raises where it cannot be added
    return made


def _reduced(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor | None:
    """A reduction of a tensor with fractions over some dimensions, or over all."""
    count = x.dim()
    over = {d % count for d in dims if -count <= d < count} if dims else {*range(count)}
    if not x.dtype.is_floating_point or not count or len(over) != len(dims or over) or not x.numel():
        return None
    sizes = [1 if d in over else n for d, n in enumerate(x.shape) if keepdim or d not in over]
    return torch.empty(sizes, dtype=x.dtype, device="meta")


@cache
def _kinds() -> dict[Any, str]:
    aten, found = torch.ops.aten, dict[Any, str]()
    for kind, names in KINDS.items():
        every = [(name, f"{name}_") if kind in WRITTEN else (name,) for name in names.split()]
        for packet in (getattr(aten, name) for pair in every for name in pair if hasattr(aten, name)):
            found |= {getattr(packet, o): kind for o in OVERLOADS.split() if o in packet.overloads()}
    unlike = aten.where.Scalar, aten.where.default, aten.clamp.Tensor, aten.clamp_.Tensor
    of_tensors = [key for key in found if key._schema.arguments[0].type.kind() == "TensorType"]
    return {operation: found[operation] for operation in of_tensors if operation not in unlike}
