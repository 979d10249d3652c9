"""Text that finds, reads and keeps the worlds' numbers on the CPU.

Scalar fields lie in one pack of float32 and one of int32, blocks of CHUNK worlds behind one another, and in a block one
row behind the other: fields of State, then each agent's running return; fields, length, episode. Within a block, which
begins at world lo, world lo + i is called i.
"""

from __future__ import annotations

from headrace.kernels.language.ir import EnvIR, Field
from headrace.kernels.language.kinds import BOOL, F32, U32

CHUNK = 1024  # worlds whose columns fit the first-level cache together


def state_arguments(source: EnvIR) -> str:
    """Names of the arrays that hold the worlds, in the order the kernels take them."""
    return ", ".join(
        ["floats, integers, float_params, integer_params, dead", *(f"array_{f.name}" for f in source.arrays)]
    )


def params(source: EnvIR, per_env: bool) -> str:
    """p: loaded once, or of world i."""
    counts = {True: 0, False: 0}
    items = []
    for param in source.params:
        real = param.dtype == F32
        k = counts[real]
        counts[real] += 1
        shared = f"{'float' if real else 'integer'}_params[{k}]"
        place = in_block("fp" if real else "ip", k) if per_env else shared
        items.append(read(place, param.dtype))
    return f"p = {tuple_of(items)}"


def in_block(block: str, row: int) -> str:
    """World i's entry of a row of a block."""
    return f"{block}[np.uint64({row * CHUNK}) + i]"


def read(place: str, dtype: str) -> str:
    """A stored number as its value: u32 by its bits, a boolean from 0 and 1."""
    return {U32: f"U32({place})", BOOL: f"{place} != I32(0)"}.get(dtype, place)


def tuple_of(items: list[str]) -> str:
    """A tuple's text."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _place(source: EnvIR, field: Field) -> str:
    """Where a field of world i is kept."""
    if field.shape is not None:
        return f"array_{field.name}[np.uint64(lo) + i]"
    if field.dtype == F32:
        return in_block("fs", source.floats.index(field))
    return in_block("ns", source.integers.index(field))


def state(source: EnvIR) -> str:
    """s: of world i."""
    return "s = " + tuple_of([read(_place(source, f), f.dtype) for f in source.state])


def store(source: EnvIR, name: str) -> list[str]:
    """Lines that keep a new state; array fields have been changed in place."""
    lines = []
    for k, field in enumerate(source.state):
        if field.shape is None:
            value = f"{name}[{k}]" if field.dtype == F32 else f"I32({name}[{k}])"
            lines.append(f"{_place(source, field)} = {value}")
    return lines


def blocks(source: EnvIR, per_env: bool) -> list[str]:
    """The chunk's block of each pack: rows of CHUNK worlds, one behind the other, from world lo on. Parameters shared
    by all: p."""
    floats, integers = rows(source)
    lines = [f"fs = floats[{_chunk(floats)}:]", f"ns = integers[{_chunk(integers)}:]"]
    if not per_env:
        return [*lines, params(source, False)]
    real = sum(param.dtype == F32 for param in source.params)
    whole = len(source.params) - real
    return [*lines, f"fp = float_params[{_chunk(real)}:]", f"ip = integer_params[{_chunk(whole)}:]"]


def _chunk(rows: int) -> str:
    """Where world lo's entries begin in a pack of so many rows."""
    return f"lo // {CHUNK} * {CHUNK * rows} + lo % {CHUNK}"


def rows(source: EnvIR) -> tuple[int, int]:
    """Rows in a block of the float and of the integer pack: fields, and the running returns; length and episode."""
    return len(source.floats) + source.num_agents, len(source.integers) + 2
