"""Compiled kernels on disk: each is compiled once per machine.

A generated module is a file named by the hash of its text and of what else determines the machine code (Numba, LLVM,
Python, the processor). entry() stores machine code next to it and needs no Numba to load that; kernels for CUDA use
Numba's cache there (compile_once). The first compilation holds a lock, others wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from headrace.core.terminal import tell
from headrace.kernels.runtime.cache_folder import folder, folders, keep, locked, only_trusted, trusted, used, write

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher
    from numba.types import Type

    from headrace.kernels.runtime.native import Argument, Native

# variables of Numba's that do not change the code it makes
SAME_CODE = (
    {"NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES", "NUMBA_NUM_THREADS", "NUMBA_COLOR_SCHEME"}
    | {"NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY", "NUMBA_DISABLE_PERFORMANCE_WARNINGS"}
    | {"NUMBA_FULL_TRACEBACKS", "NUMBA_DEVELOPER_MODE", "NUMBA_DISABLE_CUDA", "NUMBA_CUDA_LOG_LEVEL"}
    | {"NUMBA_ENABLE_CUDASIM"}  # for CUDA, nothing is compiled then
)
ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None  # for a module, where the disk is full
_DIGEST = 32  # bytes at the start of a file of machine code: see _checksum()
_entries: dict[Path, Native] = {}
_of_texts: WeakValueDictionary[Path, Native] = WeakValueDictionary()  # unloaded with what uses them
_announced: set[str] = set()
_loading = threading.RLock()  # else another thread finds a module that is not whole yet


def entry(
    name: str,
    text: str,
    function: str,
    arguments: tuple[Argument, ...],
    announcement: str,
    explained: Callable[[ModuleType], AbstractContextManager[ModuleType | None]] = contextlib.nullcontext,
) -> Native:
    """Load a function of the module with this text for arguments of these types. It is compiled where no process has
    done that before.

    The announcement goes to stderr when something is compiled, inside explained(module).
    """
    from headrace.kernels.runtime.native import Native, kind

    def compiled() -> bytes:
        from headrace.kernels.runtime.machine_code import object_code

        module = load(name, text)
        _announce(module.__name__, announcement)
        with explained(module):
            return object_code(getattr(module, function), arguments)

    path = folder() / file_name(name, text, function, kind(arguments))
    if path not in _entries:
        _entries[path] = Native(_code(path, compiled))
    return _entries[path]


def file_name(name: str, text: str, function: str, types: str) -> str:
    """The file of the function that entry() compiles for arguments of these types, as native.kind() writes them."""
    return f"{_title(name, text)}.{function}.{hashlib.sha256(types.encode()).hexdigest()[:8]}.bin"


def is_kept(file: str) -> bool:
    """Tell whether a file of machine code is in one of the folders."""
    return any((place / file).exists() for place in (*folders(), folder()))


def of_text(name: str, text: str, make: Callable[[str], bytes]) -> Native:
    """Load the machine code that make(text) makes, without Numba. make is called where no process has done that before.

    text: all that determines the code, besides this processor, LLVM and the module of `make`.
    """
    path = _path_of(name, text, make)
    return _of_texts.get(path) or _shared(path, _code(path, lambda: make(text)))


def bytes_of_text(name: str, text: str, make: Callable[[str], bytes]) -> tuple[bytes, str]:
    """Code for another device than the CPU, kept as in of_text(), and the name of its file. make(text) returns the
    code."""
    path = _path_of(name, text, make)
    return _code(path, lambda: make(text)), path.name


def _path_of(name: str, text: str, make: Callable[[str], bytes]) -> Path:
    from headrace.kernels.runtime.native import processor

    made_by = Path(make.__code__.co_filename).read_text()
    parts = [text, made_by, version("llvmlite"), *processor()[:2]]
    return folder() / f"headrace_{name}_{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:20]}.bin"


def native_named(file: str) -> Native | None:
    """Load code that of_text() made in any process, by the name of its file. None where there is no such file."""
    path = folder() / file
    found = _of_texts.get(path)
    if found is None and (code := _read(file)) is not None:
        found = _shared(path, code)
    return found


def _shared(path: Path, code: bytes) -> Native:
    from headrace.kernels.runtime.native import Native

    return _of_texts.setdefault(path, Native(code, path.name))


def kept_content(file: str) -> bytes | None:
    """Read what keep_content() wrote into a file of the folder. None where there is none, or a damaged one."""
    return _read(file)


def keep_content(file: str, content: bytes) -> None:
    """Write a file of the folder, with a checksum."""
    keep(folder() / file, _checksum(file, content) + content)


def guarded(file: str) -> AbstractContextManager[None]:
    """Hold a lock between processes, to make a file of the folder."""
    return locked((folder() / file).with_suffix(".lock"))


def _code(path: Path, compiled: Callable[[], bytes]) -> bytes:
    """Read a file of the folder. Where there is none, its content is compiled and kept."""
    code = _read(path.name)
    if code is None:
        with locked(path.with_suffix(".lock")):
            code = _read(path.name) or compiled()
            keep(path, _checksum(path.name, code) + code)
    return code


def _announce(title: str, announcement: str) -> None:
    """Announce once per module that it is compiled: in this process, and among processes that compile it meanwhile."""
    if title in _announced:
        return
    _announced.add(title)
    path = folder() / f"{title}.announced"
    with locked(path.with_suffix(".announcing")):
        if not _runs((trusted(path) or b"").decode(errors="replace")):
            with contextlib.suppress(OSError):
                write(path, _process().encode())
            tell(announcement)


def _process() -> str:
    return f"{platform.node()} {os.getpid()}"


def _runs(process: str) -> bool:
    """Tell whether a process, as _process() names it, is another one of this machine that has not ended."""
    node, _, number = process.rpartition(" ")
    if os.name != "posix" or node != platform.node() or process == _process():
        return False
    try:
        os.kill(int(number), 0)
    except PermissionError:  # another user's
        return True
    except (ValueError, OSError):
        return False
    return True


def _read(name: str) -> bytes | None:
    """The machine code in a file of the folders; None where there is none, or a damaged one."""
    for place in dict.fromkeys((*folders(), folder())):
        content = trusted(place / name) or b""
        code = content[_DIGEST:]
        if code and content[:_DIGEST] == _checksum(name, code):
            used(place / name)
            return code
    return None


def _checksum(name: str, code: bytes) -> bytes:
    """SHA-256 of a file's name and the code in it. The code of another function under this name counts as damage."""
    return hashlib.sha256(name.encode() + b"\0" + code).digest()


