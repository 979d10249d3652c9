"""Convolutions and pooling as products and sums of windows, which row programs have rules for.

A convolution is the product of its weights with the window at each place. Its gradient, and a transposed convolution,
adds up windows where they overlap. Compared with torch's convolutions, rows of a minibatch are lanes whatever the size
of the image, and all that is around a convolution stays in one program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headrace.kernels.rows.reasons import NotRows

Numbers: TypeAlias = Sequence[int]  # one for each dimension of the images
# Numbers in all windows of an image, up to which this is faster than torch's convolutions. A rule and no measurement,
# so that a run that is resumed has the same bits; benchmarks/speed/compiled_losses.py has 100 to 2,300.
MOST = 16_384


def table() -> dict[Any, Callable[..., Any]]:
    """Map operations to the functions that decompose them."""
    aten = torch.ops.aten
    rules: dict[Any, Callable[..., Any]] = {
        aten.convolution.default: _convolution,
        aten.convolution_backward.default: _convolution_backward,
        aten.max_pool2d_with_indices.default: _max_pool,
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
        aten.avg_pool2d.default: _avg_pool,
        aten.avg_pool2d_backward.default: _avg_pool_backward,
        aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
        aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool_backward,
        aten.constant_pad_nd.default: _constant_pad,
        aten.unfold_backward.default: _unfold_backward,
    }
    return {operation: _contiguous(rule) for operation, rule in rules.items()}


def _contiguous(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a rule so that its results have the memory layout of torch's operation: users may take a view() of them."""

    def contiguous(*given: Any, **named: Any) -> Any:
        return tree_map_only(Tensor, Tensor.contiguous, rule(*given, **named))

    return contiguous


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
    groups: int,
) -> Tensor:
    steps, size = (stride, padding, dilation), tuple(weight.shape[2:])
    parts = zip(x.chunk(groups, 1), weight.chunk(groups, 0), strict=True)
    if transposed:
        made = tuple(
            (n - 1) * s + d * (k - 1) + 1 - 2 * p + o
            for n, s, p, d, k, o in zip(x.shape[2:], *steps, size, output_padding, strict=True)
        )
        found = torch.cat([_spread(part, own, made, *steps) for part, own in parts], 1)
    else:
        found = torch.cat([_products(part, own, *steps) for part, own in parts], 1)
    return found if bias is None else found + bias.reshape(-1, *[1] * len(size))


def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Numbers | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    steps, size = (stride, padding, dilation), tuple(weight.shape[2:])
    of_input, of_weight = list[Tensor](), list[Tensor]()
    parts = gradient.chunk(groups, 1), x.chunk(groups, 1), weight.chunk(groups, 0)
    for own, inputs, weights in zip(*parts, strict=True):
        small, large = (inputs, own) if transposed else (own, inputs)  # `large` is read in windows
        if output_mask[0]:
            found = _products(own, weights, *steps) if transposed else _spread(own, weights, x.shape[2:], *steps)
            of_input.append(found)
        if output_mask[1]:
            windows = _windows(_padded(large, padding), size, stride, dilation)
            flat = windows.reshape(-1, math.prod(windows.shape[1 + len(size) :]))
            of_weight.append((_places_first(small).flatten(0, 1).t() @ flat).reshape(weights.shape))
    of_bias = gradient.sum([0, *range(2, gradient.dim())]) if output_mask[2] else None
    return torch.cat(of_input, 1) if of_input else None, torch.cat(of_weight) if of_weight else None, of_bias


def _products(x: Tensor, weight: Tensor, stride: Numbers, padding: Numbers, dilation: Numbers) -> Tensor:
    """The product of the weights [O, C, ...] with each window of x [B, C, ...]."""
    windows = _windows(_padded(x, padding), weight.shape[2:], stride, dilation)
    places = windows.shape[1 : x.dim() - 1]
    flat = windows.reshape(len(x), math.prod(places), -1)
    return (flat @ weight.flatten(1).t()).transpose(1, 2).reshape(len(x), len(weight), *places)


