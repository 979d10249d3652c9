"""RNNCell with its steps compiled for the CPU: of sequences, forward and backward, and one alone without gradients."""

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
from headrace.kernels.nn.rnn_arguments import PART_SEQUENCES, RNNArguments, RNNGradients, RNNStep
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.examination import examine, last_examined
from headrace.policies.rnn import GATES, RNNCell

ANNOUNCEMENT = "compiling recurrent networks (once, about 4 s) ..."
# floating-point operations below which waking another thread costs more than it saves; between the steps of
# environments it has gone to sleep
WORTH_HELP = {"forward": 2e6, "backward": 2e6, "step": 5e7}
_work_queues = {name: WorkQueue() for name in WORTH_HELP}
_NONE, _ANY = np.empty(0, np.float32), np.empty(1, np.float32)  # the second in place of what a call is pointed at


def _flat(x: Tensor) -> np.ndarray:
    return x.detach().reshape(-1).numpy()


def _threads(name: str, cells: RNNArguments | RNNStep, envs: int, weights: int) -> int:
    """The number of cores for a call. weights: those that each environment is multiplied by, over all steps."""
    parts = int(cells.copies) * -(-envs // int(PART_SEQUENCES))
    return min(kernel_threads(), WORKERS, parts) if 2 * envs * weights > WORTH_HELP[name] else 1


def _run(name: str, weights: int, sequence: RNNArguments, *gradients: RNNGradients) -> None:
    arguments: tuple[Argument, ...] = (0, queue_state(), sequence, *gradients)
    call = Call(entry("nn.rnn_sequence", name, arguments, ANNOUNCEMENT), arguments)
    _work_queues[name].run(call, _threads(name, sequence, int(sequence.envs), weights))


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
        ctx.weights = steps * weight.numel()
        _run("forward", ctx.weights, ctx.arguments)
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
        _run("backward", ctx.weights, arguments, gradients)
        grad_hidden = hidden.flatten(1, 2)
        grad_weight = torch.bmm(ctx.before.flatten(1, 2).transpose(1, 2), grad_hidden)
        return gate, grad_weight, grad_hidden.sum(1, True), *nothing


def serves(rnn: RNNCell, projected: Tensor, memory: Tensor, valid: Tensor, burn_in: int) -> bool | str:
    """Whether the kernel supports these sequences; else the reason."""
    if projected.device.type != "cpu" or projected.dtype != torch.float32 or memory.requires_grad:
        return False
    if reason := _unfit(rnn):
        return reason
    copies, steps, envs, width = projected.shape
    sizes = (copies == rnn.copies, width == GATES[rnn.kind] * rnn.size, valid.shape == (steps, envs), steps, envs)
    if not all(sizes) or not fits(memory, torch.float32, envs, copies * rnn.width) or not whole(burn_in):
        return MISFIT
    return True


def _unfit(rnn: RNNCell) -> str:
    """Why the kernels are not for these cells; "" where they are."""
    if type(rnn) is not RNNCell:
        return f"it is written for RNNCell, not for {type(rnn).__name__}"
    if altered := examine(rnn).altered:
        return altered
    return f"rnn_size {rnn.size} is not a multiple of {WIDTH}" if rnn.size % int(WIDTH) else ""


@register("rnn.recur", serves, DIGESTS["rnn.recur"], (RNNCell,))
def recur(rnn: RNNCell, projected: Tensor, memory: Tensor, valid: Tensor, burn_in: int) -> Tensor:
    """headrace.policies.rnn.RNNCell.recur, with the same outputs and gradients within rounding."""
    weights = (rnn.weight_hidden, rnn.bias_hidden)
    return _Recurrence.apply(projected, *weights, rnn, (memory, valid, burn_in))  # type: ignore[no-any-return]


def _serves_step(rnn: RNNCell, features: Tensor, rnn_state: Tensor) -> bool | str:
    """Whether the kernel supports this step; else the reason."""
    if torch.is_grad_enabled() or features.device.type != "cpu" or features.dtype != torch.float32:
        return False
    if reason := _unfit(rnn):
        return reason
    copies, inputs, _ = rnn.weight_input.shape
    envs = features.shape[-2] if features.dim() == 3 else 0
    if not envs or not fits(features, torch.float32, copies, envs, inputs):
        return MISFIT
    return fits(rnn_state, torch.float32, envs, copies * rnn.width) or MISFIT


class StepCall:
    """The kernel's call for steps of up to `most` environments of some cells, by one thread at a time.

    Its arguments are converted to slots once, which takes longer than the step itself."""

    def __init__(self, rnn: RNNCell, most: int) -> None:
        copies, inputs, wide = rnn.weight_input.shape
        self.most, self.weights = most, rnn.weight_input.numel() + rnn.weight_hidden.numel()
        shape = (np.uint64(number) for number in (copies, most, inputs, rnn.size, GATES[rnn.kind]))
        weights = map(_flat, (rnn.weight_input, rnn.weight_hidden, rnn.bias_input, rnn.bias_hidden))
        scratch = (np.empty(most * copies * width, np.float32) for width in (wide, rnn.size))
        parts: Any = (*shape, _ANY, _ANY, *weights, *scratch, _ANY, _ANY)
        self.cells = RNNStep(*parts)
        arguments: tuple[Argument, ...] = (0, queue_state(), self.cells)
        self.call = Call(entry("nn.rnn_sequence", "step", arguments, ANNOUNCEMENT), arguments)
        names = ("envs", "features", "state", "output", "after")
        self._envs, *self._pointed = (self.call.slot(2, RNNStep._fields.index(name)) for name in names)

    def run(self, envs: int, *columns: Tensor) -> None:
        """Compute a step. columns: features, state, and where the output and the state after it go; contiguous."""
        self.call.slots[self._envs] = envs
        for slot, column in zip(self._pointed, columns, strict=True):
            self.call.point(slot, column.data_ptr())
        _work_queues["step"].run(self.call, _threads("step", self.cells, envs, self.weights))


@register("rnn.step", _serves_step, DIGESTS["rnn.step"], (RNNCell,))
def step(rnn: RNNCell, features: Tensor, rnn_state: Tensor) -> tuple[Tensor, Tensor]:
    """headrace.policies.rnn.RNNCell.forward, within rounding."""
    copies, envs, _ = features.shape
    free: list[StepCall] = last_examined(rnn).kept.setdefault(StepCall, [])  # those that no thread is using
    try:
        call = free.pop()
    except IndexError:
        call = StepCall(rnn, envs)
    if call.most < envs:
        call = StepCall(rnn, envs)
    output, after = torch.empty(copies, envs, rnn.size), torch.empty(envs, copies * rnn.width)
    call.run(envs, features.contiguous(), rnn_state.contiguous(), output, after)
    free.append(call)
    return output, after
