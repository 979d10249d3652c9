"""Compilation of losses, hr.compile(): a loss in plain PyTorch is computed with its gradients by machine code.

The plain function remains the reference: it runs where the loss cannot be compiled, and the first results of a compiled
loss are compared with it. A program serves as long as the code, the modules and the settings that the trace read are
unchanged.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headrace.algorithms.reduce import Reduce, one_learner, size_of
from headrace.bindings.compiled.loss_tries import MOST, Tries, active_run
from headrace.core.looking import users_code
from headrace.core.terminal import tell

if TYPE_CHECKING:
    from headrace.bindings.compiled.loss_conditions import Conditions
    from headrace.bindings.compiled.loss_program import Program

DEVICES = ("cpu", "cuda")  # losses are compiled for these
FEWEST = 3  # rows: with fewer, a loss may compute something else, such as no standard deviation
MANY = 8  # rows that a message advises
LOOK_AGAIN = 100  # the call at which a compiled loss is compared with the plain one again
ROWS = 16  # numbers of rows at which it is: minibatches of ever new lengths would be compared for ever
TRIES, CALLS = 8, 50  # a module may have 8 programs made at once, and one more for each 50 calls
_BY_NAMES = "it takes arguments as **kwargs"
_compared: set[str] = set()  # keys of programs that this process has compared


def too_few(rows: int, length: int, config: Any) -> str | None:
    """Reason why losses of minibatches of so many rows are not compiled. None where they are. length: rows of a
    sequence, which is one row to a loss. config: the algorithm's, whose settings the reason names."""
    if rows // length >= FEWEST:
        return None
    name = next((one for one in ("minibatch_size", "batch_size") if hasattr(config, one)), None)
    size = f"{name} {getattr(config, name)}" if name else f"{rows} rows in a rollout"
    remedy = f"give {name}={MANY * length} or more" if name else "give more num_envs"
    what, seen = f"{rows} rows", size
    if length > 1:
        what = f"{rows // length} sequence{'s' * (rows > length)} of {length} rows"
        seen = f"sequence_length {length}, {size}"
        remedy += ", or a shorter sequence_length"
    return f"minibatches of {what} ({seen}) are learned in plain PyTorch; it is for {FEWEST} or more: {remedy}"


