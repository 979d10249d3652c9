"""Decompositions of torch's operations while tracing: those of a list by torch's own functions, and some by ours. A
version of torch that decomposes more operations gives the same trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.rows.tracing import windows

# fmt: off
# torch's operations that its own functions take apart, by name, or by name and overload. Others stay whole
PINNED = (
    "_chunk_cat", "_euclidean_dist", "_fused_rms_norm", "_fused_rms_norm_backward", "_log_softmax",
    "_log_softmax_backward_data", "_native_batch_norm_legit", "_prelu_kernel", "_prelu_kernel_backward",
    "_reshape_alias", "_safe_softmax", "_softmax", "_softmax_backward_data", "_unsafe_index", "_unsafe_index_put",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "_unsafe_view", "addcdiv", "addcdiv_", "addcmul",
    "addcmul_", "addmv", "addr", "alias_copy", "aminmax", "binary_cross_entropy", "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits", "block_diag", "celu", "celu_", "channel_shuffle", "clamp_max", "clamp_min",
    "count_nonzero", "deg2rad", "detach", "diag_embed", "diagonal_backward", "diagonal_copy", "dist", "elu", "elu_",
    "elu_backward", "empty_like", "expand_copy", "fill", "fill_", "flip", "floor_divide", "frac", "frac_", "gelu",
    "gelu_", "gelu_backward", "glu", "glu_backward", "hardshrink", "hardsigmoid", "hardsigmoid_",
    "hardsigmoid_backward", "hardswish", "hardswish_", "hardswish_backward", "hardtanh", "hardtanh_",
    "hardtanh_backward", "heaviside", "heaviside_", "huber_loss", "huber_loss_backward", "index_add", "index_add_",
    "index_copy", "index_copy_", "index_fill", "index_fill_", "isneginf", "isposinf", "leaky_relu", "leaky_relu_",
    "leaky_relu_backward", "lerp", "lerp_", "linalg_cross", "linalg_vector_norm", "log_sigmoid_backward",
    "log_sigmoid_forward", "logaddexp", "logaddexp2", "logit", "logit_", "logit_backward", "logsumexp",
    "masked_fill_", "mish", "mish_", "mish_backward", "mse_loss", "mse_loss_backward", "nan_to_num", "nan_to_num_",
    "nansum", "native_batch_norm", "native_batch_norm_backward", "native_group_norm",
    "native_group_norm_backward", "native_layer_norm", "native_layer_norm_backward", "new_empty", "new_full",
    "new_ones", "new_zeros", "nll_loss_backward", "nll_loss_forward", "norm", "ones", "ones_like", "pixel_shuffle",
    "pixel_unshuffle", "rad2deg", "reflection_pad1d", "reflection_pad1d_backward", "reflection_pad2d",
    "reflection_pad2d_backward", "renorm", "repeat", "replication_pad1d", "replication_pad2d", "rot90",
    "select_backward", "select_scatter", "sgn", "sgn_", "sigmoid_backward", "silu", "silu_", "silu_backward",
    "sinc", "slice_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "soft_margin_loss",
    "soft_margin_loss_backward", "softplus", "softplus_backward", "softshrink", "special_entr", "special_log_ndtr",
    "special_xlog1py", "split_with_sizes_copy", "squeeze.default", "squeeze.dim", "squeeze_copy", "std_mean", "t",
    "t_copy", "take", "tanh_backward", "threshold", "threshold_", "threshold_backward", "trace", "transpose",
    "transpose_copy", "tril", "tril_", "triu", "triu_", "unfold_copy", "unsafe_split",
    "unsafe_split_with_sizes", "unsqueeze_copy", "var_mean", "vdot", "xlogy", "xlogy_", "zero", "zero_", "zeros",
    "zeros_like",
)
# fmt: on

LARGEST_SOLVED = 16  # rows of a triangular matrix


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """Map operations to the functions that decompose them."""
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    found = dict(get_decompositions([attrgetter(name)(aten) for name in PINNED]))
    found[aten._scaled_dot_product_flash_attention_for_cpu.default] = _attention
    found[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _attention_backward
    found |= windows.table()
    found[aten._weight_norm_interface.default] = _weight_norm
    found[aten._weight_norm_interface_backward.default] = _weight_norm_backward
    found[aten.linalg_solve_triangular.default] = _solve_triangular
    return found | {aten.cosh.default: _cosh, aten.sinh.default: _sinh, aten.tan.default: _tan}


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Compute w = g v / |v| for each index along `dim`, and |v|: Salimans & Kingma 2016, eq. 2."""
    norms = v.square().sum(_others(v, dim), keepdim=True).sqrt()
    return v * (g / norms), norms


