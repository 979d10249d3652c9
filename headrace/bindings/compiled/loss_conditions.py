"""The code and the arguments that the trace of a compiled loss reads, besides their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headrace.bindings.compiled.loss_tries import Tries
from headrace.core.closure import Reach, reach
from headrace.core.looking import is_noted, note
from headrace.kernels.nn.amx import tiles_permitted
from headrace.kernels.rows.gpu.gpu_program import target
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.row_plan import BY_WEIGHTS
from headrace.kernels.rows.targets.records import keep
from headrace.kernels.rows.tracing.inputs import attribute_name, given
from headrace.kernels.rows.tracing.trace_key import key_of
from headrace.policies.examination import Examination, examine


class Conditions:
    """A loss and the arguments of a call, without their numbers: all that a trace of them reads.

    by_weights: whether gradients are taken by weights on the CPU; None to choose by the rows of a call.
    tries: of the loss with these modules.
    key: under which the result of the trace is kept on disk; None where something cannot be known.
    block: of rows of the program, see row_plan.block_for(); 0 for any.
    sums: whether outputs are sums over rows, as gradients are, also without gradients that the trace adds.
    target: what the program is made for.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        arguments: tuple[Any, ...],
        tries: Tries,
        gradients: bool = True,
        fixed: frozenset[str] = frozenset(),
        learns: frozenset[int] | None = None,
        by_weights: bool | None = None,
        block: int = 0,
        sums: bool = False,
    ) -> None:
        self.gradients, self.block, self.sums = gradients, block, gradients or sums
        self.by_weights = by_weights if self.sums else False
        self.tries, self._varying = tries, tries.varying
        self.plain, self.given = plain, given(plain, arguments, fixed, learns, tries.varying)
        self.reach = self._reach()
        self.examined = [(module, examine(module)) for _, module in self.given.modules]
        self.target = self._target_of(self.given.rows)
        self.key = key_of(self.given, self.reach, gradients, self.target)

    def fixing(self, arguments: tuple[Any, ...], names: frozenset[str]) -> Conditions:
        """Make the same conditions with further numbers as constants."""
        fixed, learns = self.given.fixed | names, self.given.learns
        how = self.by_weights, self.block, self.sums
        return Conditions(self.plain, arguments, self.tries, self.gradients, fixed, learns, *how)

    @property
    def digest(self) -> str:
        """Digest that is the same in all processes with the same conditions; empty without a key."""
        return "" if self.key is None else self.key.of_all

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
        """Tell whether a call with other arguments is the same, except for their numbers."""
        if self._varying is not self.tries.varying:
            return False
        seen = is_noted(self)
        if not seen and not (self._same_modules() and self.reach.is_current()):
            return False
        if self.given.change(arguments, seen) is not None or not self._same_target(arguments):
            return False
        note(self)
        return True

    def _same_modules(self) -> bool:
        """Tell whether modules are unchanged, except for numbers that are inputs."""
        for place, (module, seen) in enumerate(self.examined):
            if (now := examine(module)) is not seen:
                changed = seen.changed_numbers(now)
                if changed is None or not self.given.has_as_inputs(changed):
                    return False
                self.examined[place] = module, now
        return True

    def varied(self) -> frozenset[str]:
        """Names of numbers that modules hold, if nothing but these has changed."""
        found = set[str]()
        for (label, _), (module, seen) in zip(self.given.modules, self.examined, strict=True):
            changed = seen.changed_numbers(examine(module))
            if changed is None:
                return frozenset()
            paths = {id(vars(part)): path for path, part in module.named_modules()}
            found |= {attribute_name(label, paths[id(space)], name) for space, name in changed}
        return frozenset(found)

    def _target_of(self, rows: int) -> str:
        """Machine, and approximate number of rows, for which a program is made."""
        if on_gpu(self.given.device):
            return target(self.given.device, rows)
        by_weights = rows <= BY_WEIGHTS if self.by_weights is None else self.by_weights
        # acting, of few rows, would pack weights for as long as it multiplies
        processor = "cpu with tiles" if self.sums and tiles_permitted() else "cpu"
        processor += f" in blocks of {self.block}" if self.block else ""
        return f"{processor} by weights" if by_weights else processor

    def _same_target(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether a program for these conditions serves a call's number of rows."""
        if self.by_weights is not None and not on_gpu(self.given.device):
            return True
        column = next(source for source in self.given.sources if source.kind == "column")
        return self._target_of(len(column.find(arguments))) == self.target

    def change(self, arguments: tuple[Any, ...]) -> str:
        """Name, for messages, the difference that keeps a call from being the same."""
        if not self.reach.is_current():
            return self.reach.change()
        attributes = (self._changed_attribute(place) for place in range(len(self.examined)))
        known = self.given.change(arguments) or next(filter(None, attributes), None)
        return known or "a module, or where its parameters lie, or the number of rows"

    def _changed_attribute(self, place: int) -> str | None:
        """The name of an attribute of a module that is another object than it was."""
        (label, module), (_, seen) = self.given.modules[place], self.examined[place]
        if (changed := seen.changed_attribute(examine(module))) is None:
            return None
        paths = {id(vars(part)): path for path, part in module.named_modules()}
        return attribute_name(label, paths.get(id(changed[0]), ""), changed[1])

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
