"""Operations of a process on the files of a folder, one at a time: something else may happen at the n-th."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

# of os: the position of the argument that says what is changed
CALLS = {"mkdir": 0, "replace": 1, "link": 1, "unlink": 0, "rmdir": 0, "fsync": 0}
NEED_ROOM = ("open", "write", "mkdir", "replace", "link")  # the operations that a full disk refuses


class Watched:
    """A file whose writes are noted before they happen. note: is given the data and the file."""

    def __init__(self, file: Any, note: Callable[[Any, Any], None]) -> None:
        self.file, self.note = file, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: Any) -> Any:
        """Note it, and write."""
        self.note(data, self.file)
        return self.file.write(data)


class FileOperations:
    """Counts operations of this process that change what is in a folder; before() is called ahead of each.

    names: which are counted, of "open" (of a new or emptied file), "write" and CALLS.
    """

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self.folder, self.names, self.count = str(folder), names, 0

    def concerns(self, path: str) -> bool:
        """Tell whether operations on this path are counted."""
        return path.startswith(self.folder)

    def before(self, name: str, path: str) -> None:
        """An operation is about to happen: the `count`-th."""

    def inside(self, data: Any, file: Any) -> None:
        """A write is about to happen."""

    def note(self, name: str, path: object, folder: int | None = None) -> bool:
        """Count an operation, and call before(). folder: a descriptor which `path` is relative to.

        Whether it is counted."""
        if isinstance(path, int):  # a descriptor
            path = os.readlink(f"/proc/self/fd/{path}")
        elif folder is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fspath(path))  # type: ignore[call-overload]
        path = os.path.abspath(os.fspath(path))  # type: ignore[call-overload]
        counted = name in self.names and self.concerns(path)
        if counted:
            self.count += 1
            self.before(name, path)
        return counted

    def install(self) -> None:
        """Watch this process from now on."""
        plain: Callable[..., Any] = io.open

        def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if isinstance(path, int) or not set(mode) & set("wax+"):
                return plain(path, mode, *rest, **options)
            if "w" in mode or "x" in mode or not os.path.exists(path):
                self.note("open", path)

            def note(data: Any, file: Any) -> None:
                if self.note("write", path):
                    self.inside(data, file)

            return Watched(plain(path, mode, *rest, **options), note)

        builtins.open = io.open = opened
        for name, place in CALLS.items():
            setattr(os, name, self._counted(name, place, getattr(os, name)))

    def _counted(self, name: str, place: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.note(name, arguments[place], options.get("dir_fd"))
            return call(*arguments, **options)

        return counted
