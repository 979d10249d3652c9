"""Files that are written: under a free name, whole or not at all, and with errors that name them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free(name: str) -> Path:
    """A file's name, or, where it is taken, with the next free number: play.gif, play_2.gif ..."""
    path, number = Path(name), 2
    while path.exists():
        path, number = Path(name).with_stem(f"{Path(name).stem}_{number}"), number + 1
    return path


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

    what: it is, for the error. mode: of the file, whose contents the owner alone can read until then; None: as open()
    gives it. Makes the folder. Several threads and processes may replace one file: the last one stays. Raises OSError,
    naming the file; what was there before is left."""
    with writing(path, what):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
        try:
            if mode is not None:
                os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            yield fresh
            with open(fresh, "r+b") as file:
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(fresh, mode)
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
