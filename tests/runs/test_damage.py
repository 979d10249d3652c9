"""Damage to a run's files by a crash, a full disk or another user: the run goes on from what is whole, and says so."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.runs import checkpoint, recorder, tensor_file

LONG = TINY | {
    "num_envs": 16,
    "num_steps": 32,
    "backend": "cpu",
    "target_return": None,
    "schedule": "constant",
    "progress": "none",
}


pytestmark = pytest.mark.usefixtures("in_tmp")


@pytest.fixture
def run(monkeypatch):
    """A run that has saved last/ and best/ more than once."""
    monkeypatch.setattr(recorder, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(recorder, "SAVE_SHARE", 1e9)
    record = recorder.Recorder.record  # ... after each iteration, however slow the disk is
    monkeypatch.setattr(recorder.Recorder, "record", lambda self, result: (record(self, result), self._saver.wait()))
    return hr.train("ppo", "CartPole-v1", total_steps=4096, **LONG)


def weights(path):
    return checkpoint.load(path, "policy")


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def flip(path: Path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def forge(folder: Path, **changes):
    """Change entries of a manifest, with a checksum that fits."""
    body = json.loads((folder / "manifest.json").read_text()) | changes
    body = {name: value for name, value in body.items() if value is not None and name != "sha256"}
    (folder / "manifest.json").write_text(json.dumps({"sha256": checkpoint._digest(body), **body}))


@pytest.mark.parametrize("file", ["training.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before_with_a_warning(run, file):
    straight = hr.train("ppo", "CartPole-v1", total_steps=8192, **LONG)
    flip(run.path / "last" / file)
    with pytest.warns(UserWarning, match=rf"{file} is damaged.*Taking .*last\.previous"):
        resumed = hr.train(resume=run.path, total_steps=8192, progress="none")
    assert same(weights(resumed.path / "last"), weights(straight.path / "last"))
    assert (run.path / "last.damaged").exists()  # and was not moved over the one that was taken


def test_a_policy_is_loaded_from_what_is_whole(run):
    flip(run.path / "best" / "policy.safetensors")
    with pytest.warns(UserWarning, match=r"best/policy\.safetensors is damaged.*Taking"):
        hr.load(run.path)
    for name in ("best.previous", "last", "last.previous"):
        if (run.path / name).exists():
            flip(run.path / name / "policy.safetensors")
    with pytest.raises(checkpoint.DamagedCheckpoint, match=r"best/policy\.safetensors is damaged"):
        hr.load(run.path)


def test_damaged_logs_and_a_damaged_best_do_not_stop_a_resume(run):
    with open(run.path / "metrics.jsonl", "r+b") as file:
        file.truncate((run.path / "metrics.jsonl").stat().st_size - 7)
    for folder in run.path.glob("best*"):
        flip(folder / "manifest.json")
    with pytest.warns(UserWarning) as said:
        resumed = hr.train(resume=run.path, total_steps=8192, progress="none")
    said = "\n".join(str(warning.message) for warning in said)
    assert "metrics.jsonl has" in said and "The best policy is chosen again" in said
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["steps"] == resumed.steps >= 8192


FORGED = [
    {"policy": None},
    {"policy": {"class": "headrace.runs.run:Path"}},
    {"policy": {"class": 3}},
    {"policy": {"class": "headrace.policies.actor_critic:ActorCritic", "config": {}}},
    {"states": None},
    {"files": []},
    {"states": {"policy": {"w": {"$tensor": "none"}}}},
    {"states": {"policy": {"$items": [1]}}},
    {"states": {"policy": {"w": {"$float": "x"}}}},
]


def test_a_forged_manifest_is_refused_as_damaged(run):
    for number, changes in enumerate(FORGED):
        folder = shutil.copytree(run.path / "best", run.path.parent / f"stranger_{number}")
        forge(folder, **changes)
        with pytest.raises(checkpoint.DamagedCheckpoint, match="is damaged"):
            hr.load(folder)


def alone(folder: Path) -> Path:
    """The checkpoint without an earlier one next to it."""
    return folder.rename(folder.with_name("stranger"))


def test_a_manifest_as_deep_as_the_stack_is_refused_as_damaged(run):
    path = alone(run.path / "best") / "manifest.json"
    path.write_text('{"sha256": "", "states": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(checkpoint.DamagedCheckpoint, match="is damaged"):
        hr.load(path.parent)


def test_what_killed_saves_left_is_removed_by_the_next_start(run):
    for name in (".last.1", ".best.22", ".step_2048.3f3"):
        (run.path / name).mkdir()
    (run.path / ".mine.1").mkdir()
    hr.train(resume=run.path, total_steps=4608, progress="none")
    assert [path.name for path in run.path.glob(".*")] == [".mine.1"]


def test_best_is_written_before_last(monkeypatch):
    saved, save = [], recorder.checkpoint.save

    def note(folder, *states, **facts):
        saved.append(folder.name)
        save(folder, *states, **facts)

    monkeypatch.setattr(recorder.checkpoint, "save", note)
    hr.train("ppo", Walk(), total_steps=500, **TINY)
    assert saved[-2:] == ["best", "last"]


def test_a_checkpoint_has_tensorboard_s_events_beside_it():
    trainer = hr.Trainer("ppo", Walk(), total_steps=1000, **TINY)
    folder = Path("run")
    folder.mkdir()
    writing = recorder.Recorder(trainer, folder)
    writing.record(trainer.iterate())
    writing._save_last()
    writing._saver.close()  # and then the process is killed
    (events,) = folder.glob("events.out.tfevents*")
    assert b"time/fps" in events.read_bytes()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak of memory")
def test_saving_takes_no_copy_of_the_state(tmp_path, monkeypatch):
    size = 2**26
    monkeypatch.setattr(tensor_file, "PIECE", 2**20)
    state = {"ring": torch.ones(size // 4), "strided": torch.ones(64, size // 1024).t()}

    def peak(call):
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        call()
        return memory("VmHWM") - before

    def memory(name):
        lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines[name].split()[0]) * 1024

    assert peak(lambda: checkpoint.save(tmp_path / "last", {"training": state})) < 0.2 * size + 4 * tensor_file.PIECE
    loaded = checkpoint.load(tmp_path / "last", "training")
    assert torch.equal(loaded["ring"], state["ring"]) and torch.equal(loaded["strided"], state["strided"])


def test_the_files_are_those_of_the_safetensors_library(tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = {"b": torch.ones(3), "a": torch.arange(4.0, dtype=torch.float64), "c": torch.tensor(True)}
    tensor_file.write(tmp_path / "own", tensors)
    save_file(tensors, tmp_path / "theirs")
    assert (tmp_path / "own").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert all(torch.equal(x, tensors[name]) for name, x in load_file(tmp_path / "own").items())
    assert os.path.getsize(tmp_path / "own") > 0
