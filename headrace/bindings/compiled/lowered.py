"""Row programs of the built-in losses and networks, as data of the package: the results of tracing and lowering.

They serve where the user's cache has no machine code so far, so that nothing is traced, and where this PyTorch cannot
be traced. FILE has them by a digest of all that a trace reads (trace_key.source_lines), without its whole numbers.
These numbers, and those of the program, are sums of products of a few sizes, such as the widths of a network. So a
program that was traced at some sizes also gives the program for others. `python tests/bindings/lowered_programs.py`
writes FILE.
"""

from __future__ import annotations

import gzip
import json
import math
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from headrace.core.closure import Reach
from headrace.kernels.rows import row_program
from headrace.kernels.rows.row_program import Count, Input, Output, Program, Value, View
from headrace.kernels.rows.targets.records import Outcome, Returned, returned_from, returned_tree
from headrace.kernels.rows.tracing.inputs import Given
from headrace.kernels.rows.tracing.trace_key import digest_of, source_lines

FILE = Path(row_program.__file__).with_name("lowered.json.gz")  # among the sources that keys of records have
LEAST = 2  # of a size: one of 1 is no axis
_NUMBER = re.compile(r"(?<![\w.])(?:0x[0-9a-f]+|\d+)(?![\w.])")
_FLOATS = {"times size": operator.mul, "over size": operator.truediv, "log size": math.log}  # made of a size

Tree: TypeAlias = Any  # of lists, strings, numbers, truth values and None


@dataclass(frozen=True)
class Lowered:
    """A loss as row program. outcomes, returned: as in Record. read: names of the settings that the trace has read."""

    program: Program
    outcomes: list[Outcome]
    returned: Returned
    read: list[str]


def find(given: Given, reached: Reach, gradients: bool) -> Lowered | list[str] | None:
    """Find the row program of a loss for its arguments, or names of the settings that have to be constants of it. None
    where the package has none."""
    lines = source_lines(given, reached, gradients)
    if lines is None:
        return None
    key, numbers = without_numbers(lines)
    for entry in map(json.loads, _entries().get(key, ())):
        own = entry["settings"].items() <= given.settings.items()
        sizes = solved(entry, numbers) if own else None
        if sizes is not None:
            tree = with_sizes(entry["tree"], sizes)
            return Lowered(*_read(tree), [*entry["settings"]]) if tree[0] == "program" else tree[1]
    return None


@cache
def _entries() -> dict[str, list[str]]:
    return json.loads(gzip.decompress(FILE.read_bytes())) if FILE.exists() else {}


def without_numbers(lines: Iterable[str]) -> tuple[str, list[int]]:
    """A digest of lines without their whole numbers, and these."""
    text = "\n".join(lines)
    numbers = [int(x, 16 if x.startswith("0x") else 10) for x in _NUMBER.findall(text)]
    return digest_of([_NUMBER.sub("#", text)]), numbers


def solved(entry: Tree, numbers: Sequence[int]) -> list[int] | None:
    """Numbers of an entry's table for the numbers of a trace. None where the entry is for other numbers."""
    symbols = [numbers[place] for place in entry["symbols"]]
    if min(symbols, default=LEAST) < LEAST:
        return None
    symbols = [*symbols, *((size + 1) // 2 for size in reversed(symbols))]  # normal numbers are drawn in pairs
    found = [
        x if isinstance(x, int) else sum(times * math.prod(symbols[i] for i in factors) for times, *factors in x)
        for x in entry["table"]
    ]
    return found if [found[place] for place in entry["numbers"]] == numbers else None


def with_sizes(tree: Tree, sizes: Sequence[int]) -> Tree:
    """Replace the whole numbers of a tree, which are places in a table, by the table's numbers."""
    if not isinstance(tree, list):
        return sizes[tree] if type(tree) is int else tree
    found = [with_sizes(part, sizes) for part in tree]
    return _FLOATS[tree[0]](*found[1:]) if found and tree[0] in [*_FLOATS] else found


def written(found: Lowered) -> Tree:
    """A row program as lists that JSON has."""
    program = found.program
    values: list[Value] = [*program.columns, *program.uniforms, *program.values()]
    places = {value: place for place, value in enumerate(values)}
    own = [[type(value).__name__, *(_tree(part, places) for part in _parts(value))] for value in values]
    outputs = [[output.name, _tree(output.view, places)] for output in program.outputs]
    outcomes = [[*asdict(outcome).values()] for outcome in found.outcomes]
    return ["program", program.name, own, outputs, outcomes, returned_tree(found.returned)]


def _parts(value: Value) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value) if field.init]


def _tree(part: Any, places: dict[Value, int]) -> Tree:
    if isinstance(part, View):
        return ["view", places[part.value], *(_tree(x, places) for x in (part.shape, part.strides)), part.offset]
    if isinstance(part, Count):
        return ["count", *asdict(part).values()]
    if not isinstance(part, tuple):
        return part
    if not part:
        return []
    if not isinstance(part[0], int | View) and len({*map(repr, part)}) == 1:  # numbers of a Constant
        return ["times", len(part), _tree(part[0], places)]
    if part == (*map(float, range(len(part))),) and isinstance(part[0], float):
        return ["range", len(part)]
    return [_tree(x, places) for x in part]


def _read(tree: Tree) -> tuple[Program, list[Outcome], Returned]:
    """Read a row program that written() has written."""
    _, name, own, outputs, outcomes, returned = tree
    values: list[Any] = []
    for kind, *parts in own:
        values.append(getattr(row_program, kind)(*(_part(part, values) for part in parts)))
    inputs = [value for value in values if isinstance(value, Input)]
    columns, uniforms = (tuple(x for x in inputs if x.rows is rows) for rows in (True, False))
    results = tuple(Output(label, _part(view, values)) for label, view in outputs)
    return Program(name, columns, uniforms, results), [Outcome(*x) for x in outcomes], returned_from(returned)


def _part(tree: Tree, values: list[Any]) -> Any:
    if not isinstance(tree, list):
        return tree
    if tree[:1] == ["view"]:
        _, place, shape, strides, offset = tree
        return View(values[place], tuple(shape), tuple(strides), offset)
    if tree[:1] == ["count"]:
        return Count(*tree[1:])
    if tree[:1] == ["times"]:
        return (_part(tree[2], values),) * tree[1]
    if tree[:1] == ["range"]:
        return (*map(float, range(tree[1])),)
    return tuple(_part(part, values) for part in tree)
