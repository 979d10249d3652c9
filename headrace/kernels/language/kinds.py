"""Kinds: the types that a value inside an environment can have, and how a field's annotation names one.

Values are float32, int32, uint32 or boolean. Fields may be stored narrower (i8, u8, i16, u16) and are int32 once read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import numpy as np

F32, I32, U32, BOOL = "f32", "i32", "u32", "bool"
STATE, PARAMS, KEY, NONE = "state", "params", "key", "none"
STORAGE: dict[str, type[np.generic]] = {
    "f32": np.float32,
    "i32": np.int32,
    "u32": np.uint32,
    "i16": np.int16,
    "u16": np.uint16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}
NAMES = {np.dtype(kind).name: name for name, kind in STORAGE.items()}
DTYPES = "f32, i32, u32, i16, u16, i8, u8, boolean or array(dtype, *shape)"


@dataclass(frozen=True)
class Array:
    """An array, or what is left of it after some indices. field: of State, or "out"; None for a constant."""

    dtype: str
    shape: tuple[int, ...]
    field: str | None = None


@dataclass(frozen=True)
class Tuple:
    """A tuple of values."""

    items: tuple[Kind, ...]


Kind = str | Array | Tuple


def value_kind(dtype: str) -> str:
    """The kind of a value read from a field stored as `dtype`."""
    return dtype if dtype in (F32, U32, BOOL) else I32


def join(one: Kind, other: Kind) -> Kind | None:
    """The kind that holds values of both: bool < i32 < u32 < f32. None where there is none."""
    if one == other:
        return one
    if isinstance(one, Tuple) and isinstance(other, Tuple) and len(one.items) == len(other.items):
        items = [join(a, b) for a, b in zip(one.items, other.items, strict=True)]
        return None if None in items else Tuple(tuple(items))  # type: ignore[arg-type]
    order = (BOOL, I32, U32, F32)
    if one in order and other in order:
        return order[max(order.index(one), order.index(other))]  # type: ignore[arg-type]
    return None


def of_annotation(annotation: Any) -> tuple[str, tuple[int, ...] | None] | None:
    """(dtype, shape) that an annotation names; shape None for a scalar; None for what is not supported.

    Understands numpy scalar types, Annotated[..., dtype or its name], `bool`, and objects with `dtype` and `shape`.
    """
    if get_origin(annotation) is Annotated:
        return of_annotation(get_args(annotation)[1])
    if annotation is bool:
        return BOOL, None
    if isinstance(annotation, str) and annotation in STORAGE:
        return annotation, None
    if isinstance(annotation, type) and issubclass(annotation, np.generic):
        name = NAMES.get(np.dtype(annotation).name)
        return name and (name, None)  # type: ignore[return-value]
    if isinstance(annotation, np.dtype):
        return of_annotation(annotation.type)
    shape = getattr(annotation, "shape", None)
    if shape is not None and (element := of_annotation(getattr(annotation, "dtype", None))):
        return element[0], tuple(int(n) for n in shape) or None
    name = getattr(annotation, "name", None)
    return (name, None) if isinstance(name, str) and name in STORAGE else None


def describe(kind: Kind) -> str:
    """A description of a kind, for messages."""
    if isinstance(kind, Array):
        return f"an array {kind.dtype}{list(kind.shape)}"
    if isinstance(kind, Tuple):
        return f"a tuple of {len(kind.items)}"
    names = {F32: "a float", I32: "an integer", U32: "an unsigned integer", BOOL: "a boolean", NONE: "nothing"}
    return names.get(kind, f"the {kind}")
