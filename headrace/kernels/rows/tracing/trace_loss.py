"""Tracing of a loss in plain PyTorch to a graph of torch's operations, with its gradients.

The loss runs once on copies of its tensors, for what it keeps for later calls, such as caches. Then it is traced three
times on tensors that have shapes and no numbers, with prime numbers of rows. A number that differs between the traces
depends on the number of rows: it must be c * rows or c / (rows - d) of whole c and d.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._pytree import tree_flatten, tree_map

from headrace.core.fused import traced
from headrace.kernels.rows.reasons import AsksSettings, NotRows, of_error, place_in, place_of_code
from headrace.kernels.rows.row_program import Count
from headrace.kernels.rows.tracing.as_traced import as_traced
from headrace.kernels.rows.tracing.asked import Asked
from headrace.kernels.rows.tracing.by_rows import MARKS, PRIMES, of_rows
from headrace.kernels.rows.tracing.captured import plain_function
from headrace.kernels.rows.tracing.decompositions import table, writing
from headrace.kernels.rows.tracing.graph_recorder import places, record, replay
from headrace.kernels.rows.tracing.inputs import CONSTANT, DTYPES, Given, Source, argument_names
from headrace.kernels.rows.tracing.nodes import given as argument_of
from headrace.kernels.rows.tracing.nodes import leave_out, operation_name
from headrace.kernels.rows.tracing.selections import Selections, name_counts
from headrace.kernels.rows.tracing.side_effects import Kept, Watch
from headrace.kernels.rows.tracing.stand_ins import METRIC, NUMBER, StandIns, is_buffer, replacing, standing_in
from headrace.kernels.rows.tracing.writes import replaced_writes

LARGEST = 4096  # numbers of a tensor that a program's text contains
COPIES = {"detach", "clone", "alias", "lift_fresh", "contiguous"}
# operations that are compiled for uint8; in others it wraps around at 256
OF_BYTES = {"view", "_unsafe_view", "permute", "transpose", "unsqueeze", "squeeze", "slice", "select", "expand"}
OF_BYTES |= {"cat", "stack", "clone", "split", "split_with_sizes", "unbind", "unfold", "getitem", "where", "gather"}
RANDOM = {"rand", "randn", "rand_like", "randn_like", "randint", "normal", "bernoulli", "native_dropout", "multinomial"}


@dataclass(frozen=True)
class Result:
    """Output of a traced loss. learned: the input whose gradient it is; None for the loss itself and for metrics.
    written: the input, a module's buffer, whose new numbers it is."""

    name: str
    node: Node
    learned: Source | None = None
    written: Source | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the plain function returns it in."""
        return _value(self.node, 0).dtype

    @property
    def is_metric(self) -> bool:
        """True if the result is a metric."""
        return self.name.startswith("metric")


class Traced:
    """Graphs of a loss, one for each number of rows; nodes are the first's.

    inputs: in the order of placeholders. spec: how the metrics are to be put together again.
    """

    def __init__(self, graphs: list[Graph], inputs: list[Source], results: list[Result], spec: Any) -> None:
        self.graphs, self.inputs, self.outputs, self.spec = graphs, inputs, results, spec
        self.graph = graphs[0]
        self._selections = [Selections(graph) for graph in graphs]
        self.selections = self._selections[0]
        nodes = [list(graph.nodes) for graph in graphs]
        if len({tuple(map(_text, own)) for own in nodes}) != 1:
            raise NotRows(
                "computes something else for another number of rows, or at each call (such as by random numbers)"
            )
        name_counts(graphs, self._selections)
        nodes = [list(graph.nodes) for graph in graphs]
        self._alike = dict(zip(nodes[0], zip(*nodes, strict=True), strict=True))

    def refusal(self, node: Node, sentence: str) -> NotRows:
        """Make an error that says why a node cannot be compiled, with the user's line that made it."""
        return NotRows(sentence, _place(node))

    def sizes(self, node: Node, result: int = 0) -> list[tuple[int, int]]:
        """(c, k) for each dimension of a result: its size is c * rows^k."""
        shapes = []
        for own, selections in zip(self._alike[node], self._selections, strict=True):
            shapes.append([selections.size(size) for size in _value(own, result).shape])
        return [self._size(node, sizes) for sizes in zip(*shapes, strict=True)]

    def _size(self, node: Node, sizes: tuple[int, ...]) -> tuple[int, int]:
        if len(set(sizes)) == 1:
            return sizes[0], 0
        times = {Fraction(size, rows) for size, rows in zip(sizes, PRIMES, strict=True)}
        if len(times) == 1 and (whole := times.pop()).denominator == 1:
            return int(whole), 1
        raise self.refusal(node, f"has a dimension that is no multiple of the rows ({sizes[0]} of {PRIMES[0]} rows)")

    def dtype(self, node: Node, result: int = 0) -> str:
        """The dtype of a result."""
        dtype = _value(node, result).dtype
        wraps = dtype == torch.uint8 and node.op == "call_function" and operation_name(node) not in OF_BYTES
        if dtype not in DTYPES or wraps:
            raise self.refusal(node, f"computes in {str(dtype).removeprefix('torch.')}; float32 is compiled")
        return DTYPES[dtype]

    def count(self, node: Node) -> int:
        """Number of results of a node."""
        return len(node.meta["val"])

    def constant(self, node: Node) -> tuple[list[float | Count], list[int]] | None:
        """Numbers and shape of a tensor that the loss makes from numbers. None for 0, 1, 2 ... over the rows."""
        values: list[Tensor] = [own.meta["constant"] for own in self._alike[node]]
        if all(v.shape == (n,) and v.equal(torch.arange(n)) for v, n in zip(values, PRIMES, strict=True)):
            return None
        value = values[0]
        if value.numel() > LARGEST or any(other.shape != value.shape for other in values):
            raise self.refusal(node, f"makes a tensor of {value.numel()} numbers; up to {LARGEST} are compiled")
        found: list[float | Count] = []
        for numbers in zip(*(other.double().reshape(-1).tolist() for other in values), strict=True):
            same = len(set(map(repr, numbers))) == 1
            number = numbers[0] if same else None if value.shape else of_rows(list(numbers))
            if number is None:
                raise self.refusal(node, "makes a tensor of numbers that depend on the rows")
            found.append(number)
        return found, list(value.shape)

    def multiple(self, number: int) -> int | None:
        """Quotient of a number in the first trace and its rows; None where it is not whole."""
        return number // PRIMES[0] if number % PRIMES[0] == 0 else None

    def number(self, node: Node, name: str) -> float | Count | None:
        """A number among a node's arguments."""
        found = [argument_of(own, name) for own in self._alike[node]]
        if found[0] is None:
            return None
        if any(isinstance(one, Node) for one in found):
            raise self.refusal(node, f"has a {name} that depends on the data")
        if len(set(map(repr, found))) == 1:
            return float(found[0])
        if (count := of_rows([float(number) for number in found])) is not None:
            return count
        reason = "has a number that differs between calls (such as of random or time)"
        raise self.refusal(node, f"{reason}, or depends on the rows in no simple way: {found[0]!r}")


def trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    found: Given,
    gradients: bool = True,
    read: Iterable[tuple[str, Any]] = (),
) -> Traced:
    """Trace a loss and its gradients; without gradients, a function of rows. read: values that the functions which it
    calls read. Raises NotRows."""
    with replacing:  # what the function changes is watched
        return _trace(function, arguments, found, gradients, Watch(function, found, read))


def _trace(
    function: Callable[..., Any], arguments: tuple[Any, ...], found: Given, gradients: bool, watch: Watch
) -> Traced:
    graphs, results, spec = list[Graph](), list[tuple[str, Source | None, Source | None]](), None
    states, at_once = (torch.get_rng_state(), np.random.get_state(), random.getstate()), True
    for rows in (0, *PRIMES):
        work = _Work(function, arguments, found, gradients, rows)
        try:
            if rows:
                graph, at_once = work.graph(at_once)
                graphs.append(graph)
            else:  # what it keeps for later calls, as by functools.cache, it makes of real tensors
                work.run(*(value.detach().clone() for value in found.values))
                if names := work.asked - found.moving:
                    raise AsksSettings(names)
        except NotRows:
            raise
        except Exception as error:
            raise of_error(error) from None
        finally:
            drew = not rows and not _same_draws(states[1:])
            changed = watch.restore()
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])
        if drew:
            text = "draws random numbers of Python's or NumPy's: give them as a column of the minibatch"
            raise NotRows(text, _begins(function), for_good=True)
        if changed:
            raise NotRows(f"changes {changed} when it is called", _begins(function), for_good=True)
        if graphs[1:] and work.spec != spec:
            raise NotRows("returns a number that depends on the count of rows; torch.tensor() of it can be compiled")
        results, spec = work.results, work.spec
    leave_out(graphs, found)
    (output,) = [node for node in graphs[0].nodes if node.op == "output"]
    nodes = output.args[0]
    made = [Result(name, node, *which) for (name, *which), node in zip(results, nodes, strict=True)]
    # a buffer that is still the given tensor was not written to
    made = [result for result in made if result.written is None or result.node.op != "placeholder"]
    return Traced(graphs, found.sources, made, spec)


