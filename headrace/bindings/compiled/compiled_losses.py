"""hr.compile(): a loss in plain PyTorch, computed with its gradients by machine code that is made of it.

The plain function stays what is right: it runs where the loss cannot be compiled, and the first results of a compiled
one are compared with it. What was compiled serves as long as the code, the modules and the settings that the trace read
are what they were.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headrace.core.terminal import tell

if TYPE_CHECKING:
    from headrace.bindings.compiled.loss_conditions import Conditions
    from headrace.bindings.compiled.loss_program import Program

DEVICES = ("cpu", "cuda")  # whose losses are compiled
FEWEST = 3  # rows: of fewer, a loss may compute something else, as where it takes no deviation of one
LOOK_AGAIN = 100  # the call at which a compiled loss is compared with the plain one again
ROWS = 16  # numbers of rows at which it is: minibatches of ever new lengths would be compared for ever
MOST = 16  # programs of a loss: of more, those are dropped that were not used for the longest
TRIES, CALLS = 32, 50  # programs of a module that are made whatever its calls are; further ones for so many calls each
_compared: set[str] = set()  # keys of programs that this process has compared


@dataclass
class _Tries:
    """Programs made for calls with one module, since a loss' so many-th call."""

    since: int
    made: int = 0


class CompiledLoss:
    """A loss with its gradients; made by compile().

    Calling it gives what the plain function returns, without gradient functions, and adds the loss' gradients to
    `.grad` of the parameters, as loss.backward() would. Several threads may call it at once.
    by_weights: see Conditions.
    """

    def __init__(self, plain: Callable[..., Any], by_weights: bool | None = None) -> None:
        self.plain, self.by_weights = plain, by_weights
        self._lock = threading.Lock()
        self._programs: list[Program] = []  # the one that was used last is the first
        self._refused: list[tuple[Conditions, str]] = []
        self._said: set[str] = set()
        self._never: str | None = None  # why it is not compiled, whatever its arguments are
        self._calls = 0
        self._tries: WeakKeyDictionary[object, _Tries] = WeakKeyDictionary()  # of a module: others are counted apart
        self._changing: WeakKeyDictionary[object, str] = WeakKeyDictionary()  # modules that change too often, and why
        self._last = threading.local()

    def __call__(self, *given: Any, **named: Any) -> Any:
        arguments = self._arguments(given, named)
        program = self.find(arguments)
        if isinstance(program, str):
            if program not in self._said:
                self._said.add(program)
                tell(f"{self.name} is not compiled: {program}. It runs in plain PyTorch.")
            return run_plain(self.plain, arguments)
        values = program.values(arguments)
        if len(values[program.columns[0]]) < FEWEST:
            return run_plain(self.plain, arguments)
        return program.run(values)

    def why_not(self, *given: Any, **named: Any) -> str | None:
        """Why the loss is not compiled for these arguments, as a sentence with file and line; None where it is."""
        found = self.find(self._arguments(given, named))
        return found if isinstance(found, str) else None

    def _arguments(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in the order of the plain function's. Raises TypeError for those that it does not take, or
        takes by name alone."""
        if not named:
            return given
        bound = inspect.signature(self.plain).bind(*given, **named)
        if bound.kwargs:
            names = ", ".join(bound.kwargs)
            raise TypeError(f"{self.name} takes {names} by name alone, and what is compiled has arguments in an order")
        return bound.args

    @property
    def name(self) -> str:
        """The plain function's name, for messages."""
        return str(getattr(self.plain, "__qualname__", type(self.plain).__name__))

    def find(
        self, arguments: tuple[Any, ...], few: Callable[[], tuple[Any, ...]] | None = None, rows: int | None = None
    ) -> Program | str:
        """Find the program that computes the loss of these arguments; a sentence where there is none.

        few: the arguments with fewer rows, on which a program is made and compared. rows: of its calls; None for those
        of the arguments."""
        self._calls += 1
        if (never := self._why_never(arguments)) is not None:
            return never
        for program in self._programs:
            if program.conditions.hold(arguments):
                if program is not self._programs[0]:
                    self._add(program)
                self._last.found = program
                return program.beyond(arguments) or self._again(program, arguments, few, rows)
        for conditions, why in self._refused:
            if conditions.hold(arguments):
                return why
        with self._lock:
            if (never := self._why_never(arguments)) is None and (never := self._gives_up(arguments)) is None:
                return self._make(few() if few else arguments, rows)
            return never

    def _make(self, arguments: tuple[Any, ...], rows: int | None) -> Program | str:
        """A program for arguments that none serves so far, or why there is none."""
        from headrace.kernels.rows.reasons import NotRows, of_compiler

        try:
            program = self._program(arguments)
            reason = self._first_difference(program, arguments)
            if reason is not None and not program.traced:  # what is on disk is of something that its key lacks
                program = self._program(arguments, again=True)
                reason = self._first_difference(program, arguments)
        except NotRows as error:
            if error.for_good:
                self._never = str(error)
            elif (conditions := getattr(error, "conditions", None)) is not None:
                self._refuse(conditions, str(error))
            return str(error)
        except Exception as error:  # plain PyTorch is right, whatever the compiler does
            self._never = str(of_compiler(error))
            return self._never
        if reason is not None:
            program.conditions.keep(reason)
            self._refuse(program.conditions, reason)
            return reason
        program.compared.add(program.rows(arguments) if rows is None else rows)
        self._add(program)
        self._last.found = program
        return program.beyond(arguments) or program

    @property
    def last(self) -> Program:
        """The program that find() gave this thread last: for who has asked it about the same arguments."""
        return self._last.found  # type: ignore[no-any-return]

    def _program(self, arguments: tuple[Any, ...], again: bool = False) -> Program:
        """A program for these arguments; again: traced whatever is on disk."""
        from headrace.bindings.compiled.loss_program import Program

        return Program(self.plain, arguments, self.name, again=again, by_weights=self.by_weights)

    def _differs(self, program: Program, arguments: tuple[Any, ...]) -> str | None:
        """How the compiled loss differs from the plain one; None where it does not."""
        from headrace.bindings.compiled.loss_check import differs

        return differs(program, arguments)

    def _differs_later(self, program: Program, arguments: tuple[Any, ...]) -> str | None:
        """Name the difference from the plain loss on a later call's numbers; None where there is none."""
        from headrace.bindings.compiled.loss_check import differs_later

        return differs_later(program, arguments)

    def _first_difference(self, program: Program, arguments: tuple[Any, ...]) -> str | None:
        """As _differs(), if this process has not compared such a program; None where it has."""
        key = program.conditions.key
        if key is not None and key.digest in _compared and not program.traced:
            return None
        reason = self._differs(program, arguments)
        if reason is None and key is not None:
            _compared.add(key.digest)
        return reason

    def _add(self, program: Program) -> None:
        """Make a program the first of those that are known."""
        others = [own for own in self._programs if own is not program]
        self._programs = [program, *others[: MOST - 1]]

    def _refuse(self, conditions: Conditions, reason: str) -> None:
        self._refused = [(conditions, reason), *self._refused[: MOST - 1]]

    def _why_never(self, arguments: tuple[Any, ...]) -> str | None:
        """Say why calls with this module are not compiled; None where nothing is against it."""
        if self._never is None and self._changing:
            return self._changing.get(self._owner(arguments))
        return self._never

    def _owner(self, arguments: tuple[Any, ...]) -> object:
        """The first module of a call: a loss of many modules is compiled for each."""
        return next((x for x in arguments if isinstance(x, nn.Module)), self)

    def _gives_up(self, arguments: tuple[Any, ...]) -> str | None:
        """Count a try of these arguments' module; say why no further one is made where they take longer than they
        save."""
        owner = self._owner(arguments)
        tries = self._tries.setdefault(owner, _Tries(self._calls))
        calls = self._calls - tries.since
        if tries.made < TRIES + calls // CALLS:
            tries.made += 1
            return None
        known = [program.conditions for program in self._programs] + [conditions for conditions, _ in self._refused]
        change = known[0].change(arguments) if known else "what it is given"
        often = calls // tries.made
        when = "each call" if often < 2 else f"one call in {often}"
        self._changing[owner] = f"it is traced again at {when}, because of {change}"
        return self._changing[owner]

    def _again(
        self,
        program: Program,
        arguments: tuple[Any, ...],
        few: Callable[[], tuple[Any, ...]] | None,
        rows: int | None,
    ) -> Program | str:
        """The program; compared with the plain loss once more at a later call, and at the first of another number of
        rows, by which the loss may choose."""
        if program.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return program
        program.calls += 1
        rows = program.rows(arguments) if rows is None else rows
        new = rows not in program.compared and rows >= FEWEST and len(program.compared) < ROWS
        if program.calls != LOOK_AGAIN and not new:
            return program
        program.compared.add(rows)
        if (reason := self._differs_later(program, few() if few else arguments)) is not None:
            program.conditions.keep(reason)
            with self._lock:
                self._programs = [own for own in self._programs if own is not program]
                self._refuse(program.conditions, reason)
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
