"""The code and the arguments that the trace of a compiled loss reads, besides their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headrace.core.closure import Reach, reach
from headrace.kernels.rows.gpu.gpu_program import target
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.row_plan import BY_WEIGHTS
from headrace.kernels.rows.targets.records import keep
from headrace.kernels.rows.tracing.inputs import given
from headrace.kernels.rows.tracing.trace_key import key_of
from headrace.policies.examination import Examination, examine


class Conditions:
    """A loss and the arguments of a call, without their numbers: all that a trace of them reads.

    by_weights: whether gradients are taken by weights on the CPU; None to choose by the rows of a call.
    key: under which the result of the trace is kept on disk; None where something cannot be known.
    target: what the program is made for.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        arguments: tuple[Any, ...],
        gradients: bool,
        fixed: frozenset[str] = frozenset(),
        learns: frozenset[int] | None = None,
        by_weights: bool | None = None,
    ) -> None:
        self.by_weights = by_weights if gradients else False
        self.plain, self.given = plain, given(plain, arguments, fixed, learns)
        self.reach = self._reach()
        self.examined = [(module, examine(module)) for _, module in self.given.modules]
        self.target = self._target_of(self.given.rows)
        self.key = key_of(self.given, self.reach, gradients, self.target)

    def _reach(self) -> Reach:
        return reach(self.plain, self.given.classes, {*map(id, self.given.values)})

    def traced(self) -> None:
        """Take in what tracing has imported. Raises NotRows where it has changed something."""
        if not self.reach.is_current():
            self.reach.restore()
            raise NotRows("changes what it, or a function that it calls, reads outside", for_good=True)
        if self.reach.unseen:
            self.reach = self._reach()

    def hold(self, arguments: tuple[Any, ...]) -> bool:
        """True if a call with other arguments is the same, but for their numbers."""
        if any(examine(module) is not seen for module, seen in self.examined):
            return False
        return self.reach.is_current() and self.given.change(arguments) is None and self._same_target(arguments)

    def _target_of(self, rows: int) -> str:
        """The machine, and about the number of rows, that a program is made for."""
        if on_gpu(self.given.device):
            return target(self.given.device, rows)
        by_weights = rows <= BY_WEIGHTS if self.by_weights is None else self.by_weights
        return "cpu by weights" if by_weights else "cpu"

    def _same_target(self, arguments: tuple[Any, ...]) -> bool:
        """True if a program for these conditions is one for a call's number of rows."""
        if self.by_weights is not None and not on_gpu(self.given.device):
            return True
        column = next(source for source in self.given.sources if source.kind == "column")
        return self._target_of(len(column.find(arguments))) == self.target

    def change(self, arguments: tuple[Any, ...]) -> str:
        """Name, for messages, the difference that keeps a call from being the same."""
        if not self.reach.is_current():
            return self.reach.change()
        return self.given.change(arguments) or "a module, or where its parameters lie, or the number of rows"

    def altered(self) -> str | None:
        """Say why calls of the modules are not what their classes say; None where they are."""
        for (name, module), (_, seen) in zip(self.given.modules, self.examined, strict=True):
            if (reason := _altered(name, module, seen)) is not None:
                return reason
        return None

    def keep(self, reason: str) -> None:
        """Keep a refusal for later processes."""
        if self.key is not None:
            keep(self.key, self.reach.places(), NotRows(reason))


def on_gpu(device: torch.device) -> bool:
    """True if a device runs kernels of a GPU; tests let the CPU run them."""
    return device.type == "cuda"


def _altered(name: str, module: nn.Module, seen: Examination) -> str | None:
    if seen.altered:
        return f"in {name}, {seen.altered}"
    for path, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return f"{name}.{path} has a gradient hook"
    return None
