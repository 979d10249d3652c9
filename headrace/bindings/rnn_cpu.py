"""RNNCell with its steps compiled, for the CPU: of sequences forward and backward, and of one step to act."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.arguments import MISFIT, fits, whole
from headrace.bindings.digests import DIGESTS
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.kernels.nn.layout import WIDTH, WORKERS, aligned
from headrace.kernels.nn.rnn_arguments import (
    PACKED,
    PART_SEQUENCES,
    STEP_ROWS,
    RNNArguments,
    RNNGradients,
    RNNStepArguments,
)
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.examination import examine, last_examined
from headrace.policies.rnn import GATES, RNNCell

ANNOUNCEMENT = "compiling recurrent networks (once, about 4 s) ..."
# floating-point operations below which waking another thread costs more than it saves: of a sequence, and of a step,
# which takes less time than a sequence
WORTH_HELP, STEP_WORTH_HELP = 2e6, 5e7
_work_queues = {"forward": WorkQueue(alike=False), "backward": WorkQueue(alike=False)}
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
    if reason := _why_not(rnn):
        return reason
    copies, steps, envs, width = projected.shape
    sizes = (copies == rnn.copies, width == GATES[rnn.kind] * rnn.size, valid.shape == (steps, envs), steps, envs)
    if not all(sizes) or not fits(memory, torch.float32, envs, copies * rnn.width) or not whole(burn_in):
        return MISFIT
    return True


def _why_not(rnn: RNNCell) -> str | None:
    """Why kernels cannot compute this cell's steps; None where they can."""
    if type(rnn) is not RNNCell:
        return f"it is written for RNNCell, not for {type(rnn).__name__}"
    if altered := examine(rnn).altered:
        return altered
    return f"rnn_size {rnn.size} is not a multiple of {WIDTH}: take one that is" if rnn.size % int(WIDTH) else None


@register("rnn.recur", serves, DIGESTS["rnn.recur"], (RNNCell,))
def recur(rnn: RNNCell, projected: Tensor, memory: Tensor, valid: Tensor, burn_in: int) -> Tensor:
    """headrace.policies.rnn.RNNCell.recur, with the same outputs and gradients within rounding."""
    weights = (rnn.weight_hidden, rnn.bias_hidden)
    return _Recurrence.apply(projected, *weights, rnn, (memory, valid, burn_in))  # type: ignore[no-any-return]


class Stepping:
    """Takes single steps of a cell, while nothing in it is replaced or moved. Several threads may call it at once."""

    def __init__(self, rnn: RNNCell) -> None:
        self._kind, self._copies, self._size, self._width = rnn.kind, rnn.copies, rnn.size, rnn.width
        weights = (rnn.weight_input, rnn.weight_hidden, rnn.bias_input, rnn.bias_hidden)
        self.inputs, self.reads = rnn.weight_input.shape[1], all(_is_read(x) for x in weights)
        self._weights = [_flat(x) for x in weights] if self.reads else []
        self._work_queue, self._calls = WorkQueue(alike=False), list[_StepCall]()  # calls that no thread is using

    def step(self, features: Tensor, rnn_state: Tensor) -> tuple[Tensor, Tensor]:
        """As RNNCell.forward()."""
        rows, features, rnn_state = len(rnn_state), features.contiguous(), rnn_state.contiguous()
        output, after = torch.empty(self._copies, rows, self._size), torch.empty_like(rnn_state)
        try:
            call = self._calls.pop()
        except IndexError:  # a first call, or as many at once as never before
            call = self._call()
        call.point(rows, features, rnn_state, after, output)
        operations = 2 * self._copies * rows * GATES[self._kind] * self._size * (self.inputs + self._size)
        threads = min(kernel_threads(), WORKERS) if operations > STEP_WORTH_HELP else 1
        self._work_queue.run(call.call, threads)
        self._calls.append(call)
        return output, after

    def _call(self) -> _StepCall:
        row = self._copies * self._width
        sizes = (self._copies, 0, self.inputs, self._size, GATES[self._kind], row, self._width)
        scratch = aligned(WORKERS * (int(STEP_ROWS) * 4 * self._size + int(PACKED)))
        parts: Any = (*map(np.uint64, sizes), _NONE, *self._weights, _NONE, _NONE, _NONE, scratch)
        return _StepCall(RNNStepArguments(*parts))


class _StepCall:
    """A call for one thread at a time, converted to slots once; see headrace.bindings.collecting.acting.RowsCall."""

    def __init__(self, cells: RNNStepArguments) -> None:
        arguments: tuple[Argument, ...] = (0, queue_state(), cells)
        self.call = Call(entry("nn.rnn_step", "forward", arguments, ANNOUNCEMENT), arguments)
        place = cells._fields.index
        self._rows = self.call.slot(2, place("envs"))
        self._arrays = [self.call.slot(2, place(name)) for name in ("features", "state", "after", "output")]

    def point(self, rows: int, *arrays: Tensor) -> None:
        """Let it read features and state of so many rows, and write the state after them and the outputs."""
        self.call.slots[self._rows] = rows
        for slot, array in zip(self._arrays, arrays, strict=True):
            self.call.point(slot, array.data_ptr())


def _is_read(weight: Tensor) -> bool:
    return fits(weight, torch.float32, *weight.shape) and weight.is_contiguous()


def _stepping(rnn: RNNCell) -> Stepping:
    """What takes the steps of the cell that was just examined."""
    kept = last_examined(rnn).kept
    if Stepping not in kept:
        kept[Stepping] = Stepping(rnn)
    return kept[Stepping]  # type: ignore[no-any-return]


def serves_step(rnn: RNNCell, features: Tensor, rnn_state: Tensor) -> bool | str:
    """Whether the kernel supports this step; else the reason."""
    if torch.is_grad_enabled() or not isinstance(features, Tensor) or features.device.type != "cpu":
        return False
    if reason := _why_not(rnn):
        return reason
    stepping, rows = _stepping(rnn), features.shape[1] if features.dim() == 3 else 0
    read = fits(features, torch.float32, rnn.copies, rows, stepping.inputs)
    read = read and fits(rnn_state, torch.float32, rows, rnn.copies * rnn.width)
    return True if stepping.reads and read and rows else MISFIT


@register("rnn.step", serves_step, DIGESTS["rnn.step"], (RNNCell,))
def step(rnn: RNNCell, features: Tensor, rnn_state: Tensor) -> tuple[Tensor, Tensor]:
    """headrace.policies.rnn.RNNCell.forward, with the same outputs and states within rounding."""
    return _stepping(rnn).step(features, rnn_state)
