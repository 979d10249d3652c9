"""A stack of linear layers that runs as one compiled call on the CPU, forward and backward; plain torch elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from headrace.kernels.nn.activation_table import name_of
from headrace.kernels.nn.layout import OBSERVATION, Layer
from headrace.policies.fused_layers import Batch, Form


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
        modules = list(self._modules.values())
        form = _form(tuple([_kind(module) for module in modules if module is not None]))
        parameters = [p for module in modules for p in module._parameters.values()]  # type: ignore[union-attr]
        if form is None or input.shape[-1] != form.inputs or not all([_served(p) for p in parameters]):
            return super().forward(input)
        samples = input if input.dim() == 2 else input.reshape(-1, form.inputs)
        wanted = torch.is_grad_enabled() and any([x.requires_grad for x in (samples, *parameters)])  # type: ignore[union-attr]
        if not pays(form.widest, len(samples), wanted):
            return super().forward(input)
        if wanted:
            output: Any = _Differentiable.apply(samples, modules, form, *parameters)
        else:
            batch = form.batch(len(samples), keep=False, input_grad=False)
            output = batch.evaluate(_flat(parameters), samples)  # type: ignore[arg-type]
            form.give_back(batch)
        return output if input.dim() == 2 else output.view(*input.shape[:-1], form.outputs)


def pays(widest: int, batch: int, differentiable: bool) -> bool:
    """Whether the compiled stack is as fast as torch or faster: by its widest layer and the samples in a batch.

    From benchmarks/fused_mlp.py. Small batches do not fill a block of 64; wide layers with few samples spend their time
    on weights and their gradients, where BLAS is better.
    """
    if batch < 64:
        return widest <= 64
    if not differentiable:
        return widest <= 512
    return widest <= (128 if batch < 512 else 256)


_KINDS = (nn.Parameter, Tensor)


def _kind(module: nn.Module) -> tuple[Any, ...]:
    """Type and sizes of a module, all that the kernels depend on; () for unsupported modules."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return ()
    if "forward" in module.__dict__:
        return ()
    if type(module) is nn.Linear and module.bias is not None:
        return ("linear", module.in_features, module.out_features)
    if type(module) is nn.LayerNorm and module.bias is not None:
        return ("norm", *module.normalized_shape, module.eps)
    return ("activation", name_of(module))


@lru_cache(64)
def _form(kinds: tuple[tuple[Any, ...], ...]) -> Form | None:
    """The compiled form of a stack; None for unsupported stacks."""
    layers: list[Layer] = []
    place, rest = 0, list(kinds)
    while rest:
        if rest[0][:1] != ("linear",):
            return None
        _, inputs, outputs = rest.pop(0)
        weight, place = place, place + (inputs + 1) * outputs
        norm, activation = None, "identity"
        if rest and rest[0] == ("norm", outputs, 1e-5):
            rest.pop(0)
            norm, place = (place, place + outputs), place + 2 * outputs
        if rest and rest[0][:1] == ("activation",) and rest[0][1] is not None:
            activation = rest.pop(0)[1]
        source = len(layers) - 1 if layers else OBSERVATION
        layers.append(Layer(source, inputs, outputs, weight, weight + inputs * outputs, activation, norm))
    if not layers or any(a.outputs != b.inputs for a, b in pairwise(layers)):
        return None
    return Form(layers)


def _ordinary(input: Any) -> bool:
    """Whether this is a plain call on plain tensors, without tracing, transforms or autocast."""
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


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    """All parameters, concatenated: a view where they are contiguous in memory, otherwise a copy."""
    end = start = parameters[0].data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != end or not parameter.is_contiguous():
            return _flatten_dense_tensors(parameters).detach()
        end += 4 * parameter.numel()
    first = parameters[0].detach()
    if first.untyped_storage().nbytes() < 4 * first.storage_offset() + end - start:  # adjacent by chance
        return _flatten_dense_tensors(parameters).detach()
    return first.as_strided(((end - start) // 4,), (1,))


class _Lease:
    """Holds a batch until garbage collection."""

    def __init__(self, form: Form, batch: Batch) -> None:
        self.form, self.batch = form, batch

    def __del__(self) -> None:
        self.form.give_back(self.batch)


class _Differentiable(torch.autograd.Function):
    """The stack as one function of samples and parameters."""

    @staticmethod
    def forward(ctx: Any, samples: Tensor, modules: list[nn.Module], form: Form, *parameters: Tensor) -> Tensor:
        ctx.lease = _Lease(form, form.batch(len(samples), keep=True, input_grad=ctx.needs_input_grad[0]))
        ctx.modules, ctx.flat = modules, _flat(parameters)
        ctx.save_for_backward(samples, *parameters)
        return ctx.lease.batch.evaluate(ctx.flat, samples)

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> Any:
        samples, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradients must be differentiable
            return _differentiable_gradients(ctx.modules, samples, parameters, deltas[0], ctx.needs_input_grad)
        gradient, d_samples = ctx.lease.batch.differentiate(ctx.flat, deltas[0])
        return d_samples, None, None, *_unflatten_dense_tensors(gradient, parameters)


def _differentiable_gradients(
    modules: list[nn.Module], samples: Tensor, parameters: list[Tensor], delta: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of _Differentiable.backward by plain torch."""
    output = samples
    for module in modules:
        output = module(output)
    inputs = (samples, None, None, *parameters)
    chosen = [x for x, want in zip(inputs, wanted, strict=True) if want and x is not None]
    slopes = iter(torch.autograd.grad(output, chosen, delta, create_graph=True))
    return tuple(next(slopes) if want else None for want in wanted)
