"""Recorder of what a function computes, as a graph of torch's operations. The function is called with tensors that have
no numbers.

torch's own tracer does the same in five times the time, while a training with a loss of the user's waits for it.
Importing it takes another second.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from headrace.kernels.rows.reasons import NotRows, of_error, place_in, stack_here
from headrace.kernels.rows.tracing.nodes import name_of
from headrace.kernels.rows.tracing.quick_shapes import quick_shape
from headrace.kernels.rows.tracing.symbols import CHOOSES, CPU, DEVICE, READS, Marked, Symbol

SIZE = "makes a tensor whose size depends on the data, by {}; rows that a boolean index chooses are compiled"
FOREIGN = "uses a tensor that is not the loss' to see: give it, or the object that holds it, as an argument"
PLACE = "place of headrace"  # among the metadata of torch's nodes of gradients
LONGEST = 50_000  # operations of a graph: of more, a loop in Python asks for what no program should be
Rules = Mapping[Any, Callable[..., Any]]

_aten = torch.ops.aten
_GIVEN = {_aten.lift_fresh.default, _aten.lift.default, _aten.lift_fresh_copy.default}  # of numbers, as by torch.tensor
_INDEXING = {_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_INDEXING |= {_aten._index_put_impl_.default, _aten._unsafe_index_put.default}


def record(function: Callable[..., Sequence[Tensor]], shapes: Sequence[Tensor], rules: Rules, first: int) -> Graph:
    """Record the graph of what a function of tensors returns.

    shapes: of the arguments, as tensors of torch's meta device. rules: functions that decompose operations, as in
    torch's `decomposition_table`. first: the least prime number that stands for a count of chosen numbers.
    """
    recorder = Recorder(rules, first)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # of weights, which are others in the next trace
    try:
        with recorder:
            returned = function(*(recorder.given(shape) for shape in shapes))
    finally:
        torch.set_autocast_cache_enabled(cached)
    if any(not isinstance(x, Symbol) for x in returned):
        raise NotRows(FOREIGN)
    recorder.graph.output([x.node for x in returned])  # type: ignore[attr-defined]
    return recorder.graph


class Recorder(TorchDispatchMode):
    """Record operations within this block as nodes of `graph`. place: the user's line of the operation that is
    recorded, found where `finds_places`."""

    def __init__(self, rules: Rules, first: int) -> None:
        super().__init__()
        self.graph, self.rules, self.place, self.finds_places = Graph(), rules, "", False
        self._inside, self._marks, self._primes = False, dict[Node, int](), _primes(first)
        self._known: list[Symbol] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch's compiler, which would have to be imported, meets no recorder."""
        return False

    def given(self, shape: Tensor) -> Symbol:
        """An argument of the function."""
        return self._symbol(self.graph.placeholder(f"arg{len(self.graph.nodes)}"), shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return CPU
        if self._inside:
            return self._operation(func, args, kwargs or {})
        self._inside, Marked.shown = True, False
        if (of_gradient := torch._C._current_autograd_node()) is not None:
            self.place = of_gradient.metadata.get(PLACE, "")  # type: ignore[attr-defined]
        elif self.finds_places:
            self.place = stack_here()
        try:
            return self._operation(func, args, kwargs or {})
        finally:
            self._inside, Marked.shown = False, True

    def _operation(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Decompose an operation, or record it."""
        rule = self.rules.get(func) or (func.decompose if _is_composite(func) else None)
        if rule is not None:
            with self:
                found = rule(*args, **kwargs)
            if found is not NotImplemented:
                return found
        symbols = [x for x in _flat((args, kwargs)) if isinstance(x, Tensor)]
        if func in _GIVEN and symbols and not isinstance(symbols[0], Symbol):
            return self._constant(symbols[0])
        if any(not isinstance(x, Symbol) for x in symbols):
            raise NotRows(FOREIGN, place_in(self.place))
        if torch.Tag.data_dependent_output in func.tags:
            return self._number(func, args, kwargs, symbols)
        return self._recorded(func, args, kwargs, symbols)

    def _constant(self, value: Tensor) -> Symbol:
        """Record numbers from which the function has made a tensor."""
        node = self.graph.get_attr(f"constant{len(self.graph.nodes)}")
        value = value.detach().clone()
        made = self._symbol(node, torch.empty_like(value, device="meta"), value if value.numel() == 1 else None)
        node.meta["constant"] = value
        return made

    def _number(self, func: Any, args: Any, kwargs: Mapping[str, Any], symbols: list[Any]) -> Any:
        """Return a number that Python reads from a tensor. Raises NotRows if it depends on the function's arguments."""
        if any(x.known is None for x in symbols):
            chooses = symbols[0].dtype == torch.bool
            raise NotRows(CHOOSES if chooses else READS, place_in(self.place))
        return _of_known(func, args, kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: Mapping[str, Any], symbols: list[Any]) -> Any:
        if torch.Tag.inplace_view in func.tags:  # the nodes so far keep the sizes that were
            for x in symbols:
                x.like = x.like.detach()
        found = self._of_shapes(func, args, kwargs)
        if not any(isinstance(x, Tensor) for x in _flat(found)):
            return found  # about a tensor, such as whether it is contiguous
        if len(self.graph.nodes) > LONGEST:
            raise NotRows(f"computes more than {LONGEST:,} operations, such as in a long loop", self._busiest())
        node = self.graph.call_function(func, *(_mapped(x, lambda s: s.node) for x in (args, kwargs)))
        if func._schema.is_mutable:
            return self._written(func, args, kwargs, node, found, symbols)
        if isinstance(found, Tensor):
            known = symbols and found.numel() == 1 and all(x.known is not None for x in symbols)
            fixed = known and torch.Tag.nondeterministic_seeded not in func.tags
            return self._symbol(node, found, _of_known(func, args, kwargs) if fixed else None)
        self._describe(node, found)
        return type(found)(self._part(node, i, like) for i, like in enumerate(found))

    def _busiest(self) -> str:
        """The user's line with the most operations."""
        places = Counter(filter(None, (node.meta.get("stack_trace") for node in self.graph.nodes)))
        return place_in(max(places, key=places.__getitem__, default=self.place))

    def _of_shapes(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The results of an operation, as tensors of torch's meta device."""
        likes, others = (_mapped(x, lambda symbol: symbol.like) for x in (args, {**kwargs, **_on_meta(func)}))
        if (found := quick_shape(func, likes, kwargs)) is not None:
            return found
        if func in _INDEXING:
            likes = (likes[0], [part for index in args[1] for part in self._indices(index)], *likes[2:])
        elif torch.Tag.dynamic_output_shape in func.tags:
            raise NotRows(SIZE.format(name_of(func)), place_in(self.place))
        return func(*likes, **others)

    def _indices(self, index: Symbol | None) -> list[Tensor | None]:
        """Replace an index of truth values by the integers of the places that they choose."""
        like = None if index is None else index.like
        if index is None or like is None or like.dtype not in (torch.bool, torch.uint8):
            return [like]
        if index.node not in self._marks:
            self._marks[index.node] = next(self._primes)
        return [torch.empty(self._marks[index.node], dtype=torch.long, device="meta")] * like.dim()

    def _written(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], node: Node, found: Any, symbols: list[Any]
    ) -> Any:
        """The results of an operation that writes to its arguments: the same tensors where it returns these."""
        if torch.Tag.inplace_view in func.tags:  # also the sizes of the tensor itself
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
        places = {_storage(symbol) for symbol in symbols}
        for symbol in self._known:  # also the tensor that this is a view of
            if _storage(symbol) in places:
                symbol.known = None
        own = {id(symbol.like): symbol for symbol in symbols}
        if isinstance(found, Tensor):
            return self._symbol(node, found, own=own.get(id(found)))
        self._describe(node, found)
        return type(found)(self._part(node, i, like, own.get(id(like))) for i, like in enumerate(found))

    def _part(self, node: Node, i: int, like: Any, own: Symbol | None = None) -> Any:
        """One of several results."""
        if not isinstance(like, Tensor):
            return like
        return self._symbol(self.graph.call_function(operator.getitem, (node, i)), like, own=own)

    def _symbol(self, node: Node, like: Tensor, known: Tensor | None = None, own: Symbol | None = None) -> Symbol:
        """Tensor that a node computes. own: the tensor that was written to."""
        self._describe(node, like)
        if own is not None:
            own.node = node
            return own
        made = Symbol(like, node, known)
        if known is not None:
            self._known.append(made)
        return made

    def _describe(self, node: Node, found: Any) -> None:
        """Note with a node its results, its place, and which counts of chosen numbers are among its sizes."""
        likes = [x for x in _flat(found) if isinstance(x, Tensor)]
        marks = frozenset(m for m in self._marks.values() for x in likes if any(n % m == 0 and n for n in x.shape))
        node.meta = {"val": found, "stack_trace": self.place, "chosen": marks}


@contextmanager
def places() -> Iterator[None]:
    """Find the user's line of each operation that is recorded within this block."""
    recorder = _get_current_dispatch_mode()
    if not isinstance(recorder, Recorder):
        yield
        return
    recorder.finds_places = True
    try:
        yield
    finally:
        recorder.finds_places, recorder.place = False, ""


def note_place(found: Any) -> None:
    """Note with what a function returned the user's line that called it, for the operations of its gradient."""
    recorder = _get_current_dispatch_mode()
    if isinstance(recorder, Recorder) and recorder.finds_places:
        for x in _flat(found):
            if isinstance(x, Tensor) and x.grad_fn is not None:
                x.grad_fn.metadata.setdefault(PLACE, stack_here())  # type: ignore[attr-defined]


@contextmanager
def _at(node: Node) -> Iterator[None]:
    """Give operations that are recorded within this block, and errors, the place of a node."""
    recorder = _get_current_dispatch_mode()
    assert isinstance(recorder, Recorder)
    recorder.place = node.meta.get("stack_trace", "")
    try:
        yield
    except NotRows as error:
        raise error if error.where else NotRows(error.reason, place_in(recorder.place)) from None
    except Exception as error:
        raise NotRows(of_error(error).reason, place_in(recorder.place)) from None


def replay(graph: Graph, *values: Tensor) -> list[Tensor]:
    """Compute a graph again, whose operations keep the places that they had."""
    given, made = iter(values), dict[Node, Any]()
    for node in graph.nodes:
        with _at(node):
            if node.op == "placeholder":
                made[node] = next(given)
            elif node.op == "get_attr":
                made[node] = _aten.lift_fresh.default(node.meta["constant"])
            elif node.op == "call_function":
                args, kwargs = (_mapped(x, lambda n: made[n], Node) for x in (node.args, node.kwargs))
                made[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    (output,) = [node for node in graph.nodes if node.op == "output"]
    return [made[x] for x in output.args[0]]  # type: ignore[union-attr]


def _storage(symbol: Symbol) -> int:
    """A number that a tensor and its views have in common."""
    return symbol.like.untyped_storage()._cdata


def _of_known(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Result of an operation on numbers that do not depend on the function's arguments."""
    return func(*_mapped(args, lambda x: x.known), **_mapped(kwargs, lambda x: x.known))


@cache
def _is_composite(func: Any) -> bool:
    """Tell whether torch has a rule of its own that decomposes an operation."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return isinstance(func, torch._ops.OpOverload) and (key in func.py_kernels or func.has_kernel_for_dispatch_key(key))


@cache
def _on_meta(func: Any) -> dict[str, Any]:
    """Arguments by which an operation makes a tensor of torch's meta device."""
    names = {argument.name for argument in func._schema.arguments}
    return {name: value for name, value in (("device", "meta"), ("pin_memory", False)) if name in names}


def _flat(values: Any) -> Iterator[Any]:
    """The members of lists, tuples and dicts, of all depths."""
    if isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    elif isinstance(values, dict):
        yield from _flat(list(values.values()))
    else:
        yield values


def _mapped(values: Any, change: Callable[[Any], Any], kind: type = Symbol) -> Any:
    """Lists, tuples and dicts with other values in place of those of a kind."""
    if isinstance(values, kind):
        return change(values)
    if isinstance(values, dict):
        return {key: _mapped(value, change, kind) for key, value in values.items()}
    if isinstance(values, list | tuple):
        parts = [_mapped(value, change, kind) for value in values]
        return parts if isinstance(values, list) else tuple(parts)
    return values


def _primes(first: int) -> Iterator[int]:
    """Prime numbers from an odd number on."""
    return (n for n in count(first, 2) if all(n % d for d in range(3, isqrt(n) + 1, 2)))
