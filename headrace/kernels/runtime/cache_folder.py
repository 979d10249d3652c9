"""Folder of compiled kernels: which one it is, whose files in it are run, and how long they stay.

A user who can write there can have this process run any code. So the folder must be the user's own and closed to
others. A folder that $HEADRACE_CACHE names may belong to another user, who is trusted with that. It is only read where
it cannot be written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

from headrace.core.processes.state import start_folder
from headrace.core.terminal import tell
from headrace.core.types import Json
from headrace.core.writing import replacing

READABLE, PRIVATE = 0o644, 0o600  # modes of files: others may read them; the owner alone
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PROBE = bytes(2**16)  # what a folder must have room for
UNUSED_FOR = 90 * 86400  # s after which a file is removed that was not used
MOST_BYTES = 2**30  # of all files; beyond, those are removed that were not used the longest
BETWEEN_LOOKS = 64  # files that a process keeps from one look for old ones to the next: one at thousands takes 0.2 s
_kept = count()


@cache
def folders() -> tuple[Path, ...]:
    """List of the folders with kernels. New kernels are kept in the last one.

    $HEADRACE_CACHE, else ~/.cache/headrace/kernels, else a temporary folder. If the first can only be read, the next
    one takes the kernels that it lacks.
    """
    named = os.environ.get("HEADRACE_CACHE")
    found: list[Path] = []
    candidates = [(start_folder() / named, True)] if named else []
    candidates.append((Path(os.path.expanduser("~")) / ".cache" / "headrace" / "kernels", False))
    for path, is_named in candidates:
        if not path.is_absolute():
            continue
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True, mode=0o755 if is_named else 0o700)
        why = _unsafe(path, is_named)
        if why:
            tell(f"compiled kernels are not kept in {path}: {why}")
        elif _writable(path):
            return (*found, path)
        elif is_named and path.is_dir():
            found.append(path)
    return (*found, Path(tempfile.mkdtemp(prefix="headrace-kernels-")))


def folder() -> Path:
    """Folder in which new kernels are kept."""
    return folders()[-1]


def _unsafe(path: Path, is_named: bool) -> str:
    """Reason why a folder's content cannot be trusted; empty where it can, or where there is no folder."""
    if os.name != "posix" or not path.is_dir():
        return ""
    found = path.stat()
    if not is_named and found.st_uid != os.geteuid():
        return "it belongs to another user; HEADRACE_CACHE names another folder"
    if found.st_mode & OTHERS_WRITE and not is_named:
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE)
        return ""
    if found.st_mode & OTHERS_WRITE:
        return f"others can write to it, and what lies there is run: chmod go-w {path}"
    return ""


def _writable(path: Path) -> bool:
    """Tell whether there is room for a file in a folder."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(PROBE)
            file.flush()
            return True
    except OSError:
        return False


def trusted(path: Path) -> bytes | None:
    """Read a file. None where there is none, or where it was written, or can be written to, by users other than this
    one and the folder's owner."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if os.name == "posix":
                owners = (os.geteuid(), os.stat(path.parent).st_uid)
                if found.st_uid not in owners or found.st_mode & OTHERS_WRITE:
                    return None
            return file.read()
    except OSError:
        return None


@contextlib.contextmanager
def only_trusted(place: Path, title: str) -> Iterator[None]:
    """Protect Numba's cache of a module, which unpickles what it finds in `place`. Within this block it finds nothing
    that others can have written, and writes nothing that others can write to."""
    numbas = place / "__pycache__"
    umask = os.umask(0o022)
    os.umask(umask | 0o022)
    try:
        with contextlib.suppress(OSError):
            numbas.mkdir(exist_ok=True)
            os.chmod(numbas, stat.S_IMODE(numbas.stat().st_mode) & ~OTHERS_WRITE)
        for path in numbas.glob(f"{title}*"):
            if trusted(path) is None:
                path.unlink(missing_ok=True)
        yield
    finally:
        os.umask(umask)


def used(path: Path) -> None:
    """Note that a file is still used; once a day will do."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > 86400:
            os.utime(path)


def write(path: Path, content: bytes, mode: int = READABLE) -> None:
    """Write a file atomically, by default one that others may read. Raises OSError."""
    with replacing(path, "a compiled kernel", mode) as fresh:
        fresh.write_bytes(content)


def keep(path: Path, content: bytes, mode: int = READABLE) -> bool:
    """Write a file atomically, and now and then remove old ones. False, after a line on stderr, where it cannot be
    written; the compiled code is used all the same."""
    try:
        write(path, content, mode)
    except OSError as error:
        _complain(path.parent, os.strerror(error.errno or errno.EIO))
        return False
    if next(_kept) % BETWEEN_LOOKS == 0:
        evict(path.parent)
    return True


@cache
def _complain(place: Path, why: str) -> None:
    tell(f"compiled kernels cannot be kept in {place} ({why}): the next start compiles again")


def evict(place: Path) -> None:
    """Remove files of kernels that were not used for long; of too many, those that were unused the longest."""
    files = []
    for path in place.rglob("*headrace_*"):
        with contextlib.suppress(OSError):  # another process has removed it
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    total, now = 0, time.time()
    for moment, size, path in sorted(files, reverse=True):
        total += size
        if total > MOST_BYTES or now - moment > UNUSED_FOR:
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes. Without one where the system has no locks, or the file cannot be made: every write
    is atomic anyway."""
    try:
        import fcntl

        file = open(path, "a")  # noqa: SIM115
    except (ImportError, OSError):
        yield
        return
    with file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # closing is not enough where a process was forked meanwhile
                fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Tell whether a process holds this lock now."""
    try:
        import fcntl

        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError) as error:
        return isinstance(error, BlockingIOError)
    return False


@contextlib.contextmanager
def json_table(path: Path, mode: int = READABLE) -> Iterator[Json]:
    """The JSON object in a file of the folder, empty where there is none or a damaged one; changes are kept."""
    with locked(path.with_suffix(".lock")):
        try:
            table = json.loads(trusted(path) or b"{}")
        except ValueError:
            table = {}
        table = table if isinstance(table, dict) else {}
        before = json.dumps(table)
        yield table
        if json.dumps(table) != before:
            keep(path, json.dumps(table, indent=1).encode(), mode)
