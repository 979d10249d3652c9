"""A loss that was compiled, and its calls: addresses of tensors in, gradients out.

Tracing is left out where its result is on disk, and so are the modules that trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.compiled import loss_conditions, lowered
from headrace.bindings.compiled.loss_conditions import Conditions
from headrace.bindings.compiled.loss_tries import Use
from headrace.bindings.compiled.lowered import Lowered
from headrace.core.closure import Reach
from headrace.core.device import kernel_threads
from headrace.kernels.rows import slots
from headrace.kernels.rows.gpu.gpu_program import GpuProgram
from headrace.kernels.rows.reasons import AsksSettings, NotRows, of_compiler
from headrace.kernels.rows.targets.cpu_arguments import FLAGS, LONGS, WORDS
from headrace.kernels.rows.targets.cpu_program import CpuProgram, Layout
from headrace.kernels.rows.targets.records import Constants, GpuLayout, Outcome, Ptx, Record, recorded
from headrace.kernels.rows.tracing.inputs import DTYPES, Source, argument_names
from headrace.kernels.rows.tracing.stand_ins import NUMBER, Metric
from headrace.kernels.runtime.native import Native

NUMPY = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}
_adding = threading.Lock()  # threads may share a network
_BUFFERS = {torch.int64: LONGS, torch.bool: FLAGS}  # others are of words
MOST = 2**31  # whole numbers of a program are below it
WORTH_HELP = 2e6  # floating-point operations below which waking another thread costs more than it saves


@dataclass(frozen=True)
class Result:
    """Output of a loss. learned: the input whose gradient it is; None for the loss itself and for metrics. written: the
    input, a module's buffer, whose new numbers it is."""

    name: str
    learned: Source | None
    written: Source | None
    outcome: Outcome

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the plain function returns it in."""
        return getattr(torch, self.outcome.dtype)  # type: ignore[no-any-return]

    @property
    def is_metric(self) -> bool:
        """True if the result is a metric."""
        return self.outcome.metric


class Program:
    """Machine code of a loss for arguments like these. Raises NotRows where there is none.

    sources: the inputs. results: the loss, its gradients, metrics, and buffers that it writes to. learned, written:
    numbers of results that are gradients, or new numbers of buffers; each with that of the input. looked_up: numbers
    of inputs that may be another tensor at each call. traced: whether this process traced it. use: its calls.
    first: of the arguments. again: trace it whatever is on disk.
    """

    def __init__(
        self, plain: Callable[..., Any], arguments: tuple[Any, ...], name: str, first: Conditions, again: bool = False
    ) -> None:
        self.plain, self.labels = plain, argument_names(plain, len(arguments))
        self.traced, self.digest, self.use = False, first.digest, Use()
        self.conditions, record = self._record(first, arguments, name, again)
        self.given = self.conditions.given
        self.given.leave_out()
        self.sources, self.modules, self.spec = self.given.sources, self.given.modules, record.returned
        self._numbers = [leaf is NUMBER for leaf in self.spec[1] if isinstance(leaf, Metric)]
        pairs = [*zip(self.sources, self.given.values, strict=True)]
        # a parameter or buffer stays what it is, as long as `conditions` hold; others are looked up
        self.registered = [value if source.registered else None for source, value in pairs]
        self._others = [(i, source.find) for i, source in enumerate(self.sources) if not source.registered]
        self.looked_up = [i for i, _ in self._others]
        self._tensors: dict[int, tuple[float, Tensor]] = {}  # of numbers
        self.columns = [i for i, source in enumerate(self.sources) if source.kind == "column"]
        self._wide = [i for i, (_, value) in enumerate(pairs) if value.dtype == torch.int64]
        self.compared = set[int]()  # numbers of rows at which it was compared with the plain function
        self.uniforms = [i for i, source in enumerate(self.sources) if source.kind != "column"]
        self.device, self.work = self.given.device, record.work
        self.code = _loaded(record, self.device)
        self._slots = {i: (slots.column(position), True) for position, i in enumerate(self.columns)}
        for position, i in enumerate(self.uniforms):
            self._slots[i] = slots.given(position, len(self.columns)), False
        self.sizes = [[(inner, power) for inner, power in o.sizes] for o in record.outcomes]
        self.with_rows = [o.rows for o in record.outcomes]
        inputs: dict[int | None, Source | None] = {None: None, **dict(enumerate(self.sources))}
        self.results = [Result(o.name, inputs[o.learned], inputs[o.written], o) for o in record.outcomes]
        self.learned = [(n, o.learned) for n, o in enumerate(record.outcomes) if o.learned is not None]
        # ids of what it has gradients of, where all are parameters that stay; a metric that has a number for each row
        self.learns = {id(self.registered[i]) for _, i in self.learned if self.registered[i] is not None}
        self.of_rows = next((o.name for o in record.outcomes if o.metric and o.rows), None)
        self.written = [(n, o.written) for n, o in enumerate(record.outcomes) if o.written is not None]
        apart = [self.sources[i].name for _, i in self.written if not self.given.values[i].is_contiguous()]
        if apart:
            raise NotRows(f"writes to {apart[0]}, whose numbers do not lie one after the other")

    def _record(
        self, first: Conditions, arguments: tuple[Any, ...], name: str, again: bool
    ) -> tuple[Conditions, Record]:
        """Find the record of the loss, or make it. Settings are inputs, except those that its code chooses by. Where
        that cannot be compiled, all settings are constants."""
        if (reason := first.altered()) is not None:
            raise NotRows(reason)
        seen = first
        while True:
            found = _recorded(seen, lambda seen=seen: self._made(seen, arguments, name, again), again)  # type: ignore[misc]
            if isinstance(found, Record):
                return seen, found
            seen = seen.fixing(arguments, found.names)

    def _made(self, seen: Conditions, arguments: tuple[Any, ...], name: str, again: bool) -> Record:
        """Find the row program of the loss in the package, or trace the loss, and make machine code of it."""
        from headrace.kernels.rows.row_program import Outer, Product

        given, found = seen.given, None if again else lowered.find(seen.given, seen.reach, seen.gradients)
        if isinstance(found, list) and given.moving.isdisjoint(found):
            raise AsksSettings({*found})
        if isinstance(found, Lowered):
            given.leave_out()
            given.read.update(found.read)
        else:
            self.traced, found = True, lowered_of(self.plain, seen, arguments, name)
        try:
            columns = [v for s, v in zip(given.sources, given.values, strict=True) if s.kind == "column"]
            dtypes, by_weights = [NUMPY[column.dtype] for column in columns], seen.target.endswith("by weights")
            split = seen.target.startswith("cpu with tiles")
            planned, code = made(found.program, dtypes, len(columns[0]), given.device, by_weights, split, seen.block)
        except NotRows:
            raise
        except Exception as error:
            raise of_compiler(error) from error
        products = [value for value in planned.program.values() if isinstance(value, Product | Outer)]
        work = sum(2 * v.size * (v.source.shape[-1] if isinstance(v, Product) else 1) for v in products)
        return Record(code.native, code.layout, found.outcomes, found.returned, work)

    def let_go(self) -> Reach:
        """Drop references to the modules, for callers that check the modules themselves, and keep the program with one
        of them. Returns the code that the trace has read."""
        reached = self.conditions.reach
        if any(source.of_module and not source.registered for source in self.sources):
            raise NotRows("reads a tensor of a module that is neither a parameter nor a buffer")
        self.sources = [replace(s, find=_gone) if s.of_module else s for s in self.sources]
        del self.conditions, self.given, self.modules
        return reached

    @property
    def cpu(self) -> CpuProgram:
        """The code, of a program for the CPU."""
        assert isinstance(self.code, CpuProgram)
        return self.code

    def rows(self, arguments: tuple[Any, ...]) -> int:
        """The number of rows of a call."""
        return len(self.sources[self.columns[0]].find(arguments))

    @property
    def is_wide(self) -> bool:
        """True if it has inputs of whole numbers of 64 bits."""
        return bool(self._wide)

    def beyond(self, arguments: tuple[Any, ...]) -> str | None:
        """Name of an input of whole numbers that do not fit into the 32 bits of a program's. None where all do."""
        for i in self._wide:
            value = self.registered[i]
            value = self.sources[i].find(arguments) if value is None else value
            if value.numel() and not -MOST <= int(value.min()) <= int(value.max()) < MOST:
                return f"{self.sources[i].name} has numbers that do not fit into 32 bits"
        return None

    def run(self, values: Sequence[Tensor]) -> Any:
        """The loss and metrics; gradients are added to those that the parameters have."""
        outputs = self.compute(values)
        with _adding:
            for number, place in self.learned:
                parameter = values[place]
                if parameter.grad is not None:
                    _add(parameter.grad, outputs[number])
                else:
                    parameter.grad = outputs[number].view(parameter.shape).to(parameter.dtype)
        for number, place in self.written:
            values[place].copy_(outputs[number])
        return self.returned(outputs)

    def returned(self, outputs: Sequence[Tensor]) -> Any:
        """The loss and its metrics as the plain function returns them, from all outputs."""
        metrics = [x.to(r.dtype) for r, x in zip(self.results, outputs, strict=True) if r.is_metric]
        rest = self.arranged([x.item() if is_one else x for is_one, x in zip(self._numbers, metrics, strict=True)])
        return outputs[0] if isinstance(rest, tuple) and not rest else (outputs[0], rest)

    def arranged(self, metrics: Iterable[Any]) -> Any:
        """Metrics as the plain function returns them, with the numbers that it fixed."""
        (spec, fixed), found = self.spec, iter(metrics)
        leaves = [next(found) if isinstance(leaf, Metric) else leaf for leaf in fixed]
        return torch.utils._pytree.tree_unflatten(leaves, spec)

    def values(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """Inputs of a call, while `conditions` hold. The same tensors as before where nothing is new."""
        found: list[Any] = [*self.registered]
        for i, find in self._others:
            x = find(arguments)
            found[i] = x if isinstance(x, Tensor) else self._tensor(i, x)
        return found

    def _tensor(self, i: int, number: float) -> Tensor:
        """Tensor with the number that is input i."""
        known = self._tensors.get(i)
        if known is None or known[0] is not number:
            known = self._tensors[i] = number, torch.full((), number, device=self.device)
        return known[1]

    def compute(
        self, values: Sequence[Tensor], into: Sequence[Tensor | None] = (), threads: int | None = None
    ) -> list[Tensor]:
        """Compute all outputs from these inputs. into: tensors for some. threads: at most; None for as many as help."""
        rows = len(values[self.columns[0]])
        threads = threads or self.threads(rows)
        memory = self.code.memory(rows, threads)
        kept = self.point(memory.words, values)
        outputs = []
        for position in range(len(self.results)):
            own = into[position] if into else None
            outputs.append(self.output(position, rows) if own is None else own)
            self.point_output(memory.words, position, outputs[-1])
        memory.run(threads)
        memory.give_back()
        del kept
        return outputs

    def point(
        self, words: np.ndarray, values: Sequence[Tensor], only: Iterable[int] | None = None
    ) -> dict[int, Tensor]:
        """Write the addresses of inputs into argument slots. Returns the tensors that lie there, by the numbers of the
        inputs: keep them. only: numbers of inputs; None for all."""
        kept = dict[int, Tensor]()
        for i in range(len(values)) if only is None else only:
            slot, is_column = self._slots[i]
            if is_column:
                kept[i], words[slot + 1], words[slot + 2] = _strides(values[i])
                words[slot] = kept[i].data_ptr()
            else:
                kept[i] = uniform = in_memory(values[i])
                words[slot] = uniform.data_ptr()
        return kept

    def output(self, position: int, rows: int) -> Tensor:
        """Memory for an output of so many rows."""
        shape = [inner * (rows if power else 1) for inner, power in self.sizes[position]]
        integer = self.results[position].outcome.stored == "i32"
        return torch.empty(shape, dtype=torch.int32 if integer else torch.float32, device=self.device)

    def point_output(self, words: np.ndarray, position: int, own: Tensor) -> None:
        """Write the address of an output's memory into its argument slots."""
        first = slots.result(position, *self.code.sizes)
        strides = (0, 1)
        if self.with_rows[position]:
            strides = own.stride() if own.dim() == 2 else (own[0].numel(), 1)  # type: ignore[assignment]
        words[first : first + 3] = own.data_ptr(), *strides

    def writes(self, values: Sequence[Tensor], kept: Mapping[int, Tensor], found: Sequence[Tensor]) -> np.ndarray:
        """The writes of a learning call: see kernels.rows.targets.cpu_arguments.Learning. values: the inputs. kept: the
        tensors that point() gave. found: the outputs."""
        rows = list[tuple[int, int, int, int]]()
        for number, i in self.written:
            for own in {x.data_ptr(): x for x in (kept[i], values[i])}.values():
                rows.append((found[number].data_ptr(), own.data_ptr(), own.numel(), _BUFFERS.get(own.dtype, WORDS)))
        return np.array(rows, np.int64).reshape(-1, 4)

    def threads(self, rows: int) -> int:
        """Number of threads for so many rows: one for each part, but only one for little work."""
        if self.work * rows < WORTH_HELP or not isinstance(self.code, CpuProgram):
            return 1
        return min(kernel_threads(), self.code.layout.parts_of(rows))


def lowered_of(plain: Callable[..., Any], seen: Conditions, arguments: tuple[Any, ...], name: str) -> Lowered:
    """Trace a loss, and make a row program of it."""
    from headrace.kernels.rows.lowering.loss import lower
    from headrace.kernels.rows.tracing.trace_loss import trace

    given = seen.given
    traced = trace(plain, arguments, given, seen.gradients, seen.reach.held())
    seen.traced()
    try:
        program = lower(traced, name)
        sizes = [[list(size) for size in traced.sizes(result.node)] for result in traced.outputs]
    except NotRows:
        raise
    except Exception as error:
        raise of_compiler(error) from error
    places = {source.name: i for i, source in enumerate(given.sources)}
    outcomes = [
        Outcome(
            result.name,
            places[result.learned.name] if result.learned else None,
            places[result.written.name] if result.written else None,
            result.is_metric,
            str(result.dtype).removeprefix("torch."),
            output.view.value.dtype,
            output.view.value.rows,
            own,
        )
        for result, output, own in zip(traced.outputs, program.outputs, sizes, strict=True)
    ]
    return Lowered(program, outcomes, traced.spec, sorted(given.read & given.settings.keys()))


def made(
    program: Any,
    dtypes: list[str],
    rows: int,
    device: torch.device,
    by_weights: bool = False,
    split: bool = False,
    block: int = 0,
) -> tuple[Any, CpuProgram | GpuProgram]:
    """Make the plan of a row program, and its code. by_weights: with few rows, take gradients by weights on the CPU, if
    what is kept for that stays in the caches. split: the processor has tiles of bfloat16. block: see plan()."""
    from headrace.kernels.rows.gpu import gpu_program
    from headrace.kernels.rows.row_plan import ALONE, KEPT
    from headrace.kernels.rows.row_schedule import plan
    from headrace.kernels.rows.targets import cpu_program

    on_gpu = loss_conditions.on_gpu(device)
    block = 0 if on_gpu else block  # of lanes, which a GPU's threads are not
    planned = plan(program, not on_gpu, by_weights, split, block)
    if by_weights and planned.kept > KEPT and block != ALONE:
        planned = plan(program, split=split, block=block)
    if on_gpu:
        return planned, gpu_program.compiled(planned, dtypes, rows, device)
    return planned, cpu_program.compiled(planned, dtypes)


def _recorded(seen: Conditions, make: Callable[[], Record], again: bool) -> Record | Constants:
    """Find a record, or make it. Returns Constants where that needs further settings as constants."""

    def made() -> Record | Constants:
        given = seen.given
        try:
            return make()
        except AsksSettings as error:
            return Constants(frozenset(error.names))
        except NotRows:
            numbers = frozenset(source.name for source in given.sources if source.number) - given.moving
            if not numbers:
                raise
            return Constants(numbers & given.attributes.keys() or numbers)  # those of modules first

    found = recorded(seen.key, seen.reach.places(), seen.given.read, made, again)
    seen.given.read.update(() if seen.key is None else seen.key.read)
    return found


def _gone(_: Any) -> Any:
    raise AssertionError("a program that keeps no module is asked for a module's tensor")


def _loaded(record: Record, device: torch.device) -> CpuProgram | GpuProgram:
    layout, native = record.layout, record.native
    if isinstance(layout, Layout) and isinstance(native, Native):
        return CpuProgram(layout, native)
    assert isinstance(layout, GpuLayout) and isinstance(native, Ptx)
    return GpuProgram(layout, native, device)


def _add(gradient: Tensor, new: Tensor) -> None:
    """Add to a gradient, in this thread. Torch's own threads would spin afterwards, on cores that kernels need."""
    if gradient.is_contiguous() and gradient.dtype == new.dtype and gradient.device.type == "cpu":
        own = gradient.numpy()
        np.add(own, new.numpy(), out=own)
    else:
        gradient.add_(new)


def _strides(column: Tensor) -> tuple[Tensor, int, int]:
    """Strides of a column that a program can read: from row to row, and from number to number."""
    if column.dim() == 1:
        return column, column.stride(0), 1
    if column.dim() == 2:
        return column, column.stride(0), column.stride(1)
    if not column[0].is_contiguous():
        column = column.contiguous()
    return column, column.stride(0), 1


def in_memory(uniform: Tensor) -> Tensor:
    """The tensor, or a copy that a program can read."""
    if uniform.dtype != torch.float32:
        uniform = uniform.to(torch.float32 if uniform.dtype == torch.bool else torch.int32)
    return uniform.contiguous()