def _same_draws(states: tuple[Any, Any]) -> bool:
    """Tell whether NumPy's and Python's own generators are where they were."""
    (name, keys, *rest), python = states
    now: Any = np.random.get_state()
    return random.getstate() == python and now[0] == name and np.array_equal(now[1], keys) and [*now[2:]] == rest


class _Work:
    """One trace, at one number of rows."""

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], found: Given, gradients: bool, rows: int
    ) -> None:
        self.function, self.arguments, self.found, self.gradients = function, arguments, found, gradients
        self.rows, self.asked = rows, set[str]()
        self.shapes = [_shape(s, v, rows) for s, v in zip(found.sources, found.values, strict=True)]
        self.results: list[tuple[str, Source | None, Source | None]] = []
        self.spec: Any = None
        self._numbers: dict[int, Tensor] = {}

    def graph(self, at_once: bool) -> tuple[Graph, bool]:
        """The functional graph, in few kinds of operations, and whether one trace made it. at_once: try that."""
        with as_traced() as mode:
            self._numbers = mode.numbers
            one = self._at_once() if at_once else None
            _refuse_random(made := one or self._in_two())
        _simplify(made)
        return made, one is not None

    def _at_once(self) -> Graph | None:
        """Make the graph by one trace. None where other tensors see writes, or where such a trace fails: then two
        traces tell why."""
        try:
            made = record(self.run, self.shapes, table(), MARKS[PRIMES.index(self.rows)])
        except Exception as error:
            if isinstance(error, NotRows) and error.where:
                raise
            return None
        return made if replaced_writes(made) else None

    def _in_two(self) -> Graph:
        """The graph by two traces: the second has no writes, and operations taken apart."""
        self._numbers.clear()
        made = record(self.run, self.shapes, writing(), MARKS[PRIMES.index(self.rows)])
        _refuse_random(made)
        functional = torch.func.functionalize(partial(replay, made), remove="mutations_and_views")
        return record(functional, self.shapes, table(), MARKS[PRIMES.index(self.rows)])

    def run(self, *values: Tensor) -> list[Tensor]:
        """The loss, its gradients, and the metrics."""
        made = standing_in(
            self.function, self.arguments, self.found, self.found.values, values, floats=True, gradients=self.gradients
        )
        with made as used, places(), torch.enable_grad(), traced():
            versions = {key: tensor._version for key, tensor in used.tensors.items()}
            given = zip(argument_names(self.function, len(used.arguments)), used.arguments, strict=True)
            copies = Kept([] if self.rows else given)  # of the arguments' containers, which a caller would see changed
            with Asked({} if self.rows else used.numbers) as asking:
                returned = self.function(*used.arguments)
            self.asked = asking.names
            if changed := copies.restore():
                raise NotRows(f"changes {changed} when it is called", _begins(self.function), for_good=True)
        written, learned = self._written(used, versions), used.learned
        if not self.gradients:
            leaves, spec = tree_flatten(returned)
            self.spec = spec, [METRIC] * len(leaves)
            self.results = [(f"output {i}", None, None) for i in range(len(leaves))]
            return leaves
        if isinstance(returned, tuple) and len(returned) != 2:
            text = f"returns {len(returned)} values: a loss returns a scalar, or (scalar, metrics)"
            raise NotRows(f"{text} with all metrics in one dict, list or tuple", _begins(self.function))
        loss, rest = returned if isinstance(returned, tuple) else (returned, ())
        if not isinstance(loss, Tensor) or loss.dim():
            raise NotRows("returns no scalar loss", _begins(self.function))
        leaves, self.spec = tree_flatten(rest)
        grads = torch.autograd.grad(loss, [value for _, value in learned], allow_unused=True)
        pairs = [(source, g) for (source, _), g in zip(learned, grads, strict=True) if g is not None]
        self.results = [("loss", None, None), *((f"gradient of {source.name}", source, None) for source, _ in pairs)]
        if any(leaf is number for leaf in leaves for number in used.numbers.values()):
            raise NotRows("returns a setting among its metrics")  # traced again, with settings as constants
        for leaf in leaves:
            if not isinstance(leaf, (Tensor, *CONSTANT)):
                kinds = "scalars, and dicts, lists and tuples of them, are compiled"
                raise NotRows(f"returns an object of the class {type(leaf).__name__} as a metric; {kinds}")
        metrics = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.results += [(f"metric {i}", None, None) for i, leaf in enumerate(metrics) if isinstance(leaf, Tensor)]
        self.results += [(f"buffer {source.name}", None, source) for source, _ in written]
        marks = [NUMBER if id(leaf) in self._numbers else METRIC for leaf in leaves]
        fixed = [mark if isinstance(leaf, Tensor) else leaf for mark, leaf in zip(marks, metrics, strict=True)]
        self.spec = self.spec, fixed
        tensors_ = [leaf for leaf in metrics if isinstance(leaf, Tensor)]
        return [loss.detach(), *(g for _, g in pairs), *tensors_, *(value for _, value in written)]

    def _written(self, used: StandIns, versions: dict[int, int]) -> list[tuple[Source, Tensor]]:
        """All buffers as the loss leaves them. Raises NotRows where it writes to anything else."""
        sources = {id(own): source for source, own in zip(self.found.sources, self.found.values, strict=True)}
        buffers = [id(own) for s, own in zip(self.found.sources, self.found.values, strict=True) if is_buffer(s, own)]
        for key, version in versions.items():
            # what has no gradients is called at each step of an environment, and would have to write each time
            if used.tensors[key]._version != version and (key not in buffers or not self.gradients):
                raise NotRows(f"writes to {sources[key].name}")
        return [(sources[key], used.tensors[key]) for key in buffers]


