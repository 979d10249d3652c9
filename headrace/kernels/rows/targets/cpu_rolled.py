"""Loops for calls that are equal except for the places of their memory, as those of the steps of a sequence: a loop
over a table of offsets. So LLVM's time and the machine code grow only with the kinds of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from headrace.kernels.rows.targets.llvm_text import Body, Module

MANY = 64  # calls from which on a loop is used, if each kind is made at least OFTEN times in the mean
OFTEN = 4


class Address(NamedTuple):
    """Numbers in memory. base: the name of a pointer. offset: how many numbers behind it."""

    base: str
    offset: int = 0


Given: TypeAlias = Sequence[Address | str]  # what a function is called with; numbers with their types
Calls: TypeAlias = list[tuple[str, Given]]  # functions' names, and what each is called with


def write(b: Body, module: Module, calls: Calls) -> None:
    """Write calls, in order."""
    kinds = dict[tuple[str, ...], list[Given]]()
    for name, given in calls:
        kinds.setdefault(_kind(name, given), []).append(given)
    if len(calls) >= max(MANY, OFTEN * len(kinds)):
        _write_loop(b, module, calls, kinds)
    else:
        for name, given in calls:
            write_call(b, name, [x if isinstance(x, str) else (x.base, str(x.offset)) for x in given])


def _kind(name: str, given: Given) -> tuple[str, ...]:
    return (name, *(x if isinstance(x, str) else x.base for x in given))


def write_call(b: Body, name: str, given: Sequence[str | tuple[str, str]]) -> None:
    """Write a call. given: numbers with their types, and pointers with indices behind them."""
    arguments = [x if isinstance(x, str) else f"ptr {b.at(*x)}" for x in given]
    b.do(f"call void @{name}({', '.join(arguments)})")


def _write_loop(b: Body, module: Module, calls: Calls, kinds: dict[tuple[str, ...], list[Given]]) -> None:
    places = {kind: _varying(every) for kind, every in kinds.items()}
    width, numbers = 1 + max(map(len, places.values())), {kind: i for i, kind in enumerate(kinds)}
    words = list[str]()
    for name, given in calls:
        kind = _kind(name, given)
        offsets = [given[i].offset for i in places[kind]]  # type: ignore[union-attr]
        words += map(str, [numbers[kind], *offsets, *[0] * (width - 1 - len(offsets))])
    table = module.constant(words, "i32")
    with b.loop(len(calls)) as call:
        row, mark = b.mul(call, width), f"calls{len(b.lines)}"
        which = b.new(f"load i32, ptr {b.at(table, row, 'i32')}, align 4")
        cases = " ".join(f"i32 {i}, label %{mark}.{i}" for i in range(1, len(kinds)))
        b.do(f"switch i32 {which}, label %{mark}.0 [ {cases} ]")
        for i, (kind, every) in enumerate(kinds.items()):
            b.lines.append(f"{mark}.{i}:")
            own: list[str | tuple[str, str]] = [x if isinstance(x, str) else (x.base, str(x.offset)) for x in every[0]]
            for column, place in enumerate(places[kind], 1):
                offset = b.new(f"load i32, ptr {b.at(table, b.add(row, column), 'i32')}, align 4")
                own[place] = own[place][0], b.new(f"zext i32 {offset} to i64")
            write_call(b, kind[0], own)
            b.do(f"br label %{mark}.done")
        b.block = f"{mark}.done"
        b.lines.append(f"{b.block}:")


def _varying(every: list[Given]) -> list[int]:
    """The arguments that are not the same in all calls of a kind."""
    return [i for i, x in enumerate(every[0]) if any(given[i] != x for given in every)]
