"""Records of losses that are kept between processes: all that calls of a loss need, or why it is not compiled. A record
is JSON without Python code. Machine code is in a file of its own, named in the record."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, TypeAlias

from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.targets.cpu_program import Layout
from headrace.kernels.rows.tracing.stand_ins import METRIC, NUMBER, Metric
from headrace.kernels.rows.tracing.trace_key import Key
from headrace.kernels.runtime import cache
from headrace.kernels.runtime.native import Native

Returned: TypeAlias = tuple[TreeSpec, list[Any]]  # how metrics are put together, of numbers and METRICs and NUMBERs
MOST = 256  # records that a process remembers
MOST_READS = 16  # traces that differ in what they read
_known: dict[str, bytes] = {}


class _Unkept(Exception):
    """Return value of a loss that cannot be written down."""


@dataclass(frozen=True)
class GpuLayout:
    """Sizes of the memory that a call of a program needs.

    kernels: name, blocks of threads (0: as many as there are parts) and bytes of a block's own memory, of each launch.
    lanes: rows of a block. kept, scratch, factors, uniform, apart, accumulators: counts of numbers, of each block of
    rows, each part, each row, the call, the call, each part. numbers: those that depend on the rows, as in Count.
    phases: passes over all rows.
    """

    columns: int
    uniforms: int
    outputs: int
    phases: int
    lanes: int
    kernels: list[list[Any]]
    kept: int
    scratch: int
    factors: int
    uniform: int
    apart: int
    accumulators: int
    numbers: list[list[float]]


@dataclass(frozen=True)
class Ptx:
    """Code of kernels, and the file in which it is kept."""

    code: bytes
    file: str | None


@dataclass(frozen=True)
class Outcome:
    """An output. learned, written: the number of the input whose gradient, or whose new numbers, it is.

    metric: whether the loss returns it, in dtype. stored: the dtype of its memory. rows: whether it has a number for
    each row. sizes: (c, k) for each dimension, of c * rows^k numbers.
    """

    name: str
    learned: int | None
    written: int | None
    metric: bool
    dtype: str
    stored: str
    rows: bool
    sizes: list[list[int]]


@dataclass(frozen=True)
class Record:
    """A loss that is compiled. work: floating-point operations of a row."""

    native: Native | Ptx
    layout: Layout | GpuLayout
    outcomes: list[Outcome]
    returned: Returned
    work: int


@dataclass(frozen=True)
class Constants:
    """A loss that is compiled with some settings as constants: it is another one for each of their values."""

    names: frozenset[str]


Found: TypeAlias = Record | Constants | NotRows


def recorded(
    key: Key | None, places: str, read: Set[str], make: Callable[[], Record | Constants], again: bool
) -> Record | Constants:
    """Return what is kept under a key. If nothing is, call make() and keep its result; other processes that want the
    same wait.

    places: positions of the code in its files, which refusals name. read: the settings that make() has read, after it
    was called. again: call make() whatever is kept. Raises NotRows: what make() raises, and what it has raised before.
    """
    if key is None:
        return make()
    found = None if again else _find(key, places)
    if found is None:
        with cache.guarded(_file(key.text)):
            found = None if again else _find(key, places)
            if found is None:
                found = _outcome(make)
                keep(key.reading(read), places, found)
    if isinstance(found, NotRows):
        raise found
    return found


def _find(key: Key, places: str) -> Found | None:
    """Load the record of a trace that read settings of these values; None where there is none."""
    found = (_load(key.reading(names).digest, places) for names in _reads(key))
    return next((one for one in found if one is not None), None)


def _reads(key: Key) -> list[list[str]]:
    """The settings that each trace has read which is kept under the key's text, the newest first."""
    if not key.settings:
        return [[]]
    try:
        known = json.loads(cache.kept_content(_reads_file(key)) or b"[]")
        return [names for names in known if key.settings.keys() >= {*names}]
    except (TypeError, ValueError):
        return []


def _outcome(make: Callable[[], Record | Constants]) -> Found:
    try:
        return make()
    except NotRows as error:
        return error