class CompiledLoss:
    """A loss with its gradients; made by compile().

    Calling it gives what the plain function returns, without gradient functions, and adds the loss' gradients to
    `.grad` of the parameters, as loss.backward() would. Several threads may call it at once.
    by_weights, block: see Conditions.
    """

    def __init__(self, plain: Callable[..., Any], by_weights: bool | None = None, block: int = 0) -> None:
        self._given, self._alone = plain, _names_alone(plain)
        self.plain, self.by_weights, self.block = _in_order(plain, self._alone), by_weights, block
        self._lock = threading.Lock()
        self._programs: list[Program] = []  # the one that was used last is the first
        self._refused: list[tuple[Conditions, str]] = []
        self._said: set[str] = set()
        self._tries: WeakKeyDictionary[object, Tries] = WeakKeyDictionary()  # of a module: others are counted apart
        self._last = threading.local()

    def __call__(self, *given: Any, **named: Any) -> Any:
        arguments, others = self._arguments(given, named)
        program = _BY_NAMES if others else self.find(arguments)
        if isinstance(program, str):
            if program not in self._said:
                self._said.add(program)
                tell(f"{self.name} is not compiled: {program}. It runs in plain PyTorch.")
            return run_plain(partial(self.plain, **others), arguments)
        values = program.values(arguments)
        if len(values[program.columns[0]]) < FEWEST:
            return run_plain(self.plain, arguments)
        return program.run(values)

    def why_not(self, *given: Any, **named: Any) -> str | None:
        """Reason why the loss is not compiled for these arguments, with a line if one is known. None where it is."""
        arguments, others = self._arguments(given, named)
        found = _BY_NAMES if others else self.find(arguments)
        return found if isinstance(found, str) else None

    def _arguments(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Sort a call's arguments into those in the order of the plain function's, and those that it takes as **kwargs.
        Raises TypeError for those that it does not take."""
        if not named and not self._alone:
            return given, {}
        bound = inspect.signature(self._given).bind(*given, **named)
        bound.apply_defaults()
        alone = {name: bound.kwargs[name] for name in self._alone}
        others = {name: value for name, value in bound.kwargs.items() if name not in alone}
        return (*bound.args, *alone.values()), others

    @property
    def name(self) -> str:
        """The plain function's name, for messages."""
        return str(getattr(self.plain, "__qualname__", type(self.plain).__name__))

    def find(
        self,
        arguments: tuple[Any, ...],
        few: Callable[[], tuple[Any, ...]] | None = None,
        rows: int | None = None,
        reduce: Reduce = one_learner,
    ) -> Program | str:
        """Find the program that computes the loss of these arguments; a sentence where there is none.

        few: the arguments with fewer rows, on which a program is made and compared. rows: of its calls; None for those
        of the arguments. reduce: sums over learners, which all call this in turn: where one has no program, none has.
        """
        tries = self._tries_of(arguments)
        tries.calls += 1
        found = self._known(arguments, tries, few, rows)
        if found is None:
            with self._lock, users_code():
                found = tries.given_up or self._make(few() if few else arguments, tries, rows)
        if isinstance(found, str):
            return self._agreed(found, "", tries, reduce)
        self._last.found = found
        return self._agreed(found, found.beyond(arguments) or "", tries, reduce)

    def _known(
        self,
        arguments: tuple[Any, ...],
        tries: Tries,
        few: Callable[[], tuple[Any, ...]] | None,
        rows: int | None,
    ) -> Program | str | None:
        """Program that was made for such arguments, or the reason why not. None where neither is known yet."""
        if tries.given_up:
            return tries.given_up
        for program in self._programs:
            if program.conditions.tries is tries and program.conditions.hold(arguments):
                if why := tries.refused.get(program.digest):  # in the run that was resumed after a warm-up
                    return why
                if program is not self._programs[0]:
                    self._add(program)
                program.use = tries.use(program.digest)
                return self._again(program, arguments, few, rows)
        for conditions, why in self._refused:
            if conditions.tries is tries and conditions.hold(arguments):
                return why
        return None

    def _make(self, arguments: tuple[Any, ...], tries: Tries, rows: int | None) -> Program | str:
        """Make a program for arguments that none serves so far. Returns it, or the reason why there is none."""
        from headrace.kernels.rows.reasons import NotRows, of_compiler

        tries.fresh = True
        tries.vary(frozenset().union(*(conditions.varied() for conditions in self._met(tries))))
        first: Conditions | None = None
        try:
            first = self._conditions(arguments, tries)
            resumed = tries.had(first.digest)  # then it was counted, and this is no first call
            if why := (not resumed and self._gives_up(tries, arguments)) or tries.refused.get(first.digest):
                return self._refuse(first, why)
            program = self._program(arguments, first)
            reason = self._first_difference(program, arguments)
            if reason is not None and not program.traced:  # the program on disk depends on something that its key lacks
                program = self._program(arguments, self._conditions(arguments, tries), again=True)
                reason = self._first_difference(program, arguments)
        except NotRows as error:
            if error.for_good:
                tries.given_up = str(error)
            elif first is not None:
                self._refuse(first, str(error))
            else:
                self._gives_up(tries, arguments)
            return str(error)
        except Exception as error:  # plain PyTorch is right, whatever the compiler does
            tries.given_up = str(of_compiler(error))
            return tries.given_up
        if reason is not None:
            return self._differed(program, reason)
        program.use = tries.use(program.digest)
        program.use.calls += resumed
        program.compared.add(program.rows(arguments) if rows is None else rows)
        self._add(program)
        return program

    def _agreed(self, found: Program | str, beyond: str, tries: Tries, reduce: Reduce) -> Program | str:
        """Program, if all learners have found one; otherwise the reason why not. beyond: reason for these numbers."""
        asks = tries.fresh or (not isinstance(found, str) and found.is_wide)
        if size_of(reduce) == 1 or not asks:
            return beyond or found
        tries.fresh, refused = False, isinstance(found, str)
        refusals = torch.tensor([refused, bool(beyond)], dtype=torch.int64)
        reduce(refusals)
        if 0 < refusals[0] < size_of(reduce):
            tries.given_up = found if isinstance(found, str) else "another learner does not compile it"
            return tries.given_up
        return beyond or ("another learner has numbers that do not fit into 32 bits" if refusals[1] else found)

    @property
    def last(self) -> Program:
        """Program that find() gave this thread last. The caller must have called find() for the same arguments."""
        return self._last.found  # type: ignore[no-any-return]

    def _conditions(self, arguments: tuple[Any, ...], tries: Tries) -> Conditions:
        """The loss and these arguments, without their numbers."""
        from headrace.bindings.compiled.loss_conditions import Conditions

        return Conditions(self.plain, arguments, tries, by_weights=self.by_weights, block=self.block)

    def _program(self, arguments: tuple[Any, ...], first: Conditions, again: bool = False) -> Program:
        """Make the program for these arguments. again: trace it even if the disk has it."""
        from headrace.bindings.compiled.loss_program import Program

        return Program(self.plain, arguments, self.name, first, again)

    def _differs(self, program: Program, arguments: tuple[Any, ...]) -> str | None:
        """Describe how the compiled loss differs from the plain one. None where it does not."""
        from headrace.bindings.compiled.loss_check import differs

        return differs(program, arguments)

    def _differs_later(self, program: Program, arguments: tuple[Any, ...]) -> str | None:
        """Name the difference from the plain loss on a later call's numbers; None where there is none."""
        from headrace.bindings.compiled.loss_check import differs_later

        return differs_later(program, arguments)

    def _first_difference(self, program: Program, arguments: tuple[Any, ...]) -> str | None:
        """Same as _differs() if this process has not compared such a program before. None where it has."""
        key = program.conditions.key
        if key is not None and key.digest in _compared and not program.traced:
            return None
        reason = self._differs(program, arguments)
        if reason is None and key is not None:
            _compared.add(key.digest)
        return reason

    def _add(self, program: Program) -> None:
        """Put a program first among the known ones."""
        others = [own for own in self._programs if own is not program]
        self._programs = [program, *others[: MOST - 1]]

    def _refuse(self, conditions: Conditions, reason: str) -> str:
        self._refused = [(conditions, reason), *self._refused[: MOST - 1]]
        return reason

    def _differed(self, program: Program, reason: str) -> str:
        """Refuse the conditions for which a program was made: in the run, or, without a run, for later processes."""
        tries = program.conditions.tries
        tries.refuse(program.digest, reason)
        if tries.run is None:
            program.conditions.keep(reason)
        self._programs = [own for own in self._programs if own is not program]
        return self._refuse(program.conditions, reason)

    def _met(self, tries: Tries) -> list[Conditions]:
        """Known conditions of a module's calls."""
        known = [program.conditions for program in self._programs] + [conditions for conditions, _ in self._refused]
        return [conditions for conditions in known if conditions.tries is tries]

    def _tries_of(self, arguments: tuple[Any, ...]) -> Tries:
        """Tries for a call's first module: a loss of many modules is compiled for each."""
        owner = next((x for x in arguments if isinstance(x, nn.Module)), self)
        found, run = self._tries.get(owner), active_run()
        if found is None or (run is not None and found.run is not run):
            found = self._tries[owner] = Tries() if run is None else run.take(self.name)
        return found

    def _gives_up(self, tries: Tries, arguments: tuple[Any, ...]) -> str:
        """Count a program. Returns the reason why no further one is made, if making them takes too long."""
        if tries.made < TRIES + tries.calls // CALLS:
            tries.made += 1
            return ""
        change = next((conditions.change(arguments) for conditions in self._met(tries)), "what it is given")
        often = tries.calls // tries.made
        when = "each call" if often < 2 else f"one call in {often}"
        tries.given_up = f"it is traced again at {when}, because of {change}"
        return tries.given_up

    def _again(
        self,
        program: Program,
        arguments: tuple[Any, ...],
        few: Callable[[], tuple[Any, ...]] | None,
        rows: int | None,
    ) -> Program | str:
        """Program, compared with the plain loss once more at a later call, and at the first call with another number of
        rows, by which the loss may choose."""
        if program.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return program
        program.use.calls += 1
        rows = program.rows(arguments) if rows is None else rows
        new = rows not in program.compared and rows >= FEWEST and len(program.compared) < ROWS
        if program.use.calls != LOOK_AGAIN and not new:
            return program
        program.conditions.tries.fresh = True
        if program.beyond(arguments):
            return program
        program.compared.add(rows)
        with users_code():
            reason = self._differs_later(program, few() if few else arguments)
        if reason is not None:
            with self._lock:
                return self._differed(program, reason)
        return program


def _in_order(plain: Callable[..., Any], alone: Sequence[str]) -> Callable[..., Any]:
    """Make a function that takes the arguments `alone`, which are keyword-only in `plain`, after the others."""
    if not alone:
        return plain

    @wraps(plain)
    def in_order(*given: Any, **named: Any) -> Any:
        last = len(given) - len(alone)
        return plain(*given[:last], **dict(zip(alone, given[last:], strict=True)), **named)

    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    names = [each for each in inspect.signature(plain).parameters.values() if each.kind is not each.VAR_KEYWORD]
    if all(each.kind is not each.VAR_POSITIONAL for each in names):  # for messages
        own = [each.replace(kind=kind, default=empty) for each in names]
        in_order.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return in_order


def _names_alone(plain: Callable[..., Any]) -> list[str]:
    """Names of a function's keyword-only arguments. Empty for a functools.partial, which gives them places."""
    if isinstance(plain, partial):
        return []
    try:
        parameters = inspect.signature(plain).parameters
    except (TypeError, ValueError):
        return []
    return [name for name, own in parameters.items() if own.kind is own.KEYWORD_ONLY]


def count_again(programs: Sequence[Program]) -> bool:
    """Count another call of the programs that find() has given for these arguments in this moment. False, without a
    count, where find() has to be called again, as for a comparison."""
    if any(program.is_wide or program.use.calls + 1 == LOOK_AGAIN for program in programs):
        return False
    for program in programs:
        program.use.calls += 1
        program.conditions.tries.calls += 1
    return True


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
