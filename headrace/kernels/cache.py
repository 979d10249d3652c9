"""Compiled kernels on disk, so that each is compiled once per machine.

A generated module lies in a file named by the hash of its text and of what else decides the machine code (Numba,
Python, the processor); Numba's own cache lies beside it. The first compilation holds a lock, others wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


@cache
def folder() -> Path:
    """Where kernels are kept: $HEADRACE_CACHE, else ~/.cache/headrace/kernels, else a temporary folder."""
    wanted = os.environ.get("HEADRACE_CACHE")
    paths = [Path(wanted).absolute()] if wanted else []
    for path in [*paths, Path(os.path.expanduser("~")) / ".cache" / "headrace" / "kernels"]:
        if path.is_absolute() and _writable(path):
            return path
    return Path(tempfile.mkdtemp(prefix="headrace-kernels-"))


def load(name: str, text: str) -> ModuleType:
    """The module with this text, from a file in the cache. `name`: what a reader of the folder sees."""
    digest = hashlib.sha256("\0".join([text, *_machine()]).encode()).hexdigest()[:20]
    title = f"headrace_{name}_{digest}"
    if title in sys.modules:
        return sys.modules[title]
    path = folder() / f"{title}.py"
    with locked(path.with_suffix(".lock")):  # written once: Numba's cache goes by the file's time
        if not path.exists():
            write(path, text)
    spec = importlib.util.spec_from_file_location(title, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[title]
        raise
    return module


def compile_once(module: ModuleType, wanted: Mapping[str, tuple[Any, ...]], announcement: str) -> None:
    """Compile functions of a module for tuples of Numba types, or load them where any process did it before.

    The announcement goes to stderr when something is really going to be compiled.
    """
    missing = {name: types for name, types in wanted.items() if types not in getattr(module, name).overloads}
    signature = hashlib.sha256(repr(sorted(missing.items())).encode()).hexdigest()[:8]
    done = folder() / f"{module.__name__}.{signature}.done"
    if done.exists() or not missing:
        _compile(module, missing)
        return
    with locked(folder() / f"{module.__name__}.lock"):
        if not done.exists():
            print(announcement, file=sys.stderr, flush=True)
        _compile(module, missing)
        write(done, "")


def _compile(module: ModuleType, wanted: Mapping[str, tuple[Any, ...]]) -> None:
    for name, types in wanted.items():
        getattr(module, name).compile(types)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; where the system has none, go on: every write is atomic anyway."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path, "a") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _machine() -> tuple[str, ...]:
    """What decides the machine code beside the text."""
    import llvmlite.binding
    import numba

    return (
        numba.__version__,
        platform.python_version(),
        sys.implementation.cache_tag,
        llvmlite.binding.get_host_cpu_name(),
    )


def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
