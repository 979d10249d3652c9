"""hr.compile(): a loss in plain PyTorch, computed with its gradients by machine code that is made of it.

The plain function stays what is right: it runs where the loss cannot be compiled, and the first results of a compiled
one are compared with it. What was compiled serves as long as the code, the modules and the settings that the trace read
are what they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headrace.bindings.loss_check import differs
from headrace.core.closure import Reach, reach
from headrace.core.terminal import tell
from headrace.policies.examination import Examination, examine

LOOK_AGAIN = 100  # the call at which a compiled loss is compared with the plain one again
NUMPY = {torch.float32: "float32", torch.int32: "int32", torch.int64: "int64", torch.bool: "bool"}


class Seen(NamedTuple):
    """What a compiled loss depends on besides its inputs' numbers."""

    structure: tuple[object, ...]
    modules: tuple[Examination, ...]


class CompiledLoss:
    """A loss with its gradients; made by compile().

    Calling it gives what the plain function returns, without gradient functions, and adds the loss' gradients to
    `.grad` of the parameters, as loss.backward() would. Several threads may call it at once.
    """

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain = plain
        self._lock = threading.Lock()
        self._programs: list[tuple[Seen, Any]] = []
        self._refused: list[tuple[Seen | None, str]] = []
        self._reach: Reach | None = None
        self._said: set[str] = set()

    def __call__(self, *arguments: Any) -> Any:
        program = self._program(arguments)
        if isinstance(program, str):
            if program not in self._said:
                self._said.add(program)
                tell(f"{self.name} is not compiled: {program}. It runs in plain PyTorch.")
            return run_plain(self.plain, arguments)
        return program.run(arguments)

    def why_not(self, *arguments: Any) -> str | None:
        """Why the loss is not compiled for these arguments, as a sentence with file and line; None where it is."""
        found = self._program(arguments)
        return found if isinstance(found, str) else None

    @property
    def name(self) -> str:
        """The plain function's name, for messages."""
        return str(getattr(self.plain, "__qualname__", type(self.plain).__name__))

    def _program(self, arguments: tuple[Any, ...]) -> Any:
        """What computes the loss of these arguments; a sentence where nothing does."""
        if self._reach is None or not self._reach.is_current():
            with self._lock:
                self._programs, self._refused = [], []
                self._reach = reach(self.plain, _classes(arguments))
        from headrace.bindings.loss_program import Program, inputs_of
        from headrace.kernels.rows.reasons import NotRows

        try:
            given = inputs_of(self.plain, arguments)
        except NotRows as error:
            return str(error)
        examined = tuple(examine(module) for _, module in given.modules)
        seen = Seen(given.structure, examined)
        for known in (self._programs, self._refused):
            for other, found in known:
                if other == seen:
                    return found
        reason = _altered(given.modules, examined)
        if reason is not None:
            return reason
        with self._lock:
            for other, found in self._programs:
                if other == seen:
                    return found
            try:
                program = Program(self.plain, arguments, self.name)
            except NotRows as error:
                self._refused.append((seen, str(error)))
                return str(error)
            reason = differs(program, arguments)
            if reason is not None:
                self._refused.append((seen, reason))
                return reason
            # of a constant that turned out to be one while tracing, the structure is another
            self._programs.append((seen, program))
            return program


def compile(loss: Callable[..., Any]) -> CompiledLoss:
    """Compile a loss in plain PyTorch, with its gradients.

    loss: takes modules, tensors of a minibatch (each with the minibatch's rows as its first dimension; also in dicts,
    tuples and dataclasses) and settings; returns a scalar, or a scalar and metrics: scalars and tensors with a number
    for each row. What it may contain, and what is refused, is in docs/compile.md.

        step = headrace.compile(loss)
        optimizer.zero_grad()
        value = step(policy, batch, config)  # computes the loss, and the gradients into .grad
        optimizer.step()

    Nothing is compiled before the first call. A loss that cannot be compiled runs as it is, and a line says why.
    """
    return CompiledLoss(loss)


def run_plain(plain: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What a compiled loss does, by autograd."""
    returned = plain(*arguments)
    loss = returned[0] if isinstance(returned, tuple) else returned
    loss.backward()
    return torch.utils._pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, returned)


def _classes(arguments: tuple[Any, ...]) -> tuple[type, ...]:
    """The classes of the modules in a call's arguments."""
    modules = [x for x in torch.utils._pytree.tree_leaves(arguments) if isinstance(x, nn.Module)]
    return tuple(dict.fromkeys(type(part) for module in modules for part in module.modules()))


def _altered(modules: Sequence[tuple[str, nn.Module]], examined: Sequence[Examination]) -> str | None:
    """Why calls of the modules are not what their classes say; None where they are."""
    for (name, _), found in zip(modules, examined, strict=True):
        if found.altered:
            return f"in {name}, {found.altered}"
        for parameter in found.parameters:
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return f"a parameter of {name} has a gradient hook"
    return None
