"""Compiled kernels on disk: each is compiled once per machine.

A generated module is a file named by the hash of its text and of what else determines the machine code (Numba, LLVM,
Python, the processor). entry() stores machine code next to it and needs no Numba to load that; kernels for CUDA and for
Numba's own threads use Numba's cache there (compile_once). The first compilation holds a lock, others wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba.types import Type

    from headrace.kernels.runtime.native import Argument, Native

_DIGEST = 32  # bytes at the start of a file of machine code: SHA-256 of the rest
_entries: dict[Path, Native] = {}
_announced: set[ModuleType] = set()


@cache
def folder() -> Path:
    """Where kernels are kept: $HEADRACE_CACHE, else ~/.cache/headrace/kernels, else a temporary folder."""
    wanted = os.environ.get("HEADRACE_CACHE")
    paths = [Path(wanted).absolute()] if wanted else []
    for path in [*paths, Path(os.path.expanduser("~")) / ".cache" / "headrace" / "kernels"]:
        if path.is_absolute() and _writable(path):
            return path
    return Path(tempfile.mkdtemp(prefix="headrace-kernels-"))


def entry(
    name: str,
    text: str,
    function: str,
    arguments: tuple[Argument, ...],
    announcement: str,
    explained: Callable[[ModuleType], AbstractContextManager[ModuleType | None]] = contextlib.nullcontext,
) -> Native:
    """A function of the module with this text, compiled for arguments of these types, or loaded where any process has
    done that before.

    The announcement goes to stderr when something is compiled, inside explained(module).
    """
    from headrace.kernels.runtime.native import Native, kind

    def compiled() -> bytes:
        from headrace.kernels.runtime.machine_code import object_code

        module = load(name, text)
        if module not in _announced:
            _announced.add(module)
            print(announcement, file=sys.stderr, flush=True)
        with explained(module):
            return object_code(getattr(module, function), arguments)

    types = hashlib.sha256(kind(arguments).encode()).hexdigest()[:8]
    path = folder() / f"{_title(name, text)}.{function}.{types}.bin"
    if path not in _entries:
        code = _read(path)
        if code is None:
            with locked(path.with_suffix(".lock")):
                code = _read(path) or compiled()
                write(path, hashlib.sha256(code).digest() + code)
        _entries[path] = Native(code)
    return _entries[path]


def _read(path: Path) -> bytes | None:
    """The machine code in a file; None where there is none, or a damaged one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    code = content[_DIGEST:]
    return code if content[:_DIGEST] == hashlib.sha256(code).digest() else None


def _title(name: str, text: str) -> str:
    """The name of the module with this text on this machine."""
    return f"headrace_{name}_{hashlib.sha256(chr(0).join([text, *_machine()]).encode()).hexdigest()[:20]}"


def load(name: str, text: str) -> ModuleType:
    """The module with this text, from a file in the cache. `name`: shown in its file name."""
    title = _title(name, text)
    if title in sys.modules:
        return sys.modules[title]
    path = folder() / f"{title}.py"
    with locked(path.with_suffix(".lock")):  # written once: Numba's cache goes by the file's time
        if not path.exists():
            write(path, text.encode())
    spec = importlib.util.spec_from_file_location(title, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[title]
        raise
    return module


def compile_once(module: ModuleType, wanted: Mapping[str, tuple[Type, ...]], announcement: str) -> None:
    """Compile functions of a module for tuples of Numba types, or load them where any process has done it before.

    The announcement goes to stderr when something is compiled.
    """
    missing = {name: types for name, types in wanted.items() if types not in getattr(module, name).overloads}
    signature = hashlib.sha256(repr(sorted(missing.items())).encode()).hexdigest()[:8]
    done = folder() / f"{module.__name__}.{signature}.done"
    if not missing:
        return
    with contextlib.nullcontext() if done.exists() else locked(folder() / f"{module.__name__}.lock"):
        if not done.exists():
            print(announcement, file=sys.stderr, flush=True)
        for name, types in missing.items():
            getattr(module, name).compile(types)
        if not done.exists():
            write(done, b"")


def write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; none where the system has no locks: every write is atomic anyway."""
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
    """What determines the machine code besides the text."""
    from headrace.kernels.runtime import native

    return (
        version("numba"),
        version("llvmlite"),
        platform.python_version(),
        sys.implementation.cache_tag,
        *native.processor()[:2],
    )


def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
