"""The ops on batched tensors: one entry per environment.

Numbers that are known before a step (literals, shared parameters) stay Python numbers, float32 in value; an op of
numbers alone is computed in plain Python. Tensors are float32, int32, bool, and int64 for uint32, because torch has no
arithmetic of uint32. Draws run the code of ops_scalar on tensors, so that they have the same bits as on every other
target; sin, exp and the like are torch's own, because their ops_scalar code would take some twenty small kernels each.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core import rng
from headrace.kernels.language import ops

SIGN = 1 << 31


class Key(tuple):
    """(seed, purpose, env, episode, step): the randomness of one call. Keeps the Philox blocks that were drawn."""

    def __init__(self, _: Any) -> None:
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

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Tensor) for part in parts):
            return self.tensor[tuple(part.long() if isinstance(part, Tensor) else part for part in parts)]
        found = self.array[index]
        return Table(found, self.tensor.device) if found.ndim else found.item()


def F32(x: Any) -> Any:
    """Conversion to float32."""
    return x.to(torch.float32) if isinstance(x, Tensor) else float(np.float32(x))


def I32(x: Any) -> Any:
    """Conversion to int32, wrapping around."""
    return x.to(torch.int32) if isinstance(x, Tensor) else ((int(x) + SIGN) & rng.MASK) - SIGN


def U32(x: Any) -> Any:
    """Conversion to uint32, kept in int64."""
    return x.to(torch.int64) & rng.MASK if isinstance(x, Tensor) else int(x) & rng.MASK


def U64(x: Any) -> Any:
    """Conversion to a product's int64."""
    return x.to(torch.int64) if isinstance(x, Tensor) else int(x)


def BOOL(x: Any) -> Any:
    """Conversion to a boolean."""
    return x != 0


def select(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, b elsewhere."""
    if not isinstance(condition, Tensor):
        return a if condition else b
    if isinstance(a, float) and isinstance(b, float):
        a = torch.full((), a, dtype=torch.float32, device=condition.device)
    elif not isinstance(a, Tensor) and not isinstance(b, Tensor):
        dtype = torch.bool if isinstance(a, bool) else torch.int32 if abs(a) < SIGN and abs(b) < SIGN else torch.int64
        a = torch.full((), a, dtype=dtype, device=condition.device)
    return torch.where(condition, a, b)


def bits(key: Key, draw: Any) -> Tensor:
    """32 random bits of a draw number, int64 [N]."""
    return _scalar["bits"](key, draw) if isinstance(draw, Tensor) else key.random_bits(draw)


def clip(x: Any, low: Any, high: Any) -> Any:
    """x, not below low nor above high."""
    if isinstance(x, Tensor) and not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return x.clamp(low, high)
    return _scalar["clip"](x, low, high)


def _minimum(a: Any, b: Any) -> Any:
    return select(b < a, b, a)


def _maximum(a: Any, b: Any) -> Any:
    return select(b > a, b, a)


def _philox(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[Tensor, ...]:
    return rng.philox((k0, k1), (c0, c1, c2, c3))


def _as_int(x: Tensor) -> Tensor:
    return x.view(torch.int32)


def _as_float(n: Tensor) -> Tensor:
    return n.view(torch.float32)


def _op(name: str, batched: Callable[..., Tensor]) -> Callable[..., Any]:
    """An op that is `batched` on tensors, and plain Python on numbers alone."""
    plain = getattr(ops, name)

    def op(*args: Any) -> Any:
        if not any(isinstance(x, Tensor) for x in args):
            return float(plain(*args))
        return batched(*args)

    return op


def _pair(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A function of two tensors, one of which may be a number."""

    def batched(a: Any, b: Any) -> Tensor:
        given = a if isinstance(a, Tensor) else b
        first, second = (
            x if isinstance(x, Tensor) else torch.full((), x, dtype=torch.float32, device=given.device) for x in (a, b)
        )
        return function(first, second)

    return batched


def namespace() -> dict[str, Any]:
    """Names for the lowered code of an environment: ops, conversions, and Python's own abs, min, max."""
    return dict(_shared)


def exact_namespace(device: torch.device) -> dict[str, Any]:
    """As namespace(), but for pixels, which are equal byte for byte: every op is computed as on all other targets,
    and floats are tensors, since torch divides by a number in its own way."""

    def to_float(x: Any) -> Tensor:
        if isinstance(x, Tensor):
            return x.to(torch.float32)
        return torch.full((), float(np.float32(x)), dtype=torch.float32, device=device)

    wide = torch.float32 if device.type == "mps" else torch.float64  # which Metal has not

    def sqrt(x: Any) -> Tensor:
        # torch's root of float32 is now and then off by one unit; that of a double, rounded, never is
        return to_float(x).to(wide).sqrt().to(torch.float32)

    found: dict[str, Any] = dict(_own)
    found |= {name: FunctionType(function.__code__, found, name) for name, function in ops.functions().items()}
    kept = ("I32", "U32", "U64", "BOOL", "select", "power", "_as_int", "_as_float")
    # in place: ops call each other by it
    found.update({name: _shared[name] for name in kept} | {"F32": to_float, "sqrt": sqrt})
    return found


# The code of ops_scalar, bound to these names instead of its own ...
_own: dict[str, Any] = {"__builtins__": __builtins__, "np": np, "abs": abs, "min": _minimum, "max": _maximum}
_shared: dict[str, Any] = dict(_own)
_shared |= {name: FunctionType(function.__code__, _shared, name) for name, function in ops.functions().items()}
_scalar = dict(_shared)
# ... but for what tensors have of their own
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
