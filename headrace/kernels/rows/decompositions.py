"""Which of torch's operations are taken apart while tracing: a list that is ours, by torch's own rules. So a new
operation is a refusal, and another rule the same computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# fmt: off
# lowering has rules for these: they stay whole
KEPT = {
    "relu", "sum", "mean", "var", "amax", "amin", "argmax", "argmin", "prod", "any", "all", "max", "min",
    "cumsum", "mm", "addmm", "bmm", "baddbmm", "mv", "dot", "sort", "argsort", "topk", "gather", "scatter_add",
    "embedding", "embedding_dense_backward", "index_select", "index", "where", "clamp", "pow", "square", "div",
    "remainder", "cat", "stack", "split", "split_with_sizes", "chunk", "unbind", "select", "slice", "eye",
    "arange", "masked_fill", "convolution", "lgamma", "digamma", "polygamma", "cumprod", "erf", "expm1",
    "log1p", "std", "linspace", "kthvalue", "median", "rsub", "native_dropout", "sigmoid", "tanh",
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


def table() -> dict[Any, Callable[..., Any]]:
    """Operation -> the function that takes it apart, for make_fx."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    wanted = [getattr(aten, name) for name in ALSO if hasattr(aten, name)]
    found = dict(core_aten_decompositions()) | get_decompositions(wanted)
    return {key: rule for key, rule in found.items() if _name(key) not in KEPT}


def writing() -> dict[Any, Callable[..., Any]]:
    """As table(), of operations that write to running statistics, which their rules do in place: before writes in place
    are removed."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions([torch.ops.aten.native_batch_norm]))


def _name(key: Any) -> str:
    packet = getattr(key, "_overloadpacket", key)
    return str(packet.__name__)
