"""Which of torch's operations are taken apart while tracing: a list that is ours, by torch's own rules. So a new
operation is a refusal, and another rule the same computation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.rows.tracing import windows

# fmt: off
# lowering has rules for these: they stay whole
KEPT = {
    "relu", "sum", "mean", "var", "amax", "amin", "argmax", "argmin", "prod", "any", "all", "max", "min",
    "cumsum", "mm", "addmm", "bmm", "baddbmm", "mv", "dot", "sort", "argsort", "topk", "gather", "scatter_add",
    "embedding", "embedding_dense_backward", "index_select", "index", "where", "clamp", "pow", "square", "div",
    "remainder", "cat", "stack", "split", "split_with_sizes", "chunk", "unbind", "select", "slice", "eye",
    "arange", "masked_fill", "lgamma", "digamma", "polygamma", "cumprod", "erf", "expm1",
    "log1p", "std", "linspace", "kthvalue", "median", "rsub", "native_dropout", "sigmoid", "tanh", "roll",
    "erfc", "as_strided",
}
ALSO = (
    "native_layer_norm", "native_layer_norm_backward", "_log_softmax", "_log_softmax_backward_data", "_softmax",
    "_softmax_backward_data", "native_batch_norm", "native_batch_norm_backward", "threshold_backward",
    "mse_loss", "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss",
    "huber_loss_backward", "log_sigmoid_forward", "log_sigmoid_backward", "softplus", "softplus_backward",
    "tanh_backward", "sigmoid_backward", "elu", "elu_backward", "gelu", "gelu_backward", "silu",
    "silu_backward", "mish", "mish_backward", "leaky_relu", "leaky_relu_backward", "hardtanh",
    "hardtanh_backward", "var_mean", "addcmul", "addcdiv", "lerp", "logsumexp", "xlogy", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "norm", "binary_cross_entropy_backward", "nll_loss_forward",
    "nll_loss_backward", "_prelu_kernel", "_native_batch_norm_legit", "_prelu_kernel_backward", "glu",
    "glu_backward", "hardswish", "hardswish_backward", "hardsigmoid", "celu", "hardsigmoid_backward",
    "select_backward", "slice_backward", "unfold_backward", "diagonal_backward", "trace", "linalg_vector_norm",
    "dist", "nan_to_num", "logaddexp", "sinc", "frac", "deg2rad", "heaviside", "special_xlog1py", "tril",
    "triu", "repeat", "flip", "roll", "movedim", "aminmax", "count_nonzero", "native_group_norm",
    "native_group_norm_backward", "rms_norm", "_fused_rms_norm", "std_mean", "masked_fill_", "full_like",
    "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "addmv", "addr", "_euclidean_dist",
    "index_put", "t",
)
# fmt: on

LARGEST_SOLVED = 16  # rows of a triangular matrix


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """Operation -> the function that takes it apart."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    wanted = [getattr(aten, name) for name in ALSO if hasattr(aten, name)]
    found = dict(core_aten_decompositions()) | get_decompositions(wanted)
    found[aten._scaled_dot_product_flash_attention_for_cpu.default] = _attention
    found[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _attention_backward
    found |= windows.table()
    found[aten._weight_norm_interface.default] = _weight_norm
    found[aten._weight_norm_interface_backward.default] = _weight_norm_backward
    found[aten.linalg_solve_triangular.default] = _solve_triangular
    found |= {aten.cosh.default: _cosh, aten.sinh.default: _sinh, aten.tan.default: _tan}
    return {key: rule for key, rule in found.items() if _name(key) not in KEPT}


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Salimans & Kingma 2016, eq. 2: w = g v / |v|, of each index along `dim`; and |v|."""
    norms = v.square().sum(_others(v, dim), keepdim=True).sqrt()
    return v * (g / norms), norms


def _weight_norm_backward(gradient: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Their eq. 3."""
    along = (gradient * v).sum(_others(v, dim), keepdim=True)
    return g / norms * (gradient - v * (along / norms.square())), along / norms


def _others(v: Tensor, dim: int) -> list[int]:
    return [axis for axis in range(v.dim()) if axis != dim % v.dim()]


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X of A X = B, or of X A = B, row after row: of small matrices, as those of torch's MultivariateNormal."""
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
    half = torch.exp(x.abs() / 2)  # whose square is infinite no earlier than the result
    return half / 2 * half + 0.5 / half / half


def _sinh(x: Tensor) -> Tensor:
    half, small = torch.exp(x.abs() / 2), torch.expm1(x.abs().clamp(max=1))
    large = half / 2 * half - 0.5 / half / half
    return torch.where(x.abs() < 1, (small + small / (small + 1)) / 2, large) * x.sign()


def _tan(x: Tensor) -> Tensor:
    return x.sin() / x.cos()


@cache
def writing() -> dict[Any, Callable[..., Any]]:
    """As table(), of operations that write to running statistics, which their rules do in place: before writes in place
    are removed."""
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
    """Keys or values with as many heads as the query has, where several of these share one."""
    batch, heads, *rest = x.shape
    shared = query.shape[1] // heads
    return x if shared == 1 else x.unsqueeze(2).expand(batch, heads, shared, *rest).reshape(batch, -1, *rest)


def _of_groups(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of keys or values that _for_heads() has spread."""
    if gradient.shape[1] == x.shape[1]:
        return gradient
    batch, heads, *rest = x.shape
    return gradient.reshape(batch, heads, -1, *rest).sum(2)


def _name(key: Any) -> str:
    packet = getattr(key, "_overloadpacket", key)
    return str(packet.__name__)
