"""Files that are written: under a free name, whole or not at all, and with errors that name them."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# errors of fsync() on file systems that do not support it for this kind of file: nothing safer is available there
NO_SYNC = {getattr(errno, name) for name in ("EINVAL", "EACCES", "EPERM", "EBADF", "EISDIR", "ENOTSUP", "ENOSYS")}


def free(name: str) -> Path:
    """A file's name, or, where it is taken, with the next free number: play.gif, play_2.gif ..."""
    path, number = Path(name), 2
    while path.exists():
        path, number = Path(name).with_stem(f"{Path(name).stem}_{number}"), number + 1
    return path


def check_file(path: Path) -> Path:
    """Return the path. Raises OSError, naming it, for a pipe, a device and the like: reading them might never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path


# what to do about errors of the system that say little
REMEDIES = {
    errno.EMFILE: "this process has too many files open: use fewer processes, or raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many files open",
    errno.ENOMEM: "there is not enough memory: use fewer processes, environments or steps",
    errno.EAGAIN: "this user has too many processes: use fewer, or raise the limit (ulimit -u)",
}


@contextmanager
def explained(what: str, remedies: Mapping[int, str] = REMEDIES) -> Iterator[None]:
    """Add to an error of the system what failed, and what to do. remedies: by the number of the error."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        remedy = remedies.get(error.errno or 0)
        raise type(error)(error.errno, f"{what}: {why}" + (f"; {remedy}" if remedy else "")) from error


@contextmanager
def writing(path: Path, what: str = "the run's files") -> Iterator[None]:
    """Add to a disk error what and which file could not be written."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, f"cannot write {what}: {error.strerror or error}", str(path)) from error


@contextmanager
def replacing(path: Path, what: str, mode: int | None = None) -> Iterator[Path]:
    """The path of a new file, of the same folder and suffix, that takes the place of `path` once it is on the disk.

    what: the name of the file's contents in an error. mode: permissions of the finished file; until then the owner
    alone can read it. None: permissions as open() sets them. Makes the folder. Several threads and processes may
    replace one file: the last one stays. Raises OSError, naming the file; an earlier file then stays."""
    with writing(path, what):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
        try:
            if mode is not None:
                os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            yield fresh
            with open(fresh, "r+b") as file:
                sync(file.fileno())
            if mode is not None:
                os.chmod(fresh, mode)
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)


def sync(descriptor: int) -> None:
    """Write an open file through to the disk, where the file system supports that. Raises OSError."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def sync_folder(folder: Path) -> None:
    """Write the names in a folder through to the disk, as sync() does a file's contents."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders; one that can only be written to cannot be read
        return
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
