"""A file that cannot be written whole leaves the one that was there, and the error names it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.core.writing import replacing


def test_a_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "policy.onnx"
    for text in ("first", "second"):
        with replacing(path, "the policy") as fresh:
            assert fresh.suffix == path.suffix
            fresh.write_text(text)
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), OSError("encoder error -2")])
def test_a_full_disk_leaves_the_old_file_and_is_named(tmp_path: Path, error: OSError) -> None:
    path = tmp_path / "curves.png"
    path.write_text("old")

    def full() -> None:
        with replacing(path, "the plot") as fresh:
            fresh.write_text("half")
            raise error

    with pytest.raises(OSError, match=r"cannot write the plot: (No space left|encoder error)") as caught:
        full()
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_one_file_at_once_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    with replacing(path, "the plot") as one, replacing(path, "the plot") as two:
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"  # the last one that was done
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_file_with_a_mode_is_its_owners_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "kernel"
    with replacing(path, "a kernel", 0o644) as fresh:
        fresh.write_bytes(b"half")
        assert fresh.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o644
