"""A stack of linear layers that runs as one compiled call on the CPU, forward and backward; plain torch elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from headrace.core.device import kernel_threads
from headrace.kernels.nn.activation_table import name_of
from headrace.kernels.nn.layer_table import NORM, NOWHERE, OUTPUT, OUTPUT_GRAD, OUTPUTS
from headrace.kernels.nn.layout import (
    BLOCK,
    OBSERVATION,
    WORKERS,
    Layer,
    Network,
    StackArguments,
    aligned,
    network,
    rounded,
)
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call, Native
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state

PARTS, PART = 8, 256  # parts of a batch at most, and samples per part; each part has its own gradient
WORTH_HELP = 2e7  # floating-point operations below which waking another thread costs more than it saves
ANNOUNCEMENT = "compiling stacks of layers (once, about 5 s) ..."
SIZES, SPARE = 32, 4  # sizes of batches to keep buffers for, and how many for each
_ADDRESS = 4  # of an array's words, the one that says where it lies
_work_queue = WorkQueue(alike=False)
_ROOM = np.empty(0, np.float32)  # stands for an array whose place is filled in before each call


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

    From benchmarks/speed/fused_mlp.py. Small batches do not fill a block of 64; wide layers with few samples spend
    their time on weights and their gradients, where BLAS is better.
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


class Form:
    """A stack of layers, and its pool of free batches."""

    def __init__(self, layers: list[Layer]) -> None:
        self.inputs, self.outputs = layers[0].inputs, layers[-1].outputs
        self.widest = max(layer.outputs for layer in layers)
        self.plain, self.with_input = network(layers), network(layers, input_grad=True)
        self.spare: dict[tuple[int, bool, bool], list[Batch]] = {}

    def batch(self, count: int, keep: bool, input_grad: bool) -> Batch:
        """A batch for `count` samples, for the caller until give_back(). keep: keep what differentiate() needs;
        input_grad: with the gradient of the samples."""
        try:
            return self.spare[count, keep, input_grad].pop()
        except LookupError:  # another thread may have taken the last one
            return Batch(self.with_input if input_grad else self.plain, count, keep, input_grad)

    def give_back(self, batch: Batch) -> None:
        """Return a batch to the pool."""
        if len(self.spare) > SIZES:
            self.spare.clear()
        spare = self.spare.setdefault((batch.count, batch.keep, batch.input_grad), [])
        if len(spare) < SPARE:
            spare.append(batch)


class Batch:
    """Buffers for a number of samples, and compiled calls bound to them."""

    def __init__(self, net: Network, count: int, keep: bool, input_grad: bool) -> None:
        self.net, self.count, self.keep, self.input_grad = net, count, keep, input_grad
        last, blocks = net.layers[-1], -(-count // int(BLOCK))
        self.outputs = int(last[OUTPUTS])
        self.parts = min(PARTS, max(-(-count // PART), min(blocks, 2)))
        places = (last[OUTPUT], last[OUTPUT_GRAD], net.inputs * int(BLOCK) if input_grad else NOWHERE, net.transposed)
        numbers = (net.inputs, self.outputs, *places, count, self.parts, keep)
        self.stack = StackArguments(net.layers, *map(np.uint64, numbers))
        self.memory = aligned(WORKERS, rounded(net.scratch)), aligned(blocks if keep else 1, _kept(net))
        rows = (_ROOM, np.uint64(0), np.uint64(0))
        self._forward = _call("evaluate", (0, queue_state(), self.stack, _ROOM, rows, _ROOM, *self.memory))
        self._places = [self._forward.slot(k) + _ADDRESS for k in (3, 4, 5)]
        self._backward: Call | None = None

    def evaluate(self, parameters: Tensor, samples: Tensor) -> Tensor:
        """Outputs [B, outputs] of samples [B, inputs], with parameters [P]."""
        output = torch.empty(self.count, self.outputs)
        words, (at_parameters, at_samples, at_output) = self._forward.slots, self._places
        samples = _put_rows(words, at_samples, samples)
        words[at_parameters], words[at_output] = parameters.data_ptr(), output.data_ptr()
        _work_queue.run(self._forward, self._threads(2 * len(parameters)))
        return output

    def differentiate(self, parameters: Tensor, delta: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of the parameters [P] and of the samples [B, inputs] (or None), from the gradient of the outputs;
        call evaluate() first."""
        if self._backward is None:
            room = aligned(self.parts, self.net.gradient)
            rows = (_ROOM, np.uint64(0), np.uint64(0))
            arguments = (0, queue_state(), self.stack, _ROOM, rows, *self.memory, room, _ROOM, _ROOM)
            self._backward = _call("differentiate", arguments)
            self._backward_places = [self._backward.slot(k) + _ADDRESS for k in (3, 4, 8, 9)]
        gradient = torch.empty_like(parameters)
        d_samples = torch.empty(self.count, self.net.inputs) if self.input_grad else None
        words, (at_parameters, at_delta, at_gradient, at_samples) = self._backward.slots, self._backward_places
        delta = _put_rows(words, at_delta, delta)
        words[at_parameters], words[at_gradient] = parameters.data_ptr(), gradient.data_ptr()
        if d_samples is not None:
            words[at_samples] = d_samples.data_ptr()
        _work_queue.run(self._backward, self._threads(4 * len(parameters)))
        return gradient, d_samples

    def _threads(self, operations: int) -> int:
        """Threads for this batch: one for little work. operations: floating-point operations per sample."""
        return min(kernel_threads(), self.parts) if operations * self.count > WORTH_HELP else 1


def _kept(net: Network) -> int:
    """Upper bound of the float32 per block that differentiate() reads again."""
    normed = net.layers[:, NORM] != NOWHERE
    rows = int(net.layers[:, OUTPUTS].sum()) * 2 + int(((net.layers[:, OUTPUTS] + np.uint64(1)) * normed).sum())
    return (net.inputs + rows) * int(BLOCK)


def _put_rows(words: np.ndarray, at: int, rows: Tensor) -> Tensor:
    """Write the address and strides of rows [B, F]; returns the rows, to be kept alive until the call returns."""
    sample, feature = rows.stride()
    if sample == 0 or feature == 0:
        rows = rows.contiguous()
        sample, feature = rows.stride()
    words[at], words[at + 3], words[at + 4] = rows.data_ptr(), sample, feature
    return rows


_natives: dict[str, Native] = {}


def _call(function: str, arguments: tuple[Any, ...]) -> Call:
    if function not in _natives:
        _natives[function] = entry("nn.layer_stack", function, arguments, ANNOUNCEMENT)
    return Call(_natives[function], arguments)
