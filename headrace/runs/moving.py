"""Folders that take the place of others, on any file system, so that one of them is whole at every moment."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

from headrace.core.writing import sync_folder
from headrace.runs import tensor_file

TRIES, MOMENT = 50, 0.002  # s: to rename folders, which other processes may do meanwhile
TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR)  # another process has put or taken its own there
# of rename(), where a folder cannot be renamed and can be copied: overlayfs has the first for folders of a lower layer,
# such as those of a container's image; the others are of file systems that have no such call
CANNOT_RENAME = (errno.EXDEV, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_RENAMING = threading.Lock()


@contextmanager
def replacing_folder(folder: Path, previous: Path, keep_previous: bool) -> Iterator[Path]:
    """A new folder to write files into, which afterwards takes the place of `folder`; that stays as `previous`, or is
    removed. Several threads and processes may replace one folder: the last one stays. Raises OSError; then both are as
    they were."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh, aside = _unused(folder), _unused(folder)
    fresh.mkdir()
    try:
        yield fresh
        sync_folder(fresh)
        with _RENAMING:
            _replace(fresh, folder, previous, aside)
        sync_folder(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)
        if not keep_previous:
            shutil.rmtree(previous, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def move(source: Path, target: Path) -> None:
    """Give a folder another name, which none has; as a copy, where the file system cannot rename it. Raises OSError;
    then it is where it was."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno not in CANNOT_RENAME or os.path.ismount(source):
            raise
        target.mkdir()
        try:
            shutil.copytree(source, target, copy_function=_copy, dirs_exist_ok=True)
            sync_folder(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        shutil.rmtree(source)


def _copy(source: str, target: str) -> str:
    return tensor_file.copy(Path(source), Path(target))


def _replace(fresh: Path, folder: Path, previous: Path, aside: Path) -> None:
    """Put a folder in the place of another one, which stays as `previous`; what that was is set aside."""
    for tries_left in reversed(range(TRIES)):
        try:
            if folder.exists():
                if previous.exists():
                    shutil.rmtree(aside, ignore_errors=True)
                    move(previous, aside)
                move(folder, previous)
            move(fresh, folder)
            return
        except BaseException as error:
            _put_back(folder, previous, aside)
            if not isinstance(error, OSError) or error.errno not in TAKEN or not tries_left:
                raise
            sleep(MOMENT)


def _put_back(folder: Path, previous: Path, aside: Path) -> None:
    """Undo what _replace() has done: the names are as before, unless another process has taken them."""
    with suppress(OSError):
        if previous.exists() and not folder.exists():
            move(previous, folder)
        if aside.exists() and not previous.exists():
            move(aside, previous)


def _unused(folder: Path) -> Path:
    """A hidden name in the same folder."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
