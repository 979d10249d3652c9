"""Converts a recording of py-spy to the form of a spool file.

Threads, functions and lines are those that the sampler would record. Environment classes are recognised in the source,
and so is the call of a C function if it is the only call on its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TypedDict

from headrace.diagnose.injected.stacks import ENV_CLASS
from headrace.diagnose.profile.source_context import Function, calls_in, syntax_tree
from headrace.diagnose.profile.spool import Code, Place, Process, Sample, Stack, own_frames

PERIOD = 0.01  # s between samples; py-spy takes about a hundredth of a core for each process
ENV_BASES = ("Env", "Wrapper")  # ends of the names of environments' base classes


class Frame(TypedDict):
    """A place in the source."""

    filename: str
    line: int


class Event(TypedDict):
    """An event of Chrome's trace format: a frame, or a thread's title, begins ("B") or ends."""

    ph: str
    name: str
    tid: int
    ts: float  # us
    args: Frame


def process(events: list[Event], pid: int, parent: int, began: float, python: str) -> Process:
    """A process as py-spy recorded it.

    began: time.monotonic() at the zero of the events' clock. python: the interpreter's version.
    """
    recorded = Process(pid, parent, began, python, period=PERIOD)
    for title, begin, end, stack in _stretches(events):
        number, _, name = title.removeprefix("thread (").partition(")")
        name = name.removeprefix(": ")
        thread = pid if name == "MainThread" else int(number, 0)
        if name:
            recorded.names[thread] = name
        parts = max(round((end - begin) / PERIOD), 1)
        seconds = (end - begin) / parts
        recorded.samples.setdefault(thread, []).extend(
            Sample(began + begin + seconds * part, seconds, own_frames(stack)) for part in range(1, parts + 1)
        )
    return recorded


def _stretches(events: list[Event]) -> Iterator[tuple[str, float, float, Stack]]:
    """Intervals in which a thread's stack stays the same: the thread's title, begin and end (s), and the stack."""
    threads: dict[int, list[Event]] = {}  # the thread's title, then its frames, outermost first
    since: dict[int, float] = {}
    for event in events:
        frames, now = threads.setdefault(event["tid"], []), event["ts"] / 1e6
        begin = since.get(event["tid"], now)
        if len(frames) > 1 and now > begin:
            places = [_place(frame["args"]["filename"], frame["name"], frame["args"]["line"]) for frame in frames[1:]]
            yield frames[0]["name"], begin, now, tuple(reversed(places))
        since[event["tid"]] = now
        if event["ph"] == "B":
            frames.append(event)
        else:
            frames.pop()


@cache
def _place(file: str, name: str, line: int) -> Place:
    """A place by its line, with its function from the source, and the call on the line if there is only one."""
    code = Code(file, name, _module(file), line, ())
    inside = (each for each, last in _functions(file) if each.line <= line <= last and each.method == code.method)
    code = max(inside, key=lambda each: each.line, default=code)
    calls = [call for call in calls_in(file) if call.lineno == line]
    if len(calls) != 1:
        return Place(code, line)
    return Place(code, line, calls[0].end_lineno, calls[0].col_offset, calls[0].end_col_offset)


def _module(file: str) -> str:
    """The module name of a file, from the packages that contain it."""
    if file.startswith("<"):
        return file.strip("<>").removeprefix("frozen ")
    path = Path(file)
    packages = list(takewhile(lambda folder: (folder / "__init__.py").exists(), path.parents))
    names = [folder.name for folder in reversed(packages)] + [path.stem] * (path.stem != "__init__")
    return ".".join(names)


@cache
def _functions(file: str) -> list[tuple[Code, int]]:
    """The functions of a file, with their last lines."""
    return list(_functions_in(syntax_tree(file), Code(file, "", _module(file), 0, ())))


def _functions_in(node: ast.AST, around: Code) -> Iterator[tuple[Code, int]]:
    """around: what contains the node; its name is the prefix of the functions' names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            code = replace(around, name=around.name + child.name, line=child.lineno)
            yield code, child.end_lineno or child.lineno
            yield from _functions_in(child, replace(code, name=f"{code.name}.<locals>.", ancestors=()))
        elif isinstance(child, ast.ClassDef):
            bases = (ENV_CLASS,) if _is_env(child) else ()
            yield from _functions_in(child, replace(around, name=f"{around.name}{child.name}.", ancestors=bases))
        else:
            yield from _functions_in(child, around)


def _is_env(tree: ast.ClassDef) -> bool:
    """Tell whether a class has step(), and has reset() itself or inherits from an environment."""
    methods = {node.name for node in tree.body if isinstance(node, Function)}
    inherits = any(ast.unparse(base).endswith(ENV_BASES) for base in tree.bases)
    return "step" in methods and ("reset" in methods or inherits)
