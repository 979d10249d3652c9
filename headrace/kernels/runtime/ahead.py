"""Compilation of kernels ahead of time: other processes compile the kernels that a training will ask for. The first
training on a machine would otherwise compile for many seconds in one thread, while the other cores wait.

ahead.json has the entry points (kernels.runtime.entry_points) of each kind of training, those with the most code first;
for each entry point the types of its arguments, as native.kind() writes them; and the modules that have these types.
`python tests/kernels/test_ahead.py` writes it. An entry point that it lacks is compiled when it is asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headrace.kernels.runtime import entry_points
from headrace.kernels.runtime.cache import folder, is_kept
from headrace.kernels.runtime.cache_folder import is_locked
from headrace.kernels.runtime.native import Argument

FILE = Path(__file__).with_suffix(".json")
MOST = 3  # processes, as many as there are entry points that take long
SWITCH = "HEADRACE_COMPILE_AHEAD"  # 0: no process is started
_TUPLE, _NAME = re.compile(r"\w+\[[\w,]*\]\("), re.compile(r"[^,()]+")
_ARRAY = re.compile(r"([<>|=]\w\d+)(\d)([CFA])([wr])")
_ORDINARY: dict[str, Argument] = {"int": 0, "float": 0.0, "bool": False}
_started: set[str] = set()
_processes: list[subprocess.Popen[bytes]] = []  # which end by themselves


@cache
def known() -> dict[str, Any]:
    """The file's content: "trainings", kind -> names of entry points; "entries", name -> (types, announcement); and
    "modules"."""
    return json.loads(FILE.read_text())  # type: ignore[no-any-return]


def start(training: str, cores: int) -> None:
    """Compile what a kind of training needs and the cache lacks, in other processes, without waiting for them.

    cores: limit of the number of processes, this one included. Does nothing for a single core, at a second call, and
    for kinds of training that the file lacks.
    """
    if training in _started or cores == 1 or os.environ.get(SWITCH) == "0":
        return
    _started.add(training)
    missing = [name for name in known()["trainings"].get(training, ()) if not is_kept(_file(name))]
    for first in range(min(len(missing), cores - 1, MOST)):
        names = [*missing[first:], *missing[:first]]
        # its standard error is this process's, to which it announces what it compiles
        command = [sys.executable, "-m", __name__, str(os.getpid()), *names]
        nothing = subprocess.DEVNULL
        _processes.append(subprocess.Popen(command, stdin=nothing, stdout=nothing, start_new_session=True))


def _file(name: str) -> str:
    module, _, function = name.rpartition(".")
    return entry_points.file_name(module, function, known()["entries"][name][0])


def compile_all(names: list[str], parent: int) -> None:
    """Compile entry points that no other process compiles, as long as the process `parent` exists."""
    for name in names:
        lock = (folder() / _file(name)).with_suffix(".lock")
        if os.getppid() == parent and not is_kept(_file(name)) and not is_locked(lock):
            module, _, function = name.rpartition(".")
            types, announcement = known()["entries"][name]
            entry_points.entry(module, function, arguments(types), announcement)


def arguments(types: str) -> tuple[Argument, ...]:
    """Arguments of these types: small arrays, and zeros."""
    found = [thing for name in known()["modules"] for thing in vars(importlib.import_module(name)).values()]
    tuples = [thing for thing in found if isinstance(thing, type) and hasattr(thing, "_fields")]
    classes = {f"{thing.__name__}[{','.join(thing._fields)}]": thing for thing in tuples}
    made, end = _made(types, 0, classes)
    assert end == len(types) and isinstance(made, tuple)
    return made


def _made(types: str, at: int, classes: dict[str, Any]) -> tuple[Argument, int]:
    """The argument whose type is written at a place, and the place after it."""
    if (found := _TUPLE.match(types, at)) is None:
        found = _NAME.match(types, at)
        assert found is not None
        return _single(found[0]), found.end()
    parts, at = list[Argument](), found.end()
    while types[at] != ")":
        part, at = _made(types, at, classes)
        parts.append(part)
        at += types[at] == ","
    return tuple(parts) if found[0] == "tuple[](" else classes[found[0][:-1]](*parts), at + 1


def _single(kind: str) -> Argument:
    """An array, or a number."""
    if kind in _ORDINARY:
        return _ORDINARY[kind]
    if (found := _ARRAY.fullmatch(kind)) is None:
        return np.dtype(kind).type(0)
    dtype, dimensions, layout, rights = found.groups()
    array = np.zeros((2,) * int(dimensions), dtype, order="F" if layout == "F" else "C")
    array = array[..., ::2] if layout == "A" else array
    array.flags.writeable = rights == "w"
    return array


if __name__ == "__main__":
    compile_all(sys.argv[2:], int(sys.argv[1]))
