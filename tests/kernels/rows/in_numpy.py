"""Row programs and their plans, computed by NumPy in float64: what a target must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.row_plan import Phase, Plan, Transposed, outer_form
from headrace.kernels.rows.row_program import (
    I32,
    Constant,
    Count,
    Input,
    Join,
    Map,
    Outer,
    Pick,
    Product,
    Program,
    Reduce,
    Sort,
    Value,
    View,
)


def _by_torch(name: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: getattr(torch, name)(torch.from_numpy(np.array(x, np.float64))).numpy()


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    **{"neg": np.negative, "abs": np.abs, "sign": np.sign, "exp": np.exp, "expm1": np.expm1, "log": np.log},
    **{"log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x},
    **{"tanh": np.tanh, "atanh": np.arctanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "cos": np.cos},
    **{"floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf},
    **{name: _by_torch(name) for name in ("erf", "lgamma", "digamma")},
    "trigamma": lambda x: torch.polygamma(1, torch.from_numpy(np.array(x, np.float64))).numpy(),
    **{"not": lambda x: ~x.astype(bool), "float": lambda x: x.astype(float), "bool": lambda x: x != 0},
    **{"int": lambda x: np.trunc(x), "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
    **{"maximum": np.maximum, "minimum": np.minimum, "pow": np.power, "fmod": np.fmod, "eq": np.equal},
    **{"ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "where": np.where},
}
REDUCTIONS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all}


def places(view: View) -> np.ndarray:
    """Index of each number of a view among its value's numbers."""
    found = np.full(view.shape, view.offset)
    for axis, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        found = found + (np.arange(n) * stride).reshape([n if i == axis else 1 for i in range(len(view.shape))])
    return found


def numbers_of(value: Constant, rows: int) -> np.ndarray:
    """A constant's numbers, for so many rows."""
    found = np.array([n.at(rows) if isinstance(n, Count) else n for n in value.numbers])
    return found.astype(np.int64) if value.dtype == I32 else found


def computed(value: Value, read: Callable[[View], np.ndarray]) -> np.ndarray:
    """An operation's result, rows last. read: the numbers of a view, rows last (one, for a uniform value)."""
    with np.errstate(all="ignore"):
        if isinstance(value, Map):
            return FUNCTIONS[value.function](*[read(view) for view in value.operands])
        if isinstance(value, Reduce):
            return _reduced(value, read(value.source))
        if isinstance(value, Product):
            found = np.einsum("...kb,nk->...nb", read(value.source), read(value.weight)[..., 0])
            return found if value.bias is None else found + read(value.bias)
        if isinstance(value, Pick):
            source, index = read(value.source), read(value.index).astype(int)
            rows = max(source.shape[-1], index.shape[-1])
            source, index = (np.broadcast_to(x, (*x.shape[:-1], rows)) for x in (source, index))
            return np.take_along_axis(source, index[..., None, :], -2)[..., 0, :]
        if isinstance(value, Sort):
            x = read(value.source)
            return np.argsort(x, -2, kind="stable") if value.places else np.sort(x, -2)
        assert isinstance(value, Join)
        parts = [read(view) for view in value.parts]
        rows = max(part.shape[-1] for part in parts)
        return np.concatenate([np.broadcast_to(part, (*part.shape[:-1], rows)) for part in parts], value.axis)


def _reduced(value: Reduce, x: np.ndarray) -> np.ndarray:
    axes = tuple(range(len(value.shape), x.ndim - 1))
    if value.function in ("argmax", "argmin"):
        return getattr(np, value.function)(x, axis=axes[0])  # type: ignore[no-any-return]
    found = REDUCTIONS[value.function](x, axis=axes) if axes else x
    return REDUCTIONS[value.function](found, axis=-1, keepdims=True) if value.over_rows else found  # type: ignore[no-any-return]


