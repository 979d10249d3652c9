"""hr.compile(): a loss in plain PyTorch, computed with its gradients by machine code that is made of it.

The plain function stays what is right: it runs where the loss cannot be compiled, and the first results of a compiled
one are compared with it. What was compiled serves as long as the code, the modules and the settings that the trace read
are what they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core.closure import Reach, reach
from headrace.core.terminal import tell
from headrace.policies.examination import Examination, examine

_tracing = threading.Lock()  # while a loss is traced, modules hold other tensors
FEWEST = 3  # rows: of fewer, a loss may compute something else, as where it takes no deviation of one
MOST = 16  # programs of a loss that are kept
TRIES, CALLS = 64, 50  # traces of a loss at most, and one more for each so many calls
LOOK_AGAIN = 100  # the call at which a compiled loss is compared with the plain one again


class CompiledLoss:
    """A loss with its gradients; made by compile().

    Calling it gives what the plain function returns, without gradient functions, and adds the loss' gradients to
    `.grad` of the parameters, as loss.backward() would. Several threads may call it at once.
    """

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain = plain
        self._lock = threading.Lock()
        self._programs: list[Any] = []
        self._refused: list[tuple[Any, list[tuple[nn.Module, Examination]], str]] = []
        self._reach: Reach | None = None
        self._said: set[str] = set()
        self._calls = self._tries = 0
        self._never: str | None = None  # why it is not compiled, whatever its arguments are

    def __call__(self, *arguments: Any) -> Any:
        program, values = self.find(arguments)
        if isinstance(program, str):
            if program not in self._said:
                self._said.add(program)
                tell(f"{self.name} is not compiled: {program}. It runs in plain PyTorch.")
            return run_plain(self.plain, arguments)
        if len(values[program.columns[0]]) < FEWEST:
            return run_plain(self.plain, arguments)
        return program.run(values)

    def why_not(self, *arguments: Any) -> str | None:
        """Why the loss is not compiled for these arguments, as a sentence with file and line; None where it is."""
        found, _ = self.find(arguments)
        return found if isinstance(found, str) else None

    @property
    def name(self) -> str:
        """The plain function's name, for messages."""
        return str(getattr(self.plain, "__qualname__", type(self.plain).__name__))

    def find(self, arguments: tuple[Any, ...]) -> tuple[Any, list[Tensor]]:
        """The program that computes the loss of these arguments, and its inputs; a sentence where there is none."""
        self._calls += 1
        if self._never is not None:
            return self._never, []
        if self._reach is None or not self._reach.is_current():
            with self._lock:
                self._programs, self._refused = [], []
                self._reach = reach(self.plain, _classes(arguments))
        for program in self._programs:
            if (values := program.inputs(arguments)) is not None:
                return self._again(program, arguments, values), values
        from headrace.kernels.rows.inputs import given
        from headrace.kernels.rows.reasons import NotRows

        for known, as_it_was, why in self._refused:
            if known.serves(arguments) and all(examine(module) is seen for module, seen in as_it_was):
                return why, []
        if self._tries >= TRIES + self._calls // CALLS:
            return "something that it reads changes so often that tracing it again takes longer than it saves", []
        self._tries += 1
        with self._lock, _tracing:
            try:
                found = given(self.plain, arguments)
                examined = [(module, examine(module)) for _, module in found.modules]
                reason = _altered(found.modules, [seen for _, seen in examined])
                if reason is None:
                    program = self._program(arguments)
                    if not self._reach.is_current():
                        self._never = "changes what it, or a function that it calls, reads outside"
                        return self._never, []
                    reason = self._differs(program, arguments)
            except NotRows as error:
                reason = str(error)
                if " changes " in f" {reason}":
                    self._never = reason
            except Exception as error:  # plain PyTorch is right, whatever the compiler does
                reason = f"its compiler failed ({type(error).__name__}: {error}): please report it, with the loss"
            if reason is None:
                self._programs = [*self._programs[1 - MOST :], program]
                return program, program.values(arguments)
            with suppress(UnboundLocalError):
                self._refused.append((found, examined, reason))
            return reason, []

    def _program(self, arguments: tuple[Any, ...]) -> Any:
        from headrace.bindings.compiled.loss_program import Program

        return Program(self.plain, arguments, self.name)

    def _differs(self, program: Any, arguments: tuple[Any, ...]) -> str | None:
        """How the compiled loss differs from the plain one; None where it does not."""
        from headrace.bindings.compiled.loss_check import differs

        return differs(program, arguments)

    def _again(self, program: Any, arguments: tuple[Any, ...], values: list[Tensor]) -> Any:
        """The program; compared with the plain loss once more at a later call."""
        program.calls += 1
        if program.calls == LOOK_AGAIN and (reason := self._differs(program, arguments)) is not None:
            with self._lock:
                self._programs.remove(program)
                self._refused.append((program.given, [], reason))
            return reason
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
    """Compute a loss and its gradients by autograd."""
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
    for (name, module), found in zip(modules, examined, strict=True):
        if found.altered:
            return f"in {name}, {found.altered}"
        for path, parameter in module.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return f"{name}.{path} has a gradient hook"
    return None
