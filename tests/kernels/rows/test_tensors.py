"""Torch's views as strides of row-program values: what each gives, number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.kernels.rows.lowering.tensors import (
    ROWS,
    Mismatch,
    Size,
    Tensor,
    expanded,
    permuted,
    reshaped,
    together,
)
from headrace.kernels.rows.lowering.views import cut
from headrace.kernels.rows.row_program import Input, whole

B = 5  # rows


def given(*shape: int) -> tuple[Tensor, torch.Tensor]:
    """A column of this shape for each row, and torch's tensor of it."""
    value = Input(tuple(n for n in shape if n != 1), True)
    dims = ((ROWS,), *((n,) if n != 1 else () for n in shape))
    return Tensor(whole(value), dims), torch.arange(B * value.size).view(B, *shape)


def numbers(tensor: Tensor) -> np.ndarray:
    """Numbers that a tensor's view reads from a column that holds 0, 1, 2 ..., in torch's shape."""
    view = tensor.view
    place = np.full(view.shape, view.offset)
    for axis, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        place = place + (np.arange(n) * stride).reshape([n if i == axis else 1 for i in range(len(view.shape))])
    rows = np.arange(B).reshape(B, *[1] * place.ndim) * view.value.size + place
    axes = [n for dim in tensor.dims for n in dim]
    turned = np.moveaxis(rows, 0, axes.index(ROWS))
    return turned.reshape([size.inner * (B if size.rows else 1) for size in tensor.sizes])


def size(n: int, rows: bool = False) -> Size:
    return Size(n, rows)


def test_a_flattened_time_axis_and_back() -> None:
    x, seen = given(3, 4)
    flat = reshaped(x, (size(3, True), size(4)))
    assert flat.dims == ((ROWS, 3), (4,))
    assert (numbers(flat) == seen.reshape(B * 3, 4).numpy()).all()
    assert reshaped(flat, (size(1, True), size(3), size(4))) == x


def test_an_axis_is_split_and_turned_and_merged_without_a_copy() -> None:
    x, seen = given(6, 4)
    split = permuted(reshaped(x, (size(1, True), size(2), size(3), size(4))), (0, 2, 1, 3))
    assert (numbers(split) == seen.view(B, 2, 3, 4).permute(0, 2, 1, 3).numpy()).all()
    merged = reshaped(split, (size(1, True), size(24)))
    assert merged.view.value is x.view.value
    assert (numbers(merged) == seen.view(B, 2, 3, 4).permute(0, 2, 1, 3).reshape(B, 24).numpy()).all()


def test_rows_are_not_mixed() -> None:
    x, _ = given(4)
    with pytest.raises(Mismatch):
        reshaped(x, (size(4), size(1, True)))
    other = permuted(reshaped(given(3)[0], (size(1, True), size(3))), (1, 0))
    with pytest.raises(Mismatch):
        together([reshaped(given(3)[0], (size(3, True),)), reshaped(other, (size(3, True),))])


def test_broadcasting_takes_the_finest_axes() -> None:
    left, seen = given(12)
    right, other = given(3, 4)
    flat = reshaped(right, (size(1, True), size(12)))
    (one, two), dims = together([left, flat])
    assert dims == ((ROWS,), (3, 4))
    assert (numbers(one) == seen.numpy()).all()
    assert (numbers(two) == other.reshape(B, 12).numpy()).all()


def test_random_views_read_what_torch_reads() -> None:
    generator = np.random.default_rng(3)
    for _ in range(300):
        shape = [int(n) for n in generator.choice([1, 2, 3, 4, 6], size=generator.integers(1, 4))]
        x, seen = given(*shape)
        for _ in range(4):
            what = generator.integers(4)
            if what == 0:
                order = generator.permutation(len(x.dims)).tolist()
                x, seen = permuted(x, order), seen.permute(order)
            elif what == 1:
                dim = int(generator.integers(len(x.dims) + 1))
                sizes = [*x.sizes[:dim], size(1), *x.sizes[dim:]]
                x, seen = reshaped(x, sizes), seen.unsqueeze(dim)
            elif what == 2:
                dim = int(generator.integers(len(x.dims)))
                if x.sizes[dim].one:
                    sizes = [size(2) if d == dim else n for d, n in enumerate(x.sizes)]
                    x, seen = expanded(x, sizes), seen.expand([2 if d == dim else -1 for d in range(seen.dim())])
            else:
                dim = int(generator.integers(len(x.dims)))
                own = x.dims[dim]
                if ROWS not in own and len(own) == 1 and own[0] > 1:
                    first = int(generator.integers(own[0] - 1))
                    x = cut(None, x, dim, size(first), size(own[0] - 1 - first))  # type: ignore[arg-type]
                    seen = seen.narrow(dim, first, own[0] - 1 - first)
        assert (numbers(x) == seen.numpy()).all()
