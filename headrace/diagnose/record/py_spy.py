"""Reads what py-spy has recorded of a process, as if the process had told it.

Threads, functions and lines are seen as from inside, and weigh the same. Which classes are worlds is told from the
source, and so is a call of C, where it is the only call on its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from headrace.diagnose.injected.stacks import ENV_CLASS
from headrace.diagnose.profile.source_context import Function
from headrace.diagnose.profile.spool import Code, Place, Process, Sample, Stack, own_frames

PERIOD = 0.01  # s between samples; py-spy takes about a hundredth of a core for each process
WORLDS = ("Env", "Wrapper")  # what names of bases of environments end in


def process(events: list[dict[str, Any]], pid: int, parent: int, began: float, python: str) -> Process:
    """What py-spy's trace tells of a process.

    events: those of Chrome's format, py-spy's thread titles and frames. began: when their clock did, in s of
    time.monotonic(). python: the interpreter's version.
    """
    told = Process(pid, parent, began, True, python, period=PERIOD)
    for title, begin, end, stack in _stretches(events):
        number, _, name = title.removeprefix("thread (").partition(")")
        name = name.removeprefix(": ")
        thread = pid if name == "MainThread" else int(number, 0)
        if name:
            told.names[thread] = name
        parts = max(round((end - begin) / PERIOD), 1)
        seconds = (end - begin) / parts
        told.samples.setdefault(thread, []).extend(
            Sample(began + begin + seconds * part, seconds, own_frames(stack)) for part in range(1, parts + 1)
        )
    return told


def _stretches(events: list[dict[str, Any]]) -> Iterator[tuple[str, float, float, Stack]]:
    """A thread's title, and from when to when (s) it had a stack, which is innermost first."""
    threads: dict[int, list[dict[str, Any]]] = {}  # the frames that are open, outermost first; the title before them
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
    """A place by its line alone: the call on it, where there is one alone, and what its source says of the function."""
    code = Code(file, name, _module(file), line, ())
    inside = [each for each in _functions(file) if each.first <= line <= each.last and each.method == code.method]
    if inside:
        inner = max(inside, key=lambda each: each.first)
        code = Code(file, inner.name, code.module, inner.first, inner.ancestors)
    calls = _calls(file).get(line, [])
    if len(calls) != 1:
        return Place(code, line)
    return Place(code, line, calls[0].end_lineno, calls[0].col_offset, calls[0].end_col_offset)


def _module(file: str) -> str:
    """The module of a file, by the packages it lies in."""
    if file.startswith("<"):
        return file.strip("<>").removeprefix("frozen ")
    path = Path(file)
    packages = list(takewhile(lambda folder: (folder / "__init__.py").exists(), path.parents))
    names = [folder.name for folder in reversed(packages)] + [path.stem] * (path.stem != "__init__")
    return ".".join(names)


@dataclass(frozen=True)
class _Function:
    name: str  # qualified
    method: str
    first: int  # line
    last: int
    ancestors: tuple[str, ...]


def _tree(file: str) -> ast.Module:
    """A file's syntax tree; an empty one where it is no Python."""
    with suppress(OSError, SyntaxError, ValueError):
        return ast.parse(Path(file).read_bytes())
    return ast.Module([], [])


@cache
def _functions(file: str) -> list[_Function]:
    """The functions of a file."""
    return list(_functions_in(_tree(file), "", ()))


def _functions_in(node: ast.AST, prefix: str, ancestors: tuple[str, ...]) -> Iterator[_Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            name = prefix + child.name
            yield _Function(name, child.name, child.lineno, child.end_lineno or child.lineno, ancestors)
            yield from _functions_in(child, f"{name}.<locals>.", ())
        elif isinstance(child, ast.ClassDef):
            yield from _functions_in(child, f"{prefix}{child.name}.", (ENV_CLASS,) if _is_world(child) else ())
        else:
            yield from _functions_in(child, prefix, ancestors)


def _is_world(tree: ast.ClassDef) -> bool:
    """Whether a class can be stepped and reset, itself or by one of its bases."""
    methods = {node.name for node in tree.body if isinstance(node, Function)}
    inherits = any(ast.unparse(base).endswith(WORLDS) for base in tree.bases)
    return "step" in methods and ("reset" in methods or inherits)


@cache
def _calls(file: str) -> dict[int, list[ast.Call]]:
    """The calls of a file by the line on which they begin."""
    calls: dict[int, list[ast.Call]] = {}
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Call):
            calls.setdefault(node.lineno, []).append(node)
    return calls