def _begins(function: Callable[..., Any]) -> str:
    """The line at which a loss begins, for what is known of the whole alone."""
    return place_of_code(plain_function(getattr(function, "func", function)))


def _shape(source: Source, value: Tensor, rows: int) -> Tensor:
    """A tensor like one that is given, of so many rows, without numbers."""
    shape = (rows, *value.shape[1:]) if source.kind == "column" else value.shape
    return torch.empty(shape, dtype=value.dtype, device="meta")


def _refuse_random(graph: Graph) -> None:
    for node in graph.nodes:
        name = getattr(getattr(node.target, "_overloadpacket", None), "__name__", "")
        if name.rstrip("_") in RANDOM:
            raise NotRows("draws random numbers: give them as a column of the minibatch", _place(node))


def _simplify(graph: Graph) -> None:
    """Remove copies, parts of joins that have no numbers, and values that nothing reads; keep one of equal nodes."""
    known: dict[object, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        name = getattr(getattr(node.target, "_overloadpacket", None), "__name__", "").removesuffix("_copy")
        if name == "cat":
            kept = [part for part in node.args[0] if _value(part, 0).numel()]  # type: ignore[arg-type, union-attr]
            node.args = kept or node.args[0], *node.args[1:]  # type: ignore[assignment]
        key = (node.target, repr(node.args), repr(node.kwargs))
        same = node.args[0] if name in COPIES else known.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _text(node: Node) -> str:
    return f"{node.op} {node.target} {tree_map(lambda x: str(x) if isinstance(x, Node) else '', node.args)}"


def _value(node: Node, result: int) -> Tensor:
    found = node.meta["val"]
    return found[result] if isinstance(found, list | tuple) else found  # type: ignore[no-any-return]


def _place(node: Node) -> str:
    """Line of the user's that made a node; for a node of a gradient, that of the nearest value that it comes from."""
    seen = [node]
    for one in seen:  # more of them with each
        if place := place_in(one.meta.get("stack_trace")):
            return place
        seen += [x for x in one.all_input_nodes if x not in seen]
    return ""
