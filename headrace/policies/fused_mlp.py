"""A stack of linear layers that runs as one compiled call on the CPU, forward and backward; plain torch elsewhere."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headrace.core import fused
from headrace.kernels.nn.activation_table import name_of


class FusedMLP(nn.Sequential):
    """nn.Sequential, with its parameters and state dict, for stacks of Linear, LayerNorm and activations.

        critic = FusedMLP(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    On the CPU in float32 it runs as one compiled call forward and one backward, whose outputs and gradients are torch's
    within rounding and do not depend on the number of threads. It is plain torch wherever that does not apply: with
    other layers, dtypes or devices, hooks, second derivatives (create_graph=True), autocast, functorch's transforms,
    torch.compile, export and tracing, where torch is faster (see pays), and where `fused` is False.
    """

    fused = True

    def forward(self, input: Tensor) -> Tensor:
        if not self.fused or not _ordinary(input):
            return super().forward(input)
        return stacked(self, input)


@fused.fused("fused_mlp", "headrace.bindings.compiled.compiled_fused_mlp")
def stacked(network: nn.Sequential, input: Tensor) -> Tensor:
    """Compute all layers, one after the other."""
    return nn.Sequential.forward(network, input)


def pays(widest: int, batch: int, differentiable: bool) -> bool:
    """Tell whether the compiled stack is at least as fast as torch, by its widest layer and the samples in a batch.

    From benchmarks/speed/fused_mlp.py, which has no layers wider than 512. A call takes 10 us more than torch's, and
    50 us with gradients: little work does not make up for them.
    """
    return widest <= 512 and widest * batch >= (8192 if differentiable else 2048)


_KINDS = (nn.Parameter, Tensor)


class Stack(NamedTuple):
    """A network that is compiled: the numbers of its inputs, and of the outputs of its widest layer."""

    inputs: int
    widest: int


def stack_of(network: nn.Sequential) -> Stack | None:
    """The sizes of a network whose modules, dtypes and devices are compiled; None for another one."""
    layers, normed = list[nn.Linear](), False  # whether the last layer may be normalised
    for module in network._modules.values():
        if type(module) is nn.Linear and module.bias is not None:
            layers.append(module)
            normed = True
        elif type(module) is nn.LayerNorm and normed and module.normalized_shape == (layers[-1].out_features,):
            if module.bias is None:
                return None
            normed = False
        elif layers and name_of(module) is not None:  # type: ignore[arg-type]
            normed = False
        else:
            return None
    if not layers or any(a.out_features != b.in_features for a, b in pairwise(layers)):
        return None
    if not all(map(_served, network.parameters())):
        return None
    return Stack(layers[0].in_features, max(layer.out_features for layer in layers))


def _ordinary(input: Any) -> bool:
    """Tell whether this is a plain call on plain tensors, without tracing, transforms or autocast."""
    return (
        type(input) is Tensor
        and not torch.jit.is_tracing()
        and not torch.compiler.is_compiling()
        and _served(input)
        and input.dim() > 0
        and input.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
    )


def _served(x: Tensor | None) -> bool:
    return x is not None and type(x) in _KINDS and x.dtype is torch.float32 and x.is_cpu and not x.is_sparse
