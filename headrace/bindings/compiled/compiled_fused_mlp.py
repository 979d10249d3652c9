"""FusedMLP by row programs, forward and backward, for the CPU. A row is a sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.bindings.compiled.row_functions import LastFound, RowFunction
from headrace.core.fused import register
from headrace.policies import fused_mlp
from headrace.policies.examination import examine, last_examined
from headrace.policies.fused_mlp import Stack, stack_of

_last = LastFound()


def _outputs(network: nn.Sequential, samples: Tensor) -> Tensor:
    return nn.Sequential.forward(network, samples)


_function = RowFunction(_outputs)


def _samples(network: nn.Sequential, input: Tensor) -> Tensor:
    return input if input.dim() == 2 else input.reshape(-1, input.shape[-1])


def serves(network: nn.Sequential, input: Tensor) -> bool | str:
    """True if programs compute this network's outputs, and in less time than torch; else the reason, if it is worth
    saying."""
    kept = examine(network).kept
    if Stack not in kept:
        kept[Stack] = None if last_examined(network).altered else stack_of(network)
    stack = kept[Stack]
    if stack is None or input.shape[-1] != stack.inputs:
        return False
    samples = _samples(network, input)
    learns = torch.is_grad_enabled() and (input.requires_grad or any(p.requires_grad for p in network.parameters()))
    if not fused_mlp.pays(stack.widest, len(samples), learns):
        return False
    return _last.answer(_function.find(network, (samples,)), network, input)


@register("fused_mlp", serves)
def stacked(network: nn.Sequential, input: Tensor) -> Tensor:
    """headrace.policies.fused_mlp.stacked, with the same outputs and gradients within rounding."""
    samples = _samples(network, input)
    found: Any = _last.take(network, input) or _function.find(network, (samples,))
    output = _function.run(found, network, (samples,))
    return output if input.dim() == 2 else output.view(*input.shape[:-1], output.shape[1])
