"""Shapes that are not asked of torch's own rules are what these say."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from headrace.kernels.rows.tracing.quick_shapes import _kinds, quick_shape

SHAPES: list[tuple[tuple[int, ...], ...]]
SHAPES = [((5, 3), (5, 3)), ((5, 3), (3,)), ((5, 1), (1, 3)), ((), (5, 3))]
F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool
DTYPES = (F32, F32), (F64, F32), (F32, I64), (I64, F32), (I64, I64), (BOOL, BOOL)
ALONE = [key for key, kind in _kinds().items() if kind not in ("reduced", "where", "product")]


def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """One in order; also turned, expanded and cut out of a larger one."""
    plain = torch.empty(shape, dtype=dtype, device="meta")
    if len(shape) != 2:
        return [plain]
    larger = torch.empty(shape[0], 2 * shape[1], dtype=dtype, device="meta")
    turned = torch.empty(shape[::-1], dtype=dtype, device="meta").t()
    return [plain, turned, torch.empty((), dtype=dtype, device="meta").expand(shape), larger[:, : shape[1]]]


def check(operation: object, *arguments: object, **settings: object) -> int:
    found = quick_shape(operation, arguments, settings)
    if found is None:
        return 0
    wanted = operation(*arguments, **settings)  # type: ignore[operator]
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    steps = zip(found.shape, found.stride(), wanted.stride(), strict=True)
    assert all(one == other for n, one, other in steps if n != 1)
    return 1


def others(operation: torch._ops.OpOverload, shape: tuple[int, ...], dtype: torch.dtype) -> list[list[object]]:
    """List of further arguments that an operation may be given after its first."""
    name, *kinds = operation._schema.name, *(str(argument.type) for argument in operation._schema.arguments[1:])
    if name.startswith("aten::masked_fill"):
        mask = torch.empty(shape, dtype=torch.bool, device="meta")
        return [[mask, torch.empty((), device="meta") if kinds[1] == "Tensor" else 1.0]]
    if name.startswith("aten::cumsum"):
        return [[0]]
    if name.startswith("aten::clamp"):
        return [[0.0], [None, 2]]
    if name == "aten::threshold_backward":
        return [[b, 0.0] for b in tensors(shape, dtype)]
    if not kinds:
        return [[]]
    return [[b] for b in tensors(shape, dtype)] if kinds[0] == "Tensor" else [[2], [2.5], [True]]


@pytest.mark.parametrize("operation", ALONE, ids=str)
def test_of_each_number(operation: torch._ops.OpOverload) -> None:
    count = 0
    for (left, right), (one, other) in itertools.product(SHAPES, DTYPES):
        for a, rest in itertools.product(tensors(left, one), others(operation, right, other)):
            both = [x for x in (a, *rest) if isinstance(x, Tensor)]
            if operation._schema.is_mutable and torch.broadcast_tensors(*both)[0].shape != left:
                assert quick_shape(operation, (a, *rest), {}) is None
                continue
            try:
                operation(a, *rest)
            except (RuntimeError, NotImplementedError):
                continue  # not of these
            count += check(operation, a, *rest)
            if operation._schema.is_mutable:
                assert quick_shape(operation, (a, *rest), {}) in (None, a)
    assert count


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
def test_of_reductions(name: str) -> None:
    packet = getattr(torch.ops.aten, name)
    operation = next(getattr(packet, o) for o in ("dim_IntList", "dim", "default") if o in packet.overloads())
    x = torch.empty(4, 3, 2, device="meta")
    for dims, keep in itertools.product(([0], [1, 2], [-1], [0, -1], []), (False, True)):
        assert check(operation, x, dims, keep)
    assert quick_shape(operation, (x, [0]), {"dtype": torch.float64}) is None
    assert quick_shape(operation, (x, [3]), {}) is None


def test_of_products_and_choices() -> None:
    aten = torch.ops.aten
    left, right, bias = (torch.empty(n, device="meta") for n in ((5, 4), (4, 3), (3,)))
    assert check(aten.mm.default, left, right)
    assert check(aten.mm.default, right.t(), left.t())
    assert check(aten.dot.default, bias, bias)
    assert check(aten.addmm.default, bias, left, right, beta=2)
    assert quick_shape(aten.mm.default, (left, left), {}) is None
    with pytest.raises(RuntimeError):
        quick_shape(aten.addmm.default, (left, left, right), {})
    truths = torch.empty(5, 1, dtype=torch.bool, device="meta")
    assert check(aten.where.self, truths, left, torch.empty((), dtype=torch.float64, device="meta"))
