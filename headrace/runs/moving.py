"""Replace a folder by a new one, on any file system, such that the old or the new one is complete at any time."""

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

TRIES, MOMENT = 50, 0.002  # attempts to rename folders, s between two: other processes may rename them meanwhile
TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR)  # another process has put or removed its own
# errors of rename() for folders that can only be copied: overlayfs returns the first for folders of a lower layer, such
# as those of a container's image; file systems without such a call return the others
CANNOT_RENAME = (errno.EXDEV, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_RENAMING = threading.Lock()


@contextmanager
def replacing_folder(folder: Path, previous: Path, keep_previous: bool) -> Iterator[Path]:
    """Yield a new folder to write files into, which replaces `folder` after the block. The old one stays as `previous`,
    or is removed. Several threads and processes may replace one folder: the last one stays. Raises OSError. Unless
    only the last step failed, to sync the parent folder, `folder` and `previous` are then unchanged."""
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
    """Rename a folder to an unused name, or copy it if the file system cannot rename it. Raises OSError; the folder is
    then unchanged."""
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
    """Move `fresh` to `folder`. The old folder becomes `previous`, and an earlier `previous` is moved to `aside`."""
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
    """Undo _replace(): restore the names, unless another process has taken them."""
    with suppress(OSError):
        if previous.exists() and not folder.exists():
            move(previous, folder)
        if aside.exists() and not previous.exists():
            move(aside, previous)


def _unused(folder: Path) -> Path:
    """An unused, hidden name in the same folder."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
