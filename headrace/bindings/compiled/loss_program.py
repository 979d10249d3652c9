"""A loss that was compiled, and its calls: addresses of tensors in, gradients out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.device import kernel_threads
from headrace.kernels.rows.inputs import argument_names
from headrace.kernels.rows.lowering.loss import lower
from headrace.kernels.rows.row_program import Outer, Product
from headrace.kernels.rows.row_schedule import plan
from headrace.kernels.rows.targets import slots
from headrace.kernels.rows.targets.cpu_program import CpuProgram, parts_of
from headrace.kernels.rows.trace_loss import trace
from headrace.policies.examination import examine

NUMPY = {torch.float32: "float32", torch.int32: "int32", torch.int64: "int64", torch.bool: "bool"}
WORTH_HELP = 2e6  # floating-point operations below which waking another thread costs more than it saves


class Program:
    """Machine code of a loss for arguments like these. Raises NotRows where there is none.

    sources: the inputs. results: the loss, its gradients, metrics, and buffers that it writes to. learned, written:
    numbers of results that are gradients, or new numbers of buffers; each with that of the input.
    """

    def __init__(
        self, plain: Callable[..., Any], arguments: tuple[Any, ...], name: str, gradients: bool = True
    ) -> None:
        self.plain, self.labels = plain, argument_names(plain, len(arguments))
        traced, given = trace(plain, arguments, gradients)
        self.given, self.sources, self.results, self.spec = given, given.sources, traced.outputs, traced.spec
        self.modules = given.modules
        self.plan = plan(lower(traced, name))
        self.columns = [i for i, source in enumerate(self.sources) if source.kind == "column"]
        self.uniforms = [i for i, source in enumerate(self.sources) if source.kind != "column"]
        self.code = CpuProgram(self.plan, [NUMPY[given.values[i].dtype] for i in self.columns])
        self.sizes = [traced.sizes(result.node) for result in self.results]
        self.with_rows = [output.view.value.rows for output in self.plan.program.outputs]
        self._examined = [(module, examine(module)) for _, module in self.modules]
        products = [value for value in self.plan.program.values() if isinstance(value, Product | Outer)]
        self.work = sum(2 * v.size * (v.source.shape[-1] if isinstance(v, Product) else 1) for v in products)
        self.calls = 0
        places = {source.name: i for i, source in enumerate(self.sources)}
        self.learned = [(n, places[r.learned.name]) for n, r in enumerate(self.results) if r.learned is not None]
        self.written = [(n, places[r.written.name]) for n, r in enumerate(self.results) if r.written is not None]

    def inputs(self, arguments: tuple[Any, ...]) -> list[Tensor] | None:
        """The inputs of a call; None where it is not one that this program serves."""
        if any(examine(module) is not seen for module, seen in self._examined):
            return None
        if not self.given.serves(arguments):
            return None
        return self.values(arguments)

    def run(self, values: Sequence[Tensor]) -> Any:
        """The loss and metrics; gradients are added to those that the parameters have."""
        gradients: list[Tensor | None] = [None] * len(self.results)
        for number, place in self.learned:
            parameter = values[place]
            if parameter.grad is None and parameter.is_contiguous():
                parameter.grad = gradients[number] = torch.empty_like(parameter)
        outputs = self.compute(values, gradients)
        for number, place in self.learned:
            if gradients[number] is None:
                parameter = values[place]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                _add(parameter.grad, outputs[number])
        for number, place in self.written:
            values[place].copy_(outputs[number])
        return self.returned(outputs)

    def returned(self, outputs: Sequence[Tensor]) -> Any:
        """The loss and its metrics as the plain function returns them, from all outputs."""
        rest = self.arranged([x.to(r.dtype) for r, x in zip(self.results, outputs, strict=True) if r.is_metric])
        return outputs[0] if isinstance(rest, tuple) and not rest else (outputs[0], rest)

    def arranged(self, metrics: Iterable[Any]) -> Any:
        """Metrics as the plain function returns them, with the numbers that it fixed."""
        (spec, fixed), found = self.spec, iter(metrics)
        leaves = [next(found) if leaf is None else leaf for leaf in fixed]
        return torch.utils._pytree.tree_unflatten(leaves, spec)

    def values(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """The inputs of a call."""
        found = [source.find(arguments) for source in self.sources]
        return [x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float32) for x in found]

    def compute(self, values: Sequence[Tensor], into: Sequence[Tensor | None] = ()) -> list[Tensor]:
        """All outputs, of these inputs. into: tensors for some of them."""
        rows = len(values[self.columns[0]])
        threads = self.threads(rows)
        memory = self.code.memory(rows, threads)
        kept = self.point(memory.words, values)
        outputs = []
        for position in range(len(self.results)):
            own = into[position] if into else None
            outputs.append(self.output(position, rows) if own is None else own)
            self.point_output(memory.words, position, outputs[-1])
        memory.run(threads)
        self.code.give_back(memory)
        del kept
        return outputs

    def point(self, words: np.ndarray, values: Sequence[Tensor]) -> dict[int, Tensor]:
        """Write the addresses of inputs into argument slots. Returns the tensors that lie there, by the numbers of the
        inputs: keep them."""
        (columns, _), kept = self.code.sizes, dict[int, Tensor]()
        for position, i in enumerate(self.columns):
            column, row, number = _strides(values[i])
            kept[i] = column
            first = slots.column(position)
            words[first : first + 3] = column.data_ptr(), row, number
        for position, i in enumerate(self.uniforms):
            kept[i] = uniform = _in_memory(values[i])
            words[slots.given(position, columns)] = uniform.data_ptr()
        return kept

    def output(self, position: int, rows: int) -> Tensor:
        """Memory for an output of so many rows."""
        shape = [inner * (rows if power else 1) for inner, power in self.sizes[position]]
        integer = self.plan.program.outputs[position].view.value.dtype == "i32"
        return torch.empty(shape, dtype=torch.int32 if integer else torch.float32)

    def point_output(self, words: np.ndarray, position: int, own: Tensor) -> None:
        """Write the address of an output's memory into its argument slots."""
        first = slots.result(position, *self.code.sizes)
        words[first : first + 3] = own.data_ptr(), own[0].numel() if self.with_rows[position] else 0, 1

    def threads(self, rows: int) -> int:
        """As many threads as there are parts, one for little work."""
        return 1 if self.work * rows < WORTH_HELP else min(kernel_threads(), parts_of(rows))


def _add(gradient: Tensor, new: Tensor) -> None:
    """Add to a gradient, in this thread: torch's own threads would go on to wait, and take the cores of ours."""
    if gradient.is_contiguous() and gradient.dtype == new.dtype:
        own = gradient.numpy()
        np.add(own, new.numpy(), out=own)
    else:
        gradient.add_(new)


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
    if uniform.dtype != torch.float32:
        uniform = uniform.to(torch.float32 if uniform.dtype == torch.bool else torch.int32)
    return uniform.contiguous()
