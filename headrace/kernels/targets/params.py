"""Parameters of environments as the arrays that targets take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from headrace.core.text import shown
from headrace.kernels.language import kinds
from headrace.kernels.language.ir import EnvIR, Param

ParamValues: TypeAlias = Mapping[str, ArrayLike]  # name -> one number for all environments, or N of them


def repacked(ir: EnvIR, params: ParamValues, num_envs: int, per_env: bool) -> tuple[np.ndarray, np.ndarray]:
    """pack_params() in the form that kernels were compiled for: [P], or [P, N] where per_env is true.

    Raises ValueError where that cannot hold them.
    """
    *packs, given = pack_params(ir, params, num_envs)
    if given and not per_env:
        several = ", ".join(name for name, value in params.items() if np.ndim(value))
        raise ValueError(
            f"{ir.name} was made with one number for each parameter, and {several} has {num_envs}: give one, or make "
            "the environments with as many"
        )
    if per_env and not given:
        packs = [np.array(np.broadcast_to(pack[:, None], (len(pack), num_envs))) for pack in packs]
    floats, integers = packs
    return floats, integers


def pack_params(ir: EnvIR, params: ParamValues, num_envs: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Pack parameters as arrays [P], or [P, N] where one has a value per environment. Returns floats, integers, and
    whether they are [P, N].

    Raises ValueError for a name that Params does not have, a wrong number of values, and numbers that a parameter
    cannot hold.
    """
    known = {p.name for p in ir.params}
    for name in params:
        if name not in known:
            raise ValueError(f"{ir.name} has no parameter {name!r}: it has {', '.join(sorted(known)) or 'none'}")
    per_env = any(np.ndim(value) for value in params.values())
    packs: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for param in ir.params:
        value = _values(param, params.get(param.name, param.default))
        if value.ndim and value.shape != (num_envs,):
            raise ValueError(
                f"parameter {param.name!r} has shape {value.shape}: give one number, or {num_envs} of them"
            )
        packs[param.dtype == kinds.F32].append(np.broadcast_to(value, (num_envs,) if per_env else ()))
    shape = (0, num_envs) if per_env else (0,)
    floats = np.array(packs[True], np.float32) if packs[True] else np.zeros(shape, np.float32)
    integers = np.array(packs[False], np.int64).astype(np.int32) if packs[False] else np.zeros(shape, np.int32)
    return floats, integers, per_env


def _values(param: Param, given: ArrayLike) -> np.ndarray:
    """Values of a parameter. Raises ValueError for anything but numbers, for NaN, and, for a parameter of whole
    numbers, for fractions and numbers that do not fit in 32 bits."""
    value = np.asarray(given)
    numbers = value.dtype.kind in "biuf"
    if param.dtype == kinds.F32:
        fits, takes = numbers and not np.isnan(value).any(), "numbers"
    else:
        low, high = (0, 2**32) if param.dtype == kinds.U32 else (-(2**31), 2**31)
        fits = numbers and bool(((value == np.floor(value)) & (value >= low) & (value < high)).all())
        takes = "whole numbers of 32 bits"
    if not fits:
        raise ValueError(f"parameter {param.name!r} takes {takes}, got {shown(given)}")
    return value
