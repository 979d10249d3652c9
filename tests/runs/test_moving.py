"""Checkpoints on file systems that refuse what ext4 allows: nothing that was there is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.runs import checkpoint, moving
from headrace.runs.replay_files import link

OVERLAY = """
mount -t tmpfs tmpfs "$0" && mkdir "$0/lower" "$0/upper" "$0/work" "$0/merged" && cp -r "$1" "$0/lower/run" &&
mount -t overlay overlay -o lowerdir="$0/lower",upperdir="$0/upper",workdir="$0/work","$4" "$0/merged" || exit 77
exec "$2" -c "$3" "$0/merged/run"
"""
SAVES = """
import sys
from pathlib import Path
from headrace.runs import checkpoint
run = Path(sys.argv[1])
def held():
    return [checkpoint.load(path, "a") for path in (run / "last", run / "last.previous")]
found = [held()]
for value in (3, 4, 5):
    checkpoint.save(run / "last", {"a": value})
    found.append(held())
checkpoint.set_aside(run / "last.previous", run / "last")
print(found, sorted(path.name for path in run.iterdir()))
"""


def two_saved(run: Path) -> list[int]:
    """Two checkpoints of a run, the second in the place of the first."""
    for value in (1, 2):
        checkpoint.save(run / "last", {"a": value})
    return values(run)


def values(run: Path) -> list[int]:
    return [checkpoint.load(run / name, "a") for name in ("last", "last.previous")]


def leftovers(run: Path) -> list[str]:
    return [path.name for path in run.iterdir() if path.name.startswith(".")]


def refusing(number: int, *, only: str = ""):
    """os.replace(), which gives an error for folders whose name has `only` in it."""
    replace = os.replace

    def refuse(source, target):
        if only in Path(source).name:
            raise OSError(number, os.strerror(number), str(source))
        replace(source, target)

    return refuse


def test_a_run_in_a_lower_layer_of_an_overlay_is_saved_over(tmp_path):
    two_saved(tmp_path / "run")
    (tmp_path / "mount").mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    own, option = ([], "redirect_dir=off") if os.geteuid() == 0 else (["--user", "--map-root-user"], "userxattr")
    words = ["bash", "-c", OVERLAY, str(tmp_path / "mount"), str(tmp_path / "run"), sys.executable, SAVES, option]
    got = subprocess.run(["unshare", *own, "--mount", *words], capture_output=True, text=True)
    if got.returncode in (1, 77):
        pytest.skip(f"no overlay can be mounted here: {got.stderr}")
    expected = "[[2, 1], [3, 2], [4, 3], [5, 4]] ['last.damaged', 'last.previous']"
    assert got.stdout.strip() == expected, got.stderr


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_folder_that_cannot_be_renamed_is_copied(tmp_path, monkeypatch, number):
    two_saved(tmp_path)
    monkeypatch.setattr(moving.os, "replace", refusing(number))
    for value in (3, 4):
        checkpoint.save(tmp_path / "last", {"a": value})
        assert values(tmp_path) == [value, value - 1] and not leftovers(tmp_path)


@pytest.mark.parametrize("only", ["last", ".last", "last.previous"])
@pytest.mark.parametrize("number", [errno.EBUSY, errno.EACCES, errno.EIO, errno.ENOSPC])
def test_a_save_that_is_refused_leaves_both_checkpoints(tmp_path, monkeypatch, number, only):
    before = two_saved(tmp_path)
    monkeypatch.setattr(moving.os, "replace", refusing(number, only=only))
    with pytest.raises(OSError, match="cannot write the checkpoint") as raised:
        checkpoint.save(tmp_path / "last", {"a": 3})
    assert raised.value.errno == number
    monkeypatch.undo()
    assert sorted(held(tmp_path)) == sorted(before)
    checkpoint.save(tmp_path / "last", {"a": 4})
    assert values(tmp_path)[0] == 4


def held(run: Path) -> list[int]:
    return [checkpoint.load(path.parent, "a") for path in run.rglob("manifest.json")]


@pytest.mark.parametrize("full", [1, 2, 3])
def test_a_disk_that_is_full_while_a_folder_is_copied_loses_nothing(tmp_path, monkeypatch, full):
    before, copy, copied = two_saved(tmp_path), moving.tensor_file.copy, []

    def limited(source, target):
        copied.append(source)
        if len(copied) == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return copy(source, target)

    monkeypatch.setattr(moving.os, "replace", refusing(errno.EXDEV))
    monkeypatch.setattr(moving.tensor_file, "copy", limited)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path / "last", {"a": 3})
    assert values(tmp_path) == before and not leftovers(tmp_path)


def test_a_file_system_without_sync_of_folders_and_hard_links_will_do(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuse(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "fsync of a folder")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "link", refusing(errno.EPERM))
    assert two_saved(tmp_path) == [2, 1]
    link(tmp_path / "last" / "manifest.json", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "last" / "manifest.json").read_bytes()
    monkeypatch.setattr(os, "fsync", lambda descriptor: refusing(errno.EIO)("", ""))
    with pytest.raises(OSError, match="Input/output"):  # the disk has failed
        checkpoint.save(tmp_path / "last", {"a": 3})
    assert values(tmp_path) == [2, 1]
