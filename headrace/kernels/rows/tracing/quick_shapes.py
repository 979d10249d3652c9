"""Shapes and dtypes of what the commonest operations give.

torch's rules for these are in Python: they take a tenth of a millisecond each, and the first a second, since it imports
torch's compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

ONE = "neg exp log tanh relu sigmoid abs sqrt rsqrt reciprocal square sin cos log1p expm1 erf sign clamp masked_fill"
TWO = "add sub mul div pow maximum minimum rsub"
ALIKE = "threshold_backward tanh_backward sigmoid_backward"
OVERLOADS = "default Tensor Scalar self Tensor_Scalar Tensor_Tensor dim dim_IntList"
REDUCED = "sum mean amax amin"
TRUTHS = "eq ne lt le gt ge logical_and logical_or logical_not isnan isfinite isinf"


def quick_shape(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """What an operation gives for tensors of torch's meta device; None where torch's rule has to tell."""
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
    shape = tensors[0].shape if len(tensors) == 1 else torch.broadcast_tensors(*tensors)[0].shape
    return torch.empty(shape, dtype=dtype, device="meta")


def _in_order(x: Tensor) -> bool:
    """Whether dimensions lie in memory in the order that they have."""
    steps = [step for n, step in zip(x.shape, x.stride(), strict=True) if n != 1 and step]
    return all(one > other for one, other in pairwise(steps))


def _dtype(kind: str, args: Any) -> torch.dtype | None:
    """That of a result with fractions, of one operand or two."""
    first: Any
    second: Any
    first, second = args[1:3] if kind == "where" else (args[0], None if kind == "one" else args[1])
    if kind == "alike" and first.dtype != second.dtype:
        return None
    dtype = first.dtype if second is None else torch.result_type(first, second)
    return dtype if dtype.is_floating_point and not isinstance(second, complex) else None


def _product(*args: Any) -> Tensor | None:
    """[bias +] left @ right."""
    left, right = args[-2:]
    alike = all(isinstance(x, Tensor) and x.dtype == left.dtype for x in args)
    if not alike or left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        return None
    made = torch.empty((left.shape[0], right.shape[1]), dtype=left.dtype, device="meta")
    if len(args) > 2:
        args[0].expand(made.shape)  # raises where it cannot be added
    return made


def _reduced(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor | None:
    """What is left of a tensor with fractions without some dimensions, or without all."""
    count = x.dim()
    over = {d % count for d in dims if -count <= d < count} if dims else {*range(count)}
    if not x.dtype.is_floating_point or not count or len(over) != len(dims or over) or not x.numel():
        return None
    sizes = [1 if d in over else n for d, n in enumerate(x.shape) if keepdim or d not in over]
    return torch.empty(sizes, dtype=x.dtype, device="meta")


@cache
def _kinds() -> dict[Any, str]:
    found = dict[Any, str]()
    kinds = {"one": ONE, "two": TWO, "alike": ALIKE, "truths": TRUTHS, "reduced": REDUCED}
    kinds |= {"where": "where", "product": "mm addmm"}
    for kind, names in kinds.items():
        for name in names.split():
            packet = getattr(torch.ops.aten, name)
            found |= {getattr(packet, o): kind for o in OVERLOADS.split() if o in packet.overloads()}
    unlike = torch.ops.aten.where.Scalar, torch.ops.aten.where.default, torch.ops.aten.clamp.Tensor
    of_tensors = [key for key in found if key._schema.arguments[0].type.kind() == "TensorType"]
    return {operation: found[operation] for operation in of_tensors if operation not in unlike}
