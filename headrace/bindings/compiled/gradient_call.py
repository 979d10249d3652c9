"""The gradient of a compiled loss, added to gradients that lie in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.bindings.bound import place
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.compiled.placed_program import Pointed
from headrace.bindings.eligibility import flat_buffer


class GradientCall:
    """Program whose calls add to the gradients of what it learns. `serves` is False where these are not views of one
    float32 buffer, or a metric is no float32 scalar.

    program: given to each call, not kept here, since it would keep a policy. gradients: of its `learned`, in that
    order. rows: of all calls.
    """

    def __init__(self, program: Program, gradients: Sequence[Any], rows: int) -> None:
        self._rows = rows
        metrics = [i for i, result in enumerate(program.results) if result.is_metric]
        self._names = program.arranged(metrics)
        plain = all(program.results[i].dtype == torch.float32 and not program.with_rows[i] for i in metrics)
        into = None if any(x is None for x in gradients) else flat_buffer([*gradients])
        self.serves = plain and into is not None and [*self._names.values()] == metrics
        if into is None or not self.serves:
            return
        self._into, self._own, self._table = into, torch.zeros_like(into), torch.zeros(len(metrics))
        found = [program.output(i, rows) for i in range(len(program.results))]
        for (number, _), gradient in zip(program.learned, gradients, strict=True):
            first = place(gradient, into)
            found[number] = self._own[first : first + gradient.numel()].view(gradient.shape)
        for number, i in enumerate(metrics):
            found[i] = self._table[number]
        self._pointed = Pointed(program, found)

    def run(self, program: Program, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """Add the gradient of these inputs. Returns the metrics."""
        threads = program.threads(self._rows)
        kept = self._pointed.take(program, values, self._rows, threads)
        self._pointed.memory.run(threads)
        del kept
        self._into += self._own
        for number, i in program.written:
            values[i].copy_(self._pointed.found[number])
        return dict(zip(self._names, self._table.clone().unbind(), strict=True))