def _weight_norm_backward(gradient: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Compute the gradients of v and g: Salimans & Kingma 2016, eq. 3."""
    along = (gradient * v).sum(_others(v, dim), keepdim=True)
    return g / norms * (gradient - v * (along / norms.square())), along / norms


def _others(v: Tensor, dim: int) -> list[int]:
    return [axis for axis in range(v.dim()) if axis != dim % v.dim()]


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Solve A X = B, or X A = B, row after row, for small matrices, as those of torch's MultivariateNormal."""
    if a.shape[-1] > LARGEST_SOLVED:
        return NotImplemented  # type: ignore[no-any-return]
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    found = dict[int, Tensor]()
    for i in reversed(range(a.shape[-1])) if upper else range(a.shape[-1]):
        rest = b[..., i, :]
        for j, x in found.items():
            rest = rest - a[..., i, j, None] * x
        found[i] = rest if unitriangular else rest / a[..., i, i, None]
    return torch.stack([found[i] for i in range(a.shape[-1])], -2)


def _cosh(x: Tensor) -> Tensor:
    half = torch.exp(x.abs() / 2)  # its square overflows no earlier than the result
    return half / 2 * half + 0.5 / half / half


def _sinh(x: Tensor) -> Tensor:
    half, small = torch.exp(x.abs() / 2), torch.expm1(x.abs().clamp(max=1))
    large = half / 2 * half - 0.5 / half / half
    return torch.where(x.abs() < 1, (small + small / (small + 1)) / 2, large) * x.sign()


def _tan(x: Tensor) -> Tensor:
    return x.sin() / x.cos()


@cache
def writing() -> dict[Any, Callable[..., Any]]:
    """Decompositions that are applied before writes in place are removed: of operations that write to running
    statistics, which their rules do in place."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions([torch.ops.aten.native_batch_norm]))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention as products and a softmax, in the layout of the query. The second result is that of torch's operation,
    for its backward; ours does not read it."""
    found = _attention_weights(query, key, causal, attn_mask, scale) @ _for_heads(value, query)
    order = sorted(range(4), key=query.stride, reverse=True)
    back = [order.index(axis) for axis in range(4)]
    return found.permute(order).contiguous().permute(back), found[..., 0]


def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value: with P = softmax(S), dS = P (dP - sum(dP P)), where
    sum(dP P) = sum(dO O)."""
    weights = _attention_weights(query, key, causal, attn_mask, scale)
    of_weights = gradient @ _for_heads(value, query).transpose(-2, -1)
    of_scores = weights * (of_weights - (gradient * out).sum(-1, keepdim=True)) * _scale(query, scale)
    of_query = of_scores @ _for_heads(key, query)
    of_key, of_value = (_of_groups(x, key) for x in (of_scores.transpose(-2, -1) @ query, weights.mT @ gradient))
    made = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (of_query, of_key, of_value)]
    return made[0], made[1], made[2]


def _attention_weights(
    query: Tensor, key: Tensor, causal: bool, attn_mask: Tensor | None, scale: float | None
) -> Tensor:
    """The softmax of scores, [batch, heads, L, S]; 0 where a mask leaves nothing to attend to."""
    scores = query @ _for_heads(key, query).transpose(-2, -1) * _scale(query, scale)
    if causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(unseen, -torch.inf)
    if attn_mask is None:
        return scores.softmax(-1)
    scores = scores + attn_mask
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(nothing, 0.0, scores.softmax(-1))


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _for_heads(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with as many heads as the query has. Several heads of the query may share one."""
    batch, heads, *rest = x.shape
    shared = query.shape[1] // heads
    return x if shared == 1 else x.unsqueeze(2).expand(batch, heads, shared, *rest).reshape(batch, -1, *rest)


def _of_groups(gradient: Tensor, x: Tensor) -> Tensor:
    """Gradient of the keys or values that _for_heads() has repeated."""
    if gradient.shape[1] == x.shape[1]:
        return gradient
    batch, heads, *rest = x.shape
    return gradient.reshape(batch, heads, -1, *rest).sum(2)
