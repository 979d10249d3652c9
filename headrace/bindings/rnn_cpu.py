"""RNNCell.sequence with its steps compiled, forward and backward, for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.arguments import MISFIT, fits, whole
from headrace.bindings.digests import DIGESTS
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.kernels.nn.layout import WIDTH, WORKERS
from headrace.kernels.nn.rnn_arguments import PART_SEQUENCES, RNNArguments, RNNGradients
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.examination import examine
from headrace.policies.rnn import GATES, RNNCell

ANNOUNCEMENT = "compiling recurrent networks (once, about 4 s) ..."
WORTH_HELP = 2e6  # floating-point operations below which waking another thread costs more than it saves
_work_queues = {"forward": WorkQueue(), "backward": WorkQueue()}
_NONE = np.empty(0, np.float32)


def _flat(x: Tensor) -> np.ndarray:
    return x.detach().reshape(-1).numpy()


def _run(name: str, sequence: RNNArguments, *gradients: RNNGradients) -> None:
    arguments: tuple[Argument, ...] = (0, queue_state(), sequence, *gradients)
    operations = 2 * int(sequence.copies * sequence.steps * sequence.envs * sequence.gates * sequence.size**2)
    parts = int(sequence.copies) * -(-int(sequence.envs) // int(PART_SEQUENCES))
    threads = min(kernel_threads(), WORKERS, parts) if operations > WORTH_HELP else 1
    _work_queues[name].run(Call(entry("nn.rnn_sequence", name, arguments, ANNOUNCEMENT), arguments), threads)


class _Recurrence(torch.autograd.Function):
    """Outputs [K, T, N, size] from projected features [K, T, N, gates * size]; see RNNCell.recur."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor, rnn: RNNCell, rest: tuple[Tensor, Tensor, int]
    ) -> Tensor:
        memory, valid, _ = rest
        copies, steps, envs, _ = projected.shape
        size, lstm = rnn.size, rnn.kind == "lstm"
        gate, output = torch.empty(projected.shape), torch.empty(copies, steps, envs, size)
        extra, before = torch.empty_like(output), torch.empty_like(output)
        cell = torch.empty_like(output) if lstm else torch.empty(0)
        start = rnn._stacked(memory)
        before[:, 0] = start[..., :size]
        if lstm:
            cell[:, 0] = start[..., size:]
        given = (_flat(projected), _flat(weight), _flat(bias), _flat(valid.float()))
        shape = (np.uint64(number) for number in (copies, steps, envs, size, GATES[rnn.kind]))
        parts: Any = (*shape, *given, *map(_flat, (gate, before, cell, extra, output)))
        ctx.arguments = RNNArguments(*parts)
        ctx.before, ctx.rnn, ctx.rest = before, rnn, rest
        ctx.save_for_backward(projected, weight, bias)
        _run("forward", ctx.arguments)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        projected, weight, bias = ctx.saved_tensors
        nothing = (None,) * 2
        if torch.is_grad_enabled():  # second derivatives: by torch, through the plain steps
            outputs = RNNCell.recur.plain(ctx.rnn, projected, *ctx.rest)  # type: ignore[attr-defined]
            return *torch.autograd.grad(outputs, (projected, weight, bias), gradient, create_graph=True), *nothing
        arguments, lstm = ctx.arguments, ctx.rnn.kind == "lstm"
        gate = torch.empty_like(projected)
        hidden = gate if lstm else torch.empty_like(projected)
        carried = torch.zeros(2, *projected.shape[:1], projected.shape[2], ctx.rnn.size)
        gradients = RNNGradients(
            np.uint64(ctx.rest[2]),
            _flat(weight.transpose(1, 2)),
            *(_flat(gradient), _flat(gate), _NONE if lstm else _flat(hidden)),
            *map(_flat, carried),
        )
        _run("backward", arguments, gradients)
        grad_hidden = hidden.flatten(1, 2)
        grad_weight = torch.bmm(ctx.before.flatten(1, 2).transpose(1, 2), grad_hidden)
        return gate, grad_weight, grad_hidden.sum(1, True), *nothing


def serves(rnn: RNNCell, projected: Tensor, memory: Tensor, valid: Tensor, burn_in: int) -> bool | str:
    """Whether the kernel supports these sequences; else the reason."""
    if projected.device.type != "cpu" or projected.dtype != torch.float32 or memory.requires_grad:
        return False
    if type(rnn) is not RNNCell:
        return f"it is written for RNNCell, not for {type(rnn).__name__}"
    if altered := examine(rnn).altered:
        return altered
    copies, steps, envs, width = projected.shape
    sizes = (copies == rnn.copies, width == GATES[rnn.kind] * rnn.size, valid.shape == (steps, envs), steps, envs)
    if not all(sizes) or not fits(memory, torch.float32, envs, copies * rnn.width) or not whole(burn_in):
        return MISFIT
    if rnn.size % int(WIDTH):
        return f"rnn_size {rnn.size} is not a multiple of {WIDTH}"
    return True


@register("rnn.recur", serves, DIGESTS["rnn.recur"], (RNNCell,))
def recur(rnn: RNNCell, projected: Tensor, memory: Tensor, valid: Tensor, burn_in: int) -> Tensor:
    """headrace.policies.rnn.RNNCell.recur, with the same outputs and gradients within rounding."""
    weights = (rnn.weight_hidden, rnn.bias_hidden)
    return _Recurrence.apply(projected, *weights, rnn, (memory, valid, burn_in))  # type: ignore[no-any-return]
