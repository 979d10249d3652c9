"""Functions of a module and columns by row programs, wherever they are called, also where gradients are wanted.

A program serves all calls with arguments of one kind, as long as nothing in the module is replaced or moved. Where a
gradient is wanted, a function has two programs: of its outputs, and of its vector-Jacobian product, which computes the
outputs again rather than keep all that they are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headrace.bindings.compiled.compiled_acting import SAMPLE, CompiledOutputs
from headrace.bindings.compiled.loss_program import Program, in_memory
from headrace.bindings.compiled.loss_tries import Tries
from headrace.core.closure import Reach
from headrace.core.fused import AsChosen, traced
from headrace.core.looking import is_noted, note
from headrace.data.rollout import Group, tree_map
from headrace.kernels.rows import slots
from headrace.kernels.rows.reasons import NotRows, of_compiler
from headrace.kernels.rows.row_plan import BY_WEIGHTS, block_for
from headrace.kernels.rows.targets.cpu_program import CpuProgram, Memory
from headrace.policies.examination import Examination, examine, last_examined

MOST = 16  # kinds of arguments of one function and module, for which programs are made
PULLBACKS = 64  # that are kept at most
making = threading.Lock()


class ModuleProgram:
    """A program of a module, as long as nothing in the module is replaced or moved. Several threads may call it at
    once. It does not keep the module.

    worth: floating-point operations below which waking another thread costs more than it saves.
    reach: the code that it was made of. copies: inputs of which a copy is read, since they are not float32: they may
    have other numbers at each call."""

    def __init__(self, program: Program, worth: float = 0.0) -> None:
        self.program, self.reach, self._worth = program, program.let_go(), worth
        self.copies = [i for i, x in enumerate(program.registered) if x is not None and in_memory(x) is not x]
        self._again = sorted({*program.looked_up, *self.copies})  # what may lie elsewhere at each call
        made = [program.output(i, 1) for i in range(len(program.results))]
        places = [slots.result(i, *program.code.sizes) for i in range(len(made))]
        self._outputs = [
            (place, x.shape[1:] if rows else x.shape, rows, x.dtype)
            for place, x, rows in zip(places, made, program.with_rows, strict=True)
        ]
        # of which all rows are the same, and one is computed
        several = zip(program.sizes, program.with_rows, strict=True)
        self._alike = [i for i, (sizes, rows) in enumerate(several) if not rows and any(power for _, power in sizes)]
        self._free: list[Memory] = []  # that no thread is using

    def run(self, given: tuple[Any, ...], moved: bool = False) -> list[Tensor]:
        """Compute all outputs. given: what the function that it was made of takes. moved: whether parameters may lie
        elsewhere than when it was made."""
        program, values = self.program, self.program.values(given)
        rows = values[program.columns[0]].shape[0]
        threads = self.threads(rows)
        memory = self.memory(values)
        memory.prepare(rows, threads)
        kept, found, words = program.point(memory.words, values, None if moved else self._again), [], memory.words
        for place, shape, with_rows, dtype in self._outputs:
            output = torch.empty((rows, *shape) if with_rows else shape, dtype=dtype)
            words[place] = output.data_ptr()
            found.append(output)
        memory.run(threads)
        if not moved:
            self._free.append(memory)
        del kept
        for i in self._alike:
            found[i] = found[i].expand(rows, *found[i].shape[1:]).clone()
        return found

    def threads(self, rows: int) -> int:
        """Number of threads where computing so many rows is worth waking others, else 1."""
        return 1 if self.program.work * rows < self._worth else self.program.threads(rows)

    def memory(self, values: list[Tensor]) -> Memory:
        """Memory of a call, in which the addresses of the module's tensors and the outputs' strides are written. run()
        gives it back."""
        try:
            return self._free.pop()
        except IndexError:  # a first call, or as many at once as never before
            memory = Memory(self.program.cpu)
        self.program.point(memory.words, values)
        for i in range(len(self._outputs)):
            self.program.point_output(memory.words, i, self.program.output(i, 1))
        return memory


class Refused(NamedTuple):
    """A reason why there is no program, and the code that it is about; None where that was not read."""

    reason: str
    reach: Reach | None


def looks(parts: Iterable[Any], sizes: set[int]) -> Hashable | None:
    """All of arguments but their numbers and their rows; None for what no program reads. sizes: numbers of rows are
    added."""
    found = list[Hashable]()
    for x in parts:
        if x is None:
            found.append(None)
        elif isinstance(x, Tensor):
            if not x.dim() or x.device.type != "cpu" or x.layout is not torch.strided or x.requires_grad:
                return None
            size, *shape = x.shape
            sizes.add(size)
            found += (x.dtype, *shape)
        elif isinstance(x, Group):
            names, members = zip(*x, strict=True)
            if (inner := looks(members, sizes)) is None:
                return None
            found += (names, inner)
        else:
            return None
    return (*found,)


def is_current(reach: Reach | None) -> bool:
    """True if code is what it was."""
    if reach is not None and not is_noted(reach):
        if not reach.is_current():
            return False
        note(reach)
    return True


def made(compiled: CompiledOutputs, given: tuple[Any, ...], rows: int, worth: float = 0.0) -> ModuleProgram | Refused:
    """A program, or why there is none. It is made of SAMPLE rows, whatever their number is."""
    numbers, reach = torch.arange(SAMPLE) % rows, None
    module, *columns = given
    given = module, *(tree_map(lambda x: x[numbers], column) for column in columns)
    try:
        conditions = compiled._conditions(given, Tries(), block_for(rows))
        reach = conditions.reach
        program = compiled._program(given, conditions)
        if not isinstance(program.code, CpuProgram):
            return Refused("it is no program for the CPU", reach)
        if program.code.layout.phases > 1 and not compiled.sums:
            return Refused("a row of its result depends on the others", reach)
        return ModuleProgram(program, worth)
    except NotRows as error:
        return Refused(str(error), reach)
    except Exception as error:  # plain PyTorch is right, whatever the compiler does
        return Refused(str(of_compiler(error)), reach)


@lru_cache(PULLBACKS)
def _pullback(plain: Callable[..., Tensor], wanted: tuple[bool, ...], by_weights: bool) -> CompiledOutputs:
    """The vector-Jacobian product: gradients of columns, and of parameters of the module behind them, which are sums
    over rows, from that of the output. wanted: which."""

    def pulled(module: nn.Module, gradient: Tensor, *columns: Tensor) -> Any:
        with torch.enable_grad():
            given = [x.detach() for x in columns]
            tensors = [*given, *module.parameters()]
            chosen = [x.requires_grad_() for x, want in zip(tensors, wanted, strict=True) if want]
            found = torch.autograd.grad(plain(module, *given), chosen, gradient, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(chosen, found, strict=True)]

    return CompiledOutputs(pulled, by_weights, sums=True)


class Programs(NamedTuple):
    """The programs of a RowFunction for calls of one kind. wanted: of which columns, and then parameters, gradients
    are; empty for none. pullback: None for none. key: see RowFunction.find()."""

    outputs: ModuleProgram
    pullback: ModuleProgram | None
    wanted: tuple[bool, ...]
    key: Hashable

    @property
    def reach(self) -> Reach | None:
        """The code that they were made of."""
        return self.outputs.reach


class LastFound(threading.local):
    """Programs that a thread has found last for a call, and the ids of its arguments: a kernel takes what was found
    when it was asked whether it serves the call."""

    call: tuple[int, ...] = ()
    found: Any = None

    def answer(self, found: Any, *call: object) -> bool | str:
        """True if there are programs for a call. found: these; else why there are none, or None, or False."""
        serves = not isinstance(found, str | bool | None)
        self.found, self.call = (found, (*map(id, call),)) if serves else (None, ())
        return True if serves else found or False

    def take(self, *call: object) -> Any:
        """Programs that answer() was given for this call, if it was the last; else None. They are not kept."""
        found = self.found if self.call == (*map(id, call),) else None
        self.found, self.call = None, ()
        return found


class RowFunction:
    """A function of a module and columns. plain(module, *columns): a tensor with a row for each row of the columns; of
    Headrace's and torch's code, since nothing compares the programs with it."""

    def __init__(self, plain: Callable[..., Tensor]) -> None:
        self.plain = plain

        def outputs(module: nn.Module, *columns: Tensor) -> list[Tensor]:
            return [plain(module, *columns)]

        self._outputs = CompiledOutputs(outputs)

    def find(self, module: nn.Module, columns: Sequence[Tensor]) -> Programs | str | None:
        """The programs for such columns; why there are none, or None where that need not be said."""
        seen = examine(module)
        if seen.altered:
            return seen.altered
        wanted = tuple([x.requires_grad for x in (*columns, *seen.parameters)]) if torch.is_grad_enabled() else ()
        detached = [x.detach() for x in columns]
        sizes: set[int] = set()
        look = looks(detached, sizes)
        if look is None or len(sizes) != 1 or 0 in sizes or torch._C._are_functorch_transforms_active():
            return None
        rows = sizes.pop()
        wanted = wanted if True in wanted else ()
        key = self, look, wanted, block_for(rows), rows <= BY_WEIGHTS
        found = seen.kept.get(key)
        if found is None or not is_current(found.reach):
            with making:
                found = seen.kept[key] = self._made(seen, module, detached, key)
        return found if isinstance(found, Programs) else AsChosen(found.reason)

    def _made(self, seen: Examination, module: nn.Module, columns: list[Tensor], key: Any) -> Programs | Refused:
        _, _, wanted, _, by_weights = key
        if sum(1 for own in seen.kept if isinstance(own, tuple) and own[0] is self) >= MOST:
            return Refused(f"it is given columns of more than {MOST} kinds", None)
        rows = len(columns[0])
        outputs = made(self._outputs, (module, *columns), rows)
        if isinstance(outputs, Refused) or not wanted:
            return outputs if isinstance(outputs, Refused) else Programs(outputs, None, wanted, key)
        gradient = outputs.program.output(0, rows)
        pullback = made(_pullback(self.plain, wanted, by_weights), (module, gradient, *columns), rows)
        return pullback if isinstance(pullback, Refused) else Programs(outputs, pullback, wanted, key)

    def run(self, programs: Programs, module: nn.Module, columns: Sequence[Tensor]) -> Tensor:
        """The output, by programs that find() gave for this call."""
        if not programs.wanted:
            return programs.outputs.run((module, *columns))[0]
        parameters = last_examined(module).parameters
        found = _Differentiable.apply(self.plain, programs, module, len(columns), *columns, *parameters)
        return found  # type: ignore[no-any-return]


class _Differentiable(torch.autograd.Function):
    """A RowFunction of columns and parameters."""

    @staticmethod
    def forward(
        ctx: Any, plain: Callable[..., Tensor], programs: Programs, module: nn.Module, count: int, *tensors: Tensor
    ) -> Tensor:
        ctx.plain, ctx.programs, ctx.module, ctx.count = plain, programs, module, count
        ctx.save_for_backward(*tensors)
        return programs.outputs.run((module, *tensors[:count]))[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        tensors, programs, module = ctx.saved_tensors, ctx.programs, ctx.module
        columns, wanted = tensors[: ctx.count], programs.wanted
        if torch.is_grad_enabled():  # create_graph=True: the gradients must be differentiable
            chosen = [x for x, want in zip(tensors, wanted, strict=True) if want]
            with traced():  # by no kernel
                output = ctx.plain(module, *columns)
            found = torch.autograd.grad(output, chosen, gradient, create_graph=True, allow_unused=True)
        else:
            moved = examine(module).kept.get(programs.key) is not programs
            found = programs.pullback.run((module, gradient, *columns), moved)
        gradients = iter(found)
        return None, None, None, None, *(next(gradients) if want else None for want in wanted)