def _spread(x: Tensor, weight: Tensor, made: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers) -> Tensor:
    """Multiply the weights [O, C, ...] by each place's numbers of x [B, O, ...], and add up the windows: [B, C,
    *made]."""
    windows = (_places_first(x) @ weight.flatten(1)).reshape(len(x), *x.shape[2:], *weight.shape[1:])
    return _folded(_checked(windows), made, stride, padding, dilation)


def _places_first(x: Tensor) -> Tensor:
    """[B, C, ...] as [B, places, C]."""
    return x.flatten(2).transpose(1, 2)


def _windows(x: Tensor, size: Numbers, stride: Numbers, dilation: Numbers) -> Tensor:
    """The windows of x [B, C, ...]: [B, places ..., C, window ...]."""
    count = len(size)
    for dim, (k, s, d) in enumerate(zip(size, stride, dilation, strict=True)):
        x = x.unfold(2 + dim, d * (k - 1) + 1, s)[..., ::d]
    return _checked(x.movedim(1, 1 + count))


def _checked(windows: Tensor) -> Tensor:
    """Windows, if they are few enough."""
    numbers = windows[0].numel()
    if numbers > MOST:
        what = f"has a convolution, or pooling, with {numbers:,} numbers in all windows of an image"
        raise NotRows(f"{what}; up to {MOST:,} are compiled, with more torch is as fast")
    return windows


def _folded(windows: Tensor, made: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers) -> Tensor:
    """Windows [B, places ..., C, window ...] added up where they were: [B, C, *made]."""
    count = len(made)
    x = windows.movedim(1 + count, 1)  # [B, C, places ..., window ...]
    for dim in reversed(range(count)):
        s, p, d = stride[dim], padding[dim], dilation[dim]
        x = _added(x, 2 + dim, s, d, made[dim] + 2 * p).narrow(2 + dim, p, made[dim])
    return x