def run(program: Program, columns: Sequence[np.ndarray], uniforms: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """A program's outputs, of columns [rows, ...]: uniform ones in their view's shape, others [rows, ...]."""
    rows = len(columns[0])
    memory: dict[Value, np.ndarray] = {}
    for own, given in zip(program.columns, columns, strict=True):
        memory[own] = np.asarray(given).reshape(rows, -1).T
    for own, given in zip(program.uniforms, uniforms, strict=True):
        memory[own] = np.asarray(given).reshape(-1, 1)

    def read(view: View) -> np.ndarray:
        return memory[view.value][places(view)]

    for value in program.values():
        if isinstance(value, Constant):
            memory[value] = numbers_of(value, rows)[:, None]
            continue
        if isinstance(value, Outer):
            pair = [np.broadcast_to(x, (*x.shape[:-1], rows)) for x in (read(value.left), read(value.right))]
            found = np.einsum("anb,akb->nk", *(x.reshape(-1, *x.shape[-2:]) for x in pair))[..., None]
        else:
            found = computed(value, read)
        memory[value] = found.reshape(value.size, -1)
    return {output.name: _result(read(output.view), output.view, rows) for output in program.outputs}


def _result(found: np.ndarray, view: View, rows: int) -> np.ndarray:
    if not view.value.rows:
        return found[..., 0]
    return np.moveaxis(np.broadcast_to(found, (*view.shape, rows)), -1, 0)


class InPlan:
    """A plan computed as a target does it: block by block, in tiles at the places that it gives them."""

    def __init__(self, plan: Plan, columns: Sequence[np.ndarray], uniforms: Sequence[np.ndarray]) -> None:
        self.plan, self.rows = plan, len(columns[0])
        self.columns = [np.asarray(column).reshape(self.rows, -1) for column in columns]
        self.given = [np.asarray(x, float).reshape(-1) for x in uniforms]
        blocks = -(-self.rows // self.plan.lanes)
        self.tiles = np.full((plan.tiles, self.plan.lanes), np.nan)
        self.kept = np.full((blocks, plan.kept, self.plan.lanes), np.nan)
        self.uniform = np.full(plan.uniform, np.nan)
        outputs = plan.program.outputs
        self.results = [np.full(output.view.value.size, np.nan) for output in outputs]
        self.stored = [np.full((self.rows, output.view.size), np.nan) for output in outputs]
        self.sums: dict[int, np.ndarray] = {}
        self.block = 0

    def run(self) -> dict[str, np.ndarray]:
        """The program's outputs, as run() gives them."""
        before: list[Value] = []
        for phase in self.plan.phases:
            self._finish(before)
            self._phase(phase)
            before = [value for value in phase.steps if is_sum(value)]
        self._finish(before)
        found = {}
        for number, output in enumerate(self.plan.program.outputs):
            if output.view.value.rows:
                found[output.name] = self.stored[number].reshape(self.rows, *output.view.shape)
            else:
                found[output.name] = self._read(output.view)[..., 0]
        return found

    def _finish(self, sums: list[Value]) -> None:
        for value in sums:
            if value in self.plan.places:
                self._memory(value)[:] = self.sums[self.plan.sums[value]].reshape(-1, 1)
        self.sums = {}

    def _phase(self, phase: Phase) -> None:
        for value in phase.before:
            self._memory(value)[:] = computed(value, self._read).reshape(value.size, -1)
        for block in range(len(self.kept)):
            self.block = block
            first = block * self.plan.lanes
            count = min(self.plan.lanes, self.rows - first)
            for value in phase.steps:
                self._step(value, np.minimum(first + np.arange(self.plan.lanes), self.rows - 1), count)
            for position in phase.stores:
                view = self.plan.program.outputs[position].view
                found = np.broadcast_to(self._read(view), (*view.shape, self.plan.lanes)).reshape(-1, self.plan.lanes)
                self.stored[position][first : first + count] = found.T[:count]

    def _step(self, value: Value, rows: np.ndarray, count: int) -> None:
        if isinstance(value, Input):
            self._memory(value)[:] = self.columns[value.position][rows].T
        elif isinstance(value, Transposed):
            x = self._read(value.source)
            turned = np.zeros((*x.shape[:-2], self.plan.lanes, value.shape[-1]))
            turned[..., : x.shape[-2]] = np.swapaxes(x, -1, -2)
            self._memory(value)[:] = turned.reshape(-1, self.plan.lanes)
        elif isinstance(value, Outer):
            pair = [self._factor(value, form)[..., :count] for form in ("left", "right")]
            self._add(value, np.einsum("anb,akb->nk", *(x.reshape(-1, *x.shape[-2:]) for x in pair)))
        elif is_sum(value):
            assert isinstance(value, Reduce)
            x = np.broadcast_to(self._read(value.source), (*value.source.shape, self.plan.lanes))[..., :count]
            self._add(value, _reduced(value, x))
        else:
            found = np.broadcast_to(computed(value, self._read), (*value.shape, self.plan.lanes))
            self._memory(value)[:] = found.reshape(-1, self.plan.lanes)

    def _factor(self, outer: Outer, form: str) -> np.ndarray:
        view = getattr(outer, form)
        if outer in self.plan.transposed and outer_form(outer) == form:
            lying = self._memory(self.plan.transposed[outer]).reshape(*view.shape[:-1], self.plan.lanes, -1)
            return np.swapaxes(lying[..., : view.shape[-1]], -1, -2)
        return np.broadcast_to(self._read(view), (*view.shape, self.plan.lanes))

    def _add(self, value: Value, found: np.ndarray) -> None:
        at, function = self.plan.sums[value], value.function if isinstance(value, Reduce) else "sum"
        known = self.sums.get(at)
        self.sums[at] = (
            found.reshape(-1) if known is None else REDUCTIONS[function](np.stack([known, found.reshape(-1)]), axis=0)
        )

    def _memory(self, value: Value) -> np.ndarray:
        place = self.plan.places[value]
        lying = {"tile": self.tiles, "kept": self.kept[self.block]}.get(place.space)
        if lying is not None:
            return lying[place.offset : place.offset + value.size]
        if place.space == "uniform":
            return self.uniform[place.offset : place.offset + value.size, None]
        return (self.given if place.space == "given" else self.results)[place.offset][:, None]

    def _read(self, view: View) -> np.ndarray:
        value = view.value
        if isinstance(value, Constant):
            found = numbers_of(value, self.rows)[:, None]
        elif value in self.plan.places:
            found = self._memory(value)
        else:
            assert isinstance(value, Map), f"{value} is neither stored nor computed where it is read"
            found = computed(value, self._read).reshape(value.size, -1)
        return found[places(view)]
