"""Checkpoints: what goes in comes out bit for bit, damage is named, and a crash leaves the old one whole."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.rollout import Group
from headrace.runs import checkpoint, moving

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


def same(a: object, b: object) -> bool:
    """Equality that tells 1 from True and 1.0, -0.0 from 0.0, and takes a NaN for itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, Group):
        return same(dict(a), dict(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(state=states)
def test_any_state_comes_back_as_it_was(state, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "last"
    checkpoint.save(folder, {"training": state})
    assert same(checkpoint.load(folder, "training"), state)


def test_tensors_of_every_kind_come_back_as_they_were(tmp_path):
    dtypes = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
    )
    state = {str(dtype): torch.arange(6).to(dtype).view(2, 3) for dtype in dtypes}
    base = torch.tensor([1.0, float("nan"), float("inf"), -0.0])
    state |= {"nan": base, "view": base[1:3], "strided": torch.arange(6.0).view(2, 3).t(), "scalar": torch.tensor(3)}
    state |= {"empty": torch.empty(0, 4), "a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, "big": 2**60 + 1}
    state |= {"group": Group({"x": torch.ones(2), "y": Group({"z": torch.zeros(1)})}), "$tensor": "x"}
    checkpoint.save(tmp_path / "last", {"training": state})
    loaded = checkpoint.load(tmp_path / "last", "training")
    assert all(same(loaded[key], state[key].contiguous() if key == "strided" else state[key]) for key in state)


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"training\.a\.1 is a set"):
        checkpoint.save(tmp_path / "last", {"training": {"a": [1, {2}]}})
    assert not (tmp_path / "last").exists()


@pytest.mark.parametrize("file", ["policy.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_and_the_file_named(tmp_path, file, damage):
    for value in (1.0, 2.0):
        checkpoint.save(tmp_path / "last", {"policy": {"w": torch.full((64,), value)}}, steps=12345)
    path = tmp_path / "last" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    with pytest.raises((checkpoint.DamagedCheckpoint, FileNotFoundError), match=file):
        checkpoint.load(tmp_path / "last", "policy")
    assert checkpoint.load(tmp_path / "last.previous", "policy")["w"][0] == 1.0


def test_a_changed_number_in_the_manifest_is_damage(tmp_path):
    checkpoint.save(tmp_path / "last", {"training": {"steps": 12345}})
    path = tmp_path / "last" / "manifest.json"
    path.write_text(path.read_text().replace("12345", "12346"))
    with pytest.raises(checkpoint.DamagedCheckpoint, match=r"manifest\.json is damaged"):
        checkpoint.load(tmp_path / "last", "training")


@pytest.mark.parametrize("calls_before_the_crash", [0, 1])
def test_a_crash_while_saving_leaves_the_earlier_checkpoint(tmp_path, monkeypatch, calls_before_the_crash):
    checkpoint.save(tmp_path / "last", {"training": {"steps": 1}})
    replace, calls = os.replace, []

    def crash(source, target):
        if len(calls) == calls_before_the_crash:
            raise KeyboardInterrupt
        calls.append(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "last", {"training": {"steps": 2}})
    assert checkpoint.read(tmp_path, "last", state="training")[2] == {"steps": 1}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_files_reach_the_disk_before_the_checkpoint_takes_its_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    checkpoint.save(tmp_path / "last", {"policy": {"w": torch.ones(2)}})
    assert events == ["fsync", "fsync", "fsync", "replace", "fsync"]  # two files, their folder; then the parent folder


def test_nothing_is_pickled(tmp_path):
    checkpoint.save(tmp_path / "last", {"policy": {"w": torch.ones(2)}})
    assert {path.suffix for path in (tmp_path / "last").iterdir()} == {".safetensors", ".json"}
    source = Path(checkpoint.__file__).read_text()
    assert "import pickle" not in source and "torch.load" not in source and "torch.save" not in source


def test_another_format_is_refused(tmp_path):
    checkpoint.save(tmp_path / "last", {"policy": {}})
    path = tmp_path / "last" / "manifest.json"
    body = json.loads(path.read_text()) | {"format": 99}
    del body["sha256"]
    path.write_text(json.dumps({"sha256": checkpoint._digest(body), **body}))
    with pytest.raises(ValueError, match="format 99"):
        checkpoint.read_manifest(tmp_path / "last")


def test_no_checkpoint_is_said_plainly(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no"):
        checkpoint.read(tmp_path / "nowhere", "last")
    with pytest.raises(FileNotFoundError, match="neither a checkpoint nor a run"):
        checkpoint.read(tmp_path, "last")


def test_a_single_entry_of_any_stride_is_saved(tmp_path):
    column = torch.arange(5001.0).view(1, 5001).t()[7:8]  # [1, 1], a view of which each stride counts as contiguous
    one = column.as_strided((1, 1), (5001, 5001), 7)
    checkpoint.save(tmp_path / "one", {"state": {"one": one, "part": torch.arange(6.0)[4:]}})
    loaded = checkpoint.load(tmp_path / "one", "state")
    assert loaded["one"].tolist() == [[7.0]] and loaded["part"].tolist() == [4.0, 5.0]


def test_threads_may_save_to_one_folder(tmp_path):
    both = threading.Barrier(2)

    def contents(number):
        def write(path):
            both.wait()  # each is in the middle of its save
            path.write_bytes(b"%d" % number)
            return hashlib.sha256(b"%d" % number).hexdigest()

        return checkpoint.Contents({"x": {}}, {"x.bin": write})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: checkpoint.save(tmp_path / "x", contents(number)), range(2)))
    saved = [checkpoint.read_manifest(tmp_path / name)["files"]["x.bin"] for name in ("x", "x.previous")]
    found = [hashlib.sha256((tmp_path / name / "x.bin").read_bytes()).hexdigest() for name in ("x", "x.previous")]
    assert saved == found and len(set(found)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.previous"]


def test_a_folder_of_other_files_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    checkpoint.save(tmp_path / "mine", {"a": 1})  # an empty one is
    for name in ("work", "."):
        (tmp_path / "work").mkdir(exist_ok=True)
        (tmp_path / "work" / "thesis.txt").write_text("all of it")
        monkeypatch.chdir(tmp_path if name == "work" else tmp_path / "work")
        with pytest.raises(FileExistsError, match=r"work holds other files.* give a new folder"):
            checkpoint.save(name, {"a": 1})
    assert (tmp_path / "work" / "thesis.txt").exists()


def test_the_current_folder_can_be_read(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "run" / "last", {"a": 1})
    monkeypatch.chdir(tmp_path / "run" / "last")
    for path in (".", "", "..", "../.", "../../run"):
        folder, _, state = checkpoint.read(path, "last", state="a")
        assert state == 1 and folder.resolve() == tmp_path / "run" / "last"


def test_another_process_may_save_to_the_folder_between_two_renames(tmp_path, monkeypatch):
    replace, others = os.replace, [1]

    def replaced(source, target):
        if Path(source).name.startswith(".") and others:
            (target / "of another process").mkdir(parents=True)
            others.clear()
        replace(source, target)

    monkeypatch.setattr(moving.os, "replace", replaced)
    checkpoint.save(tmp_path / "x", {"a": 1})
    assert checkpoint.load(tmp_path / "x", "a") == 1 and (tmp_path / "x.previous" / "of another process").is_dir()
    monkeypatch.setattr(moving.shutil, "rmtree", lambda *_, **__: None)
    checkpoint.save(tmp_path / "x", {"a": 2})  # also where what it takes the place of cannot be removed
    assert [checkpoint.load(tmp_path / name, "a") for name in ("x", "x.previous")] == [2, 1]
