"""Stacks of layers and batches bound to compiled calls, so that calling one again costs microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.device import kernel_threads
from headrace.kernels.nn.layer_table import NORM, NOWHERE, OUTPUT, OUTPUT_GRAD, OUTPUTS
from headrace.kernels.nn.layout import BLOCK, WORKERS, Layer, Network, StackArguments, aligned, network, rounded
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