def _title(name: str, text: str) -> str:
    """The name of the module with this text on this machine."""
    return f"headrace_{name}_{hashlib.sha256(chr(0).join([text, *_machine()]).encode()).hexdigest()[:20]}"


def load(name: str, text: str) -> ModuleType:
    """The module with this text. `name`: shown in its file name.

    It is run from this text, never from a file; one in the folder is for Numba's cache and for tracebacks.
    """
    with _loading:
        return _loaded(_title(name, text), text)


def _loaded(title: str, text: str) -> ModuleType:
    if title in sys.modules:
        return sys.modules[title]
    path = folder() / f"{title}.py"
    with locked(path.with_suffix(".lock")):
        if trusted(path) != text.encode() and not keep(path, text.encode()):
            path = Path(tempfile.mkdtemp(prefix="headrace-kernels-", dir=ROOM)) / path.name
            write(path, text.encode())
    module = ModuleType(title)
    module.__file__ = str(path)
    sys.modules[title] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[title]
        raise
    return module


def compile_once(module: ModuleType, wanted: Mapping[str, tuple[Type, ...]], announcement: str) -> None:
    """Compile functions of a module for tuples of Numba types, or load them where any process has done that before.

    The announcement goes to stderr when something is compiled.
    """
    missing = {name: types for name, types in wanted.items() if types not in getattr(module, name).overloads}
    signature = hashlib.sha256(repr(sorted(missing.items())).encode()).hexdigest()[:8]
    done = folder() / f"{module.__name__}.{signature}.done"
    if not missing:
        return
    with contextlib.nullcontext() if done.exists() else locked(folder() / f"{module.__name__}.lock"):
        if not done.exists():
            tell(announcement)
        with only_trusted(folder(), module.__name__):
            for name, types in missing.items():
                _compile(getattr(module, name), types)
        if not done.exists():
            keep(done, b"")


def _compile(function: Dispatcher, types: tuple[Type, ...]) -> None:
    """Compile a function, also where Numba's cache cannot be written."""
    try:
        function.compile(types)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        function._cache.disable()  # type: ignore[attr-defined]
        function.compile(types)


@cache
def _machine() -> tuple[str, ...]:
    """Versions, settings and sources that determine the machine code and how it is called, besides the text."""
    from headrace.kernels.runtime import native

    calling = [Path(__file__).with_name(f"{module}.py").read_text() for module in ("native", "machine_code")]
    return (
        version("numba"),
        version("llvmlite"),
        platform.python_version(),
        sys.implementation.cache_tag,
        *native.processor()[:2],
        f"ABI {native.ABI}",
        *calling,
        *_numba_settings(),
    )


def _numba_settings() -> list[str]:
    """Numba's settings that may change the code, from the environment and from its file in the current folder."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    settings = [f"{name}={variables[name]}" for name in sorted(variables) if name not in SAME_CODE]
    with contextlib.suppress(OSError):
        settings.append(Path(".numba_config.yaml").read_text())
    return settings
