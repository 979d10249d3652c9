"""A loss that was compiled, and its calls: addresses of tensors in, gradients out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.rows.inputs import Given, Source, given
from headrace.kernels.rows.lower import lower
from headrace.kernels.rows.plan import LANES
from headrace.kernels.rows.schedule import plan
from headrace.kernels.rows.targets import slots
from headrace.kernels.rows.targets.cpu_program import CpuProgram, aligned
from headrace.kernels.rows.trace import trace

NUMPY = {torch.float32: "float32", torch.int32: "int32", torch.int64: "int64", torch.bool: "bool"}


def inputs_of(plain: Callable[..., Any], arguments: tuple[Any, ...]) -> Given:
    """The inputs in a call's arguments."""
    return given(plain, arguments)


class Program:
    """Machine code of a loss for arguments like these. Raises NotRows where there is none."""

    def __init__(self, plain: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> None:
        self.plain = plain
        traced, found = trace(plain, arguments)
        self.floats = found.floats
        self.sources, self.results, self.spec = found.sources, traced.outputs, traced.spec
        self.modules = found.modules
        self.plan = plan(lower(traced, name))
        self.columns = [i for i, source in enumerate(self.sources) if source.kind == "column"]
        self.uniforms = [i for i, source in enumerate(self.sources) if source.kind != "column"]
        dtypes = [NUMPY[found.values[i].dtype] for i in self.columns]
        self.code = CpuProgram(self.plan, dtypes)
        self.with_rows = [output.view.value.rows for output in self.plan.program.outputs]
        self.sizes = [traced.sizes(result.node) for result in self.results]

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """The loss and metrics; gradients are added to those that the parameters have."""
        values = self.values(arguments)
        outputs = self.compute(values)
        for result, gradient in zip(self.results, outputs, strict=True):
            if result.learned is not None:
                parameter = self.find(result.learned, arguments)
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
            if result.written is not None:
                self.find(result.written, arguments).copy_(gradient)
        return self.returned(outputs)

    def returned(self, outputs: Sequence[Tensor]) -> Any:
        """What the plain function returns, of all outputs."""
        (spec, fixed), loss = self.spec, outputs[0]
        metrics = iter([x for result, x in zip(self.results, outputs, strict=True) if result.name.startswith("metric")])
        leaves = [next(metrics) if leaf is None else leaf for leaf in fixed]
        rest = torch.utils._pytree.tree_unflatten(leaves, spec)
        return loss if isinstance(rest, tuple) and not rest else (loss, rest)

    def find(self, source: Source, arguments: tuple[Any, ...]) -> Any:
        """What an input is in a call's arguments."""
        return source.find(self.modules if source.of_module else arguments)

    def values(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """The inputs of a call."""
        found = [self.find(source, arguments) for source in self.sources]
        return [x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float32) for x in found]

    def compute(self, values: Sequence[Tensor]) -> list[Tensor]:
        """All outputs, of these inputs."""
        program, memory = self.plan.program, list[Any]()
        rows = len(values[self.columns[0]])
        sizes = len(self.columns), len(self.uniforms)
        words = np.zeros(slots.count(*sizes, len(program.outputs)), np.int64)
        words[[slots.TASK, slots.PARTS, slots.ROWS]] = slots.ALL, 1, rows
        counts = (self.plan.tiles * LANES, -(-rows // LANES) * self.plan.kept * LANES)
        memory += [aligned(count) for count in (*counts, self.plan.uniform, self.plan.accumulators)]
        words[slots.SCRATCH : slots.INPUTS] = [x.ctypes.data for x in memory]
        for position, i in enumerate(self.columns):
            column, row, number = _strides(values[i].detach())
            memory.append(column)
            first = slots.column(position)
            words[first : first + 3] = column.data_ptr(), row, number
        for position, i in enumerate(self.uniforms):
            uniform = _in_memory(values[i].detach())
            memory.append(uniform)
            words[slots.given(position, sizes[0])] = uniform.data_ptr()
        outputs = []
        for position, (sizes_, output) in enumerate(zip(self.sizes, program.outputs, strict=True)):
            shape = [inner * (rows if power else 1) for inner, power in sizes_]
            kind = torch.int32 if output.view.value.dtype == "i32" else torch.float32
            own = torch.empty(shape, dtype=kind)
            outputs.append(own)
            first = slots.result(position, *sizes)
            words[first : first + 3] = own.data_ptr(), own[0].numel() if output.view.value.rows else 0, 1
        self.code.native.run(words.ctypes.data)
        return outputs


def _strides(column: Tensor) -> tuple[Tensor, int, int]:
    """A column in memory that a program can read: its strides from row to row, and from number to number."""
    if column.dim() == 1:
        return column, column.stride(0), 1
    if column.dim() == 2:
        return column, column.stride(0), column.stride(1)
    if not column[0].is_contiguous():
        column = column.contiguous()
    return column, column.stride(0), 1


def _in_memory(uniform: Tensor) -> Tensor:
    kind = {torch.int64: torch.int32, torch.bool: torch.float32}.get(uniform.dtype, uniform.dtype)
    return uniform.to(kind).contiguous()
