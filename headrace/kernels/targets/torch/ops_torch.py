"""The ops on batched tensors: one entry per environment.

Numbers that are known before a step (literals, shared parameters) stay Python numbers, float32 in value; an op of
numbers alone is computed in plain Python. Tensors are float32, int32, bool, and int64 for uint32, because torch has no
arithmetic of uint32. Draws run the code of ops_scalar on tensors, so that they have the same bits as on every other
target; sin, exp and the like are torch's own, because their ops_scalar code would take some twenty small kernels each.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.core import rng
from headrace.kernels.language import ops

SIGN = 1 << 31
Number: TypeAlias = Tensor | float  # one per environment, or the same for all
Word: TypeAlias = Tensor | int


class Key(tuple):
    """(seed, purpose, env, episode, step): the randomness of one call. Keeps the Philox blocks that were drawn."""

    def __init__(self, _: tuple[Number, ...]) -> None:
        self._blocks: dict[int, tuple[Tensor, ...]] = {}

    def random_bits(self, draw: int) -> Tensor:
        """The random word of a draw number, int64 [N]."""
        block = draw >> 2
        if block not in self._blocks:
            self._blocks[block] = rng.philox(self[:2], (*self[2:], block))  # type: ignore[arg-type]
        return self._blocks[block][draw & 3]


class Table:
    """A constant array: a number at a constant index, a tensor at one that differs between environments."""

    def __init__(self, array: np.ndarray, device: torch.device) -> None:
        self.array, self.tensor = array, torch.from_numpy(array).to(device)

    def __getitem__(self, index: Word | tuple[Word, ...]) -> Table | Number:
        parts = index if isinstance(index, tuple) else (index,)
        numbers = tuple(part for part in parts if not isinstance(part, Tensor))
        if len(numbers) < len(parts):
            return self.tensor[tuple(part.long() if isinstance(part, Tensor) else part for part in parts)]
        found = self.array[numbers]
        return Table(found, self.tensor.device) if found.ndim else found.item()


# what the code of an environment names
Namespace: TypeAlias = dict[str, Callable[..., Number | tuple[Tensor, ...]] | Table | ModuleType]


def F32(x: Number) -> Number:
    """Conversion to float32."""
    return x.to(torch.float32) if isinstance(x, Tensor) else float(np.float32(x))


def I32(x: Number) -> Number:
    """Conversion to int32, wrapping around."""
    return x.to(torch.int32) if isinstance(x, Tensor) else ((int(x) + SIGN) & rng.MASK) - SIGN


def U32(x: Number) -> Number:
    """Conversion to uint32, kept in int64."""
    return x.to(torch.int64) & rng.MASK if isinstance(x, Tensor) else int(x) & rng.MASK


def U64(x: Number) -> Number:
    """Conversion to a product's int64."""
    return x.to(torch.int64) if isinstance(x, Tensor) else int(x)


def BOOL(x: Number) -> Number:
    """Conversion to a boolean."""
    return x != 0


def select(condition: Number, a: Number, b: Number) -> Number:
    """a where the condition holds, b elsewhere."""
    if not isinstance(condition, Tensor):
        return a if condition else b
    if isinstance(a, float) and isinstance(b, float):
        a = torch.full((), a, dtype=torch.float32, device=condition.device)
    elif not isinstance(a, Tensor) and not isinstance(b, Tensor):
        dtype = torch.bool if isinstance(a, bool) else torch.int32 if abs(a) < SIGN and abs(b) < SIGN else torch.int64
        a = torch.full((), a, dtype=dtype, device=condition.device)
    return torch.where(condition, a, b)


def bits(key: Key, draw: Tensor | int) -> Tensor:
    """32 random bits of a draw number, int64 [N]."""
    return _scalar["bits"](key, draw) if isinstance(draw, Tensor) else key.random_bits(draw)


def clip(x: Number, low: Number, high: Number) -> Number:
    """x, not below low nor above high."""
    if isinstance(x, Tensor) and not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return x.clamp(low, high)
    return _scalar["clip"](x, low, high)


def _minimum(a: Number, b: Number) -> Number:
    return select(b < a, b, a)


def _maximum(a: Number, b: Number) -> Number:
    return select(b > a, b, a)


def _philox(k0: int, k1: int, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> tuple[Tensor, ...]:
    return rng.philox((k0, k1), (c0, c1, c2, c3))


def _as_int(x: Tensor) -> Tensor:
    return x.view(torch.int32)


def _as_float(n: Tensor) -> Tensor:
    return n.view(torch.float32)


def _op(name: str, batched: Callable[..., Tensor]) -> Callable[..., Number]:
    """An op that is `batched` on tensors, and plain Python on numbers alone."""
    plain = getattr(ops, name)

    def op(*args: Number) -> Number:
        if not any(isinstance(x, Tensor) for x in args):
            return float(plain(*args))
        return batched(*args)

    return op


def _pair(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A function of two tensors, one of which may be a number."""

    def batched(a: Number, b: Number) -> Tensor:
        device = next(x.device for x in (a, b) if isinstance(x, Tensor))
        first, second = (
            x if isinstance(x, Tensor) else torch.full((), x, dtype=torch.float32, device=device) for x in (a, b)
        )
        return function(first, second)

    return batched


def namespace() -> Namespace:
    """Names for the lowered code of an environment: ops, conversions, and Python's own abs, min, max."""
    return dict(_shared)


def exact_namespace(device: torch.device) -> Namespace:
    """Same as namespace(), but for pixels, which are equal byte for byte: every op is computed as on all other targets,
    and floats are tensors, since torch divides by a number in its own way."""

    def to_float(x: Number) -> Tensor:
        if isinstance(x, Tensor):
            return x.to(torch.float32)
        return torch.full((), float(np.float32(x)), dtype=torch.float32, device=device)

    wide = torch.float32 if device.type == "mps" else torch.float64  # which Metal has not

    def sqrt(x: Number) -> Tensor:
        # torch's root of float32 is now and then off by one unit; that of a double, rounded, never is
        return to_float(x).to(wide).sqrt().to(torch.float32)

    found: Namespace = dict(_own)
    found |= {name: FunctionType(function.__code__, found, name) for name, function in ops.functions().items()}
    kept = ("I32", "U32", "U64", "BOOL", "select", "power", "_as_int", "_as_float")
    # in place: ops call each other by it
    found.update({name: _shared[name] for name in kept} | {"F32": to_float, "sqrt": sqrt})
    return found


# The code of ops_scalar, bound to these names instead of its own ...
_own: Namespace = {"__builtins__": __builtins__, "np": np, "abs": abs, "min": _minimum, "max": _maximum}
_shared: Namespace = dict(_own)
_scalar = {name: FunctionType(function.__code__, _shared, name) for name, function in ops.functions().items()}
_shared |= _scalar
# ... except functions that tensors have themselves
_shared |= {f.__name__: f for f in (F32, I32, U32, U64, BOOL, select, bits, clip, _philox, _as_int, _as_float)}
_shared |= {
    name: _op(name, getattr(torch, name)) for name in ("sin", "cos", "tan", "exp", "tanh", "sqrt", "floor", "ceil")
}
_shared |= {
    "absolute": _op("absolute", torch.abs),
    "sign": _op("sign", torch.sign),
    "log": _op("log", _scalar["log"]),
    "atan2": _op("atan2", _pair(torch.atan2)),
    "power": _op("power", _pair(torch.pow)),
}
