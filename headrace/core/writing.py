"""Writes files so that an error names them, and that one which is there stays until another is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(path: Path, what: str = "the run's files") -> Iterator[None]:
    """Add to a disk error what and which file could not be written."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, f"cannot write {what}: {error.strerror or error}", str(path)) from error


@contextmanager
def replacing(path: Path, what: str) -> Iterator[Path]:
    """The path of a new file, of the same folder and suffix, that takes the place of `path` once it is written.

    what: it is, for the error. Makes the folder. Raises OSError, naming the file; what was there before is left."""
    with writing(path, what):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        try:
            yield fresh
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
