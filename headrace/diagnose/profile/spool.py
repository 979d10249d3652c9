"""Reads the samplers' spool files: one for each process, truncated if the process was killed.

A line that cannot be read is skipped, with the records that refer to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.diagnose.injected.sampler import BLOCKED, COLLECTING, WITHOUT_GRADIENTS


@dataclass(frozen=True)
class Code:
    """A function, class body or module."""

    file: str
    name: str  # qualified
    module: str
    line: int
    ancestors: tuple[str, ...]  # full names of a method's class and its bases; () for a function
    other_names: tuple[tuple[str, str], ...] = ()  # names by which it calls C functions, and the functions' own names

    @property
    def method(self) -> str:
        """The unqualified name."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Place:
    """A call or other expression in a code object, as it is being evaluated."""

    code: Code
    line: int
    end_line: int | None = None  # from Python 3.11 on, like the next two
    column: int | None = None  # in bytes of UTF-8
    end_column: int | None = None
    other_names: tuple[tuple[str, str], ...] = ()  # the same for variables of the code object
    # of the variables that the code uses, see injected.variables.kinds
    kinds: tuple[tuple[str, str], ...] = field(default=(), compare=False)


Stack = tuple[Place, ...]  # innermost first
COLLECTION = Place(Code("<gc>", "collect", "gc", 0, ()), 0)  # innermost while Python collects garbage: it has no frame
Record = list[Any]  # a line of a spool file, as JSON gives it


@dataclass(frozen=True)
class Sample:
    """The stack of a thread at one time."""

    end: float  # s of time.monotonic()
    seconds: float  # length of the time before `end` that it covers
    stack: Stack
    blocked: bool = False  # whether the thread waited, and another thread sampled it
    without_gradients: bool = False  # whether torch recorded no gradients; not known of a blocked thread
    waits_for: str = ""  # what it waited for, see record.system_calls
    variables: int = 0  # changes when variables of the script's functions refer to other objects
    cpu: float = 0.0  # s on a core since the thread last sampled itself


@dataclass
class Process:
    """The spool file of one process."""

    pid: int
    parent: int
    began: float  # s of time.monotonic(), as all times here
    python: str
    samples: dict[int, list[Sample]] = field(default_factory=dict)  # by native id of thread; the main one's is the pid
    names: dict[int, str] = field(default_factory=dict)  # of threads
    counters: dict[str, float] = field(default_factory=dict)
    batches: list[tuple[Stack, int, int]] = field(default_factory=list)  # rows, and positions of each row
    versions: dict[str, str] = field(default_factory=dict)
    gpu: dict[str, float] = field(default_factory=dict)  # see injected.cuda_kernels
    ended: float | None = None  # None if the process was killed
    error: str = ""  # "ValueError: ..." if an exception ended it
    cost: float = 0.0  # s that sampling took
    period: float = 0.0  # s
    limitations: list[str] = field(default_factory=list)


def read(folder: Path) -> list[Process]:
    """The processes whose files are in a folder, in the order in which they began."""
    processes = [process for path in folder.glob("*.jsonl") if (process := _process(path))]
    return sorted(processes, key=lambda process: process.began)


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_text(errors="replace").splitlines():
        with suppress(json.JSONDecodeError):  # the last line of a process that was killed while writing
            record = json.loads(line)
            if isinstance(record, list) and record:
                yield record


def _process(path: Path) -> Process | None:
    codes: dict[int, Code] = {}
    places: dict[int, Place] = {}
    stacks: dict[int, Stack] = {}
    process = None
    for kind, *values in _records(path):
        if kind == "process":
            process = Process(*values)
        elif kind == "code":
            number, file, name, module, line, ancestors, *others = values
            renamed = tuple(others[0].items()) if others else ()
            codes[number] = Code(file, name, module, line, tuple(ancestors), renamed)
        elif kind == "place" and values[1] in codes:
            number, code, line, end_line, column, end_column, aliases, *more = values
            position = line or codes[code].line, end_line, column, end_column
            kinds = tuple(more[0].items()) if more else ()
            places[number] = Place(codes[code], *position, tuple(aliases.items()), kinds)
        elif kind == "stack" and places.keys() >= set(values[1]):
            stacks[values[0]] = own_frames(tuple(places[number] for number in values[1]))
        elif process is not None:
            _add(process, stacks, kind, values)
    return process


def own_frames(stack: Stack) -> Stack:
    """A stack without the frames that a forked process has inherited from its parent, and without a notebook's."""
    for index, place in enumerate(stack):
        if place.code.module == "multiprocessing.process" and place.code.method == "_bootstrap":
            return stack[: index + 1]
        if place.code.module.endswith("diagnose.notebook") and place.code.method == "run_cell":
            return stack[:index]
    return stack


def _add(process: Process, stacks: dict[int, Stack], kind: str, values: Record) -> None:
    if kind == "samples":
        for thread, end, seconds, stack, *more in values[0]:
            if stack in stacks:
                flags, variables, cpu = (*more, 0, 0, 0.0)[:3]
                state = bool(flags & BLOCKED), bool(flags & WITHOUT_GRADIENTS), "", variables, cpu
                places = (COLLECTION, *stacks[stack]) if flags & COLLECTING else stacks[stack]
                process.samples.setdefault(thread, []).append(Sample(end, seconds, places, *state))
    elif kind in ("counters", "gpu", "versions"):
        getattr(process, kind).update(values[0])
    elif kind == "batch" and values[0] in stacks:
        process.batches.append((stacks[values[0]], values[1], (*values[2:], 1)[0]))
    elif kind == "thread":
        process.names[values[0]] = values[1]
    elif kind == "cost":
        process.cost, process.period = values
    elif kind == "end":
        process.ended = values[0]
        process.error = f"{values[1]}: {values[2]}" if values[1] else ""
    elif kind == "limitation":
        process.limitations.append(values[0])