def keep(key: Key, places: str, found: Found) -> None:
    """Keep what was found under a key."""
    try:
        content = json.dumps(_written(found, places)).encode()
    except _Unkept:
        return
    if isinstance(found, NotRows) and found.passing:
        return
    _remember(key.digest, content)
    cache.keep_content(_file(key.digest), content)
    if key.settings:
        others = [names for names in _reads(key) if names != [*key.read]]
        cache.keep_content(_reads_file(key), json.dumps([key.read, *others][:MOST_READS]).encode())


def _file(key: str) -> str:
    return f"headrace_loss_{key}.json"


def _reads_file(key: Key) -> str:
    return f"headrace_reads_{key.text}.json"


def _remember(key: str, content: bytes) -> None:
    _known.pop(key, None)
    _known[key] = content
    for old in list(_known)[:-MOST]:
        _known.pop(old, None)


def _load(key: str, places: str) -> Found | None:
    """Load what is kept under a key. None where there is nothing, or something that cannot be read."""
    content = _known.get(key) or cache.kept_content(_file(key))
    if content is None:
        return None
    try:
        found = _read(json.loads(content), places)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError):
        return None
    if found is not None:
        _remember(key, content)
    return found


def _written(found: Found, places: str) -> dict[str, Any]:
    if isinstance(found, NotRows):
        return {"refused": [found.reason, found.where, found.for_good], "places": places}
    if isinstance(found, Constants):
        return {"constants": sorted(found.names)}
    if found.native.file is None:
        raise _Unkept
    return {
        "code": found.native.file,
        "layout": asdict(found.layout),
        "outcomes": [asdict(outcome) for outcome in found.outcomes],
        "returned": returned_tree(found.returned),
        "work": found.work,
    }


def _read(table: dict[str, Any], places: str) -> Found | None:
    if "refused" in table:
        reason, where, for_good = table["refused"]
        return NotRows(reason, where, for_good) if table["places"] == places else None
    if "constants" in table:
        return Constants(frozenset(table["constants"]))
    gpu = "kernels" in table["layout"]
    native = _ptx(table["code"]) if gpu else cache.native_named(table["code"])
    if native is None:
        return None
    layout = (GpuLayout if gpu else Layout)(**table["layout"])
    outcomes = [Outcome(**outcome) for outcome in table["outcomes"]]
    return Record(native, layout, outcomes, returned_from(table["returned"]), table["work"])


def _ptx(file: str) -> Ptx | None:
    code = cache.kept_content(file)
    return None if code is None else Ptx(code, file)


def returned_tree(returned: Returned) -> Any:
    """The way in which metrics are put together, as JSON."""
    spec, fixed = returned
    return _tree(tree_unflatten(fixed, spec))


def returned_from(tree: Any) -> Returned:
    """Read what returned_tree() has written."""
    fixed, spec = tree_flatten(_value(tree))
    return spec, fixed


def _tree(value: Any) -> Any:
    """Write what a loss returns besides its loss as JSON, each part as a list that begins with its kind."""
    kind = type(value)
    if isinstance(value, Metric):
        return [value.kind]
    if kind in (bool, int, float, str, type(None)):
        return ["constant", value]
    if kind is dict and all(type(key) in (bool, int, float, str) for key in value):
        return ["dict", [[key, _tree(part)] for key, part in value.items()]]
    if kind in (list, tuple):
        return [kind.__name__, [_tree(part) for part in value]]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = [kind.__module__, kind.__qualname__]
        if _named(*names) is kind:
            return ["named tuple", [_tree(part) for part in value], names]
    raise _Unkept


def _value(tree: Any) -> Any:
    kind, *rest = tree
    if kind in ("metric", "number"):
        return METRIC if kind == "metric" else NUMBER
    if kind == "constant":
        return rest[0]
    if kind == "dict":
        return {key: _value(part) for key, part in rest[0]}
    parts = [_value(part) for part in rest[0]]
    if kind == "named tuple":
        found = _named(*rest[1])
        if not (isinstance(found, type) and issubclass(found, tuple)):
            raise ValueError(f"{rest[1]} is no named tuple")
        return found(*parts)
    return {"list": list, "tuple": tuple}[kind](parts)


def _named(module: str, name: str) -> object:
    """Find a name in an imported module. None where it has no such name."""
    return reduce(lambda owner, part: getattr(owner, part, None), name.split("."), sys.modules.get(module))  # type: ignore[arg-type, return-value]