def _added(x: Tensor, dim: int, stride: int, dilation: int, size: int) -> Tensor:
    """The last dimension's numbers [..., n, ..., k], each added at its place n * stride + k * dilation along `dim`."""
    apart = [divmod(i * dilation, stride) for i in range(x.shape[-1])]
    length = -(-size // stride)
    phases = list[Tensor]()
    for phase in range(stride):
        parts = [_moved(x[..., i], dim, shift, length) for i, (shift, own) in enumerate(apart) if own == phase]
        phases.append(reduce(torch.add, parts) if parts else torch.zeros_like(_moved(x[..., 0], dim, 0, length)))
    found = torch.stack(phases, dim + 1).flatten(dim, dim + 1) if stride > 1 else phases[0]
    return found.narrow(dim, 0, size)


def _unfold_backward(gradient: Tensor, input_sizes: Numbers, dim: int, size: int, step: int) -> Tensor:
    dim %= len(input_sizes)
    return _added(gradient, dim, step, 1, input_sizes[dim])


def _moved(x: Tensor, dim: int, first: int, length: int) -> Tensor:
    """x along a dimension from place `first` on, between zeros, `length` numbers in all."""
    x = x.narrow(dim, 0, min(x.shape[dim], length - first))
    return _between(x, dim, first, length - first - x.shape[dim], 0.0)


def _between(x: Tensor, dim: int, before: int, after: int, value: float) -> Tensor:
    """Pad x along a dimension with so many numbers of a value on both sides."""
    shape = list(x.shape)
    sides = [x.new_full((*shape[:dim], n, *shape[dim + 1 :]), value) if n else None for n in (before, after)]
    parts = [part for part in (sides[0], x, sides[1]) if part is not None]
    return torch.cat(parts, dim) if len(parts) > 1 else x


def _padded(x: Tensor, padding: Numbers, value: float = 0.0) -> Tensor:
    for dim, n in enumerate(padding, 2):
        x = _between(x, dim, n, n, value)
    return x


def _pair(given: Numbers, default: Numbers) -> tuple[int, int]:
    found = list(given) or list(default)
    return (found[0], found[-1])


def _pooled(
    x: Tensor,
    size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
    value: float,
) -> Tensor:
    """The windows [B, places, places, C, numbers] of pooling."""
    if ceil_mode:
        raise NotRows("pools with ceil_mode, which is not compiled")
    return _windows(_padded(x, padding, value), size, stride, dilation).flatten(-2)


def _max_pool(
    x: Tensor,
    kernel_size: Numbers,
    stride: Numbers = (),
    padding: Numbers = (0, 0),
    dilation: Numbers = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    size = _pair(kernel_size, ())
    step, pad, apart = _pair(stride, size), _pair(padding, ()), _pair(dilation, ())
    windows = _pooled(_images(x), size, step, pad, apart, ceil_mode, -math.inf)
    within = windows.argmax(-1)
    rows, columns = (torch.arange(n) * s - p for n, s, p in zip(within.shape[1:3], step, pad, strict=True))
    down, along = within // size[1] * apart[0] + rows[:, None, None], within % size[1] * apart[1] + columns[:, None]
    places = down * x.shape[-1] + along
    found = windows.amax(-1).movedim(-1, 1), places.movedim(-1, 1)
    return found if x.dim() == 4 else (found[0][0], found[1][0])


def _max_pool_backward(
    gradient: Tensor,
    x: Tensor,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    size = _pair(kernel_size, ())
    step, pad, apart = _pair(stride, size), _pair(padding, ()), _pair(dilation, ())
    windows = _pooled(_images(x), size, step, pad, apart, ceil_mode, -math.inf)
    largest = windows.argmax(-1, keepdim=True) == torch.arange(math.prod(size))
    given = torch.where(largest, _images(gradient).movedim(1, -1).unsqueeze(-1), 0.0)
    return _folded(given.unflatten(-1, size), x.shape[-2:], step, pad, apart).reshape(x.shape)


def _avg_pool(
    x: Tensor,
    kernel_size: Numbers,
    stride: Numbers = (),
    padding: Numbers = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    size = _pair(kernel_size, ())
    step, pad = _pair(stride, size), _pair(padding, ())
    windows = _pooled(_images(x), size, step, pad, (1, 1), ceil_mode, 0.0)
    found = windows.sum(-1).movedim(-1, 1) / _divisor(size, pad, count_include_pad, divisor_override)
    return found.reshape(*x.shape[:-2], *found.shape[-2:])


def _avg_pool_backward(
    gradient: Tensor,
    x: Tensor,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    size = _pair(kernel_size, ())
    step, pad = _pair(stride, size), _pair(padding, ())
    if ceil_mode:
        raise NotRows("pools with ceil_mode, which is not compiled")
    own = _images(gradient).movedim(1, -1) / _divisor(size, pad, count_include_pad, divisor_override)
    windows = own[..., None, None].expand(*own.shape, *size)
    return _folded(windows, x.shape[-2:], step, pad, (1, 1)).reshape(x.shape)


def _adaptive_avg_pool(x: Tensor, output_size: Numbers) -> Tensor:
    return _avg_pool(x, _parts_of(x, output_size))


def _adaptive_avg_pool_backward(gradient: Tensor, x: Tensor) -> Tensor:
    size = _parts_of(x, gradient.shape[-2:])
    return _avg_pool_backward(gradient, x, size, size, (0, 0), False, True, None)


def _parts_of(x: Tensor, count: Numbers) -> list[int]:
    """Size of windows that divide an image into so many."""
    sizes = list(zip(x.shape[-2:], count, strict=True))
    if any(n % own for n, own in sizes):
        raise NotRows("pools an image adaptively to a size that does not divide it, which is not compiled")
    return [n // own for n, own in sizes]


def _constant_pad(x: Tensor, pad: Numbers, value: float = 0) -> Tensor:
    for i in range(len(pad) // 2):
        dim, sides = x.dim() - 1 - i, pad[2 * i : 2 * i + 2]
        first, last = (max(0, -n) for n in sides)
        x = x.narrow(dim, first, x.shape[dim] - first - last)
        x = _between(x, dim, max(0, sides[0]), max(0, sides[1]), value)
    return x


def _divisor(size: Numbers, padding: Numbers, with_padding: bool, other: int | None) -> int:
    if any(padding) and not with_padding and other is None:
        raise NotRows("pools with count_include_pad=False, which is not compiled")
    return other or math.prod(size)


def _images(x: Tensor) -> Tensor:
    """View of images as [B, C, H, W], also for [C, H, W]."""
    return x if x.dim() == 4 else x.unsqueeze(0)
