"""The rows of replay buffers on the disk: written once, shared by checkpoints, and back in the ring bit for bit."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.data import pieces
from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import Replay
from headrace.data.sequences import SequenceReplay
from headrace.runs import checkpoint, recorder, replay_files, tensor_file
from headrace.runs.replay_files import ReplayFiles
from headrace.runs.saver import Saver
from tests.data.test_replay import World
from tests.data.test_replay_heads import MOST, Worlds
from tests.data.test_sequences import Remembering

SAC = {"num_envs": 4, "hidden": (8,), "learning_starts": 100, "buffer_size": 400, "progress": "none", "threads": 1}


@pytest.fixture(autouse=True)
def _small_pieces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pieces, "ROWS", 32)
    monkeypatch.setattr(replay_files, "EVERY", 0.0)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The policy after 800 steps."""
    return policy_of(train(total_steps=800, log_folder=str(tmp_path_factory.mktemp("straight"))).path / "last")


@pytest.fixture
def often(monkeypatch):
    """Save as often as the disk allows."""
    monkeypatch.setattr(recorder, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(recorder, "SAVE_SHARE", 1e9)


@pytest.fixture
def each_time(often, monkeypatch):
    """Save after each iteration, and wait for the disk, however slow it is."""
    record = recorder.Recorder.record
    monkeypatch.setattr(recorder.Recorder, "record", lambda self, result: (record(self, result), self._saver.wait()))


def train(**options):
    return hr.train("sac", "Pendulum-v1", **SAC | {"total_steps": 600} | options)


def ring(replay):
    """The rows of each environment that are there, the bootstrap row included, in order."""
    return [
        replay.read_rows(
            torch.where(torch.arange(replay.num_envs) == env, replay.oldest(), replay.written + 1), replay.written + 1
        )
        for env in range(replay.num_envs)
    ]


def same(a, b):
    return all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(a, b, strict=True)
    )


def policy_of(path: Path):
    return (path / "policy.safetensors").read_bytes()


def pieces_of(folder: Path):
    """inode of each full piece of a checkpoint."""
    return {path.name: path.stat().st_ino for path in folder.glob("replay_0.[0-9]*")}


@given(
    kind=st.sampled_from((Replay, PrioritizedReplay, SequenceReplay)),
    alike=st.booleans(),
    num_steps=st.integers(1, 4),
    num_envs=st.integers(1, 4),
    room=st.integers(0, 40),
    between=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    rows=st.integers(1, 30),
    seed=st.integers(0, 2**31),
    resumed=st.booleans(),
)
@settings(max_examples=25)
def test_a_ring_comes_back_from_each_checkpoint_as_it_was(
    kind, alike, num_steps, num_envs, room, between, rows, seed, resumed, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("run")
    world = Remembering if kind is SequenceReplay else World
    worlds = (world if alike else Worlds)(num_steps, num_envs, seed, 0.3, **({} if alike else {"kind": world}))
    options = {"sequence_length": 3, "burn_in": 2} if kind is SequenceReplay else {}

    def made():
        return kind(worlds.rollout, (MOST * num_steps + 14 + room) * num_envs, 2, **options)

    def files(replay):
        return ReplayFiles(folder, saver, {"a": [{"replay": replay.state_dict()}]})

    before, pieces.ROWS = pieces.ROWS, rows
    saver, replay = Saver(), made()
    try:
        kept = files(replay)
        for number, rollouts in enumerate(between):
            for _ in range(rollouts):
                replay.append(worlds.collect())
                kept.follow()
            contents = checkpoint.contents({"training": {"a": [{"replay": replay.state_dict()}]}}, kept.keep)
            saver.submit(checkpoint.save, folder / "last", contents)
            kept.replaced()
            expected = ring(replay)
            replay.append(worlds.collect())  # while the saver writes
            saver.wait()
            state = checkpoint.load(folder / "last", "training")["a"][0]["replay"]
            loaded = made()
            loaded.load_state_dict(state)
            assert same(ring(loaded), expected)
            if kind is PrioritizedReplay:
                assert torch.equal(loaded.leaves(), state["leaves"])
            if number:
                assert not {*pieces_of(folder / "last").values()} & {*pieces_of(folder / "last.previous").values()}
            if resumed:
                kept.close()
                replay = loaded
                for each in worlds.each if isinstance(worlds, Worlds) else [worlds]:
                    each.rollout.valid[-1] = False  # new episodes begin
                kept = files(replay)
                kept.adopt(folder / "last")
                saver.wait()
    finally:
        pieces.ROWS = before
        saver.close()
        kept.close()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_each_row_is_written_once_and_checkpoints_share_it(each_time, monkeypatch):
    written, write = [], tensor_file.write
    monkeypatch.setattr(
        tensor_file, "write", lambda path, tensors: (written.append((path.name, tensors)), write(path, tensors))[1]
    )
    run = train(save_freq=200)
    full = [tensors for name, tensors in written if name.endswith(".0")]
    assert len(full) > 10
    for before, after in itertools.pairwise(full):
        assert torch.equal(before["stop"], after["start"])
    rest = [len(tensors["valid"]) for name, tensors in written if name == "replay_0.rest.safetensors"]
    assert len(rest) > 3 and max(rest) <= 32 + 3 * 4
    kept = [folder for folder in run.path.iterdir() if folder.is_dir()]
    shared = [path.stat().st_nlink for folder in kept for path in folder.glob("replay_0.[0-9]*")]
    assert max(shared) > 1 and not list(run.path.glob(".*"))
    assert pieces_of(run.path / "last").keys() & pieces_of(run.path / "last.previous").keys()


@pytest.mark.filterwarnings("ignore:.*rows are missing")  # the logs are not copied
def test_a_checkpoint_that_is_copied_alone_is_resumed_to_the_same_bits(often, uninterrupted):
    run = train(save_freq=250)
    (step,) = run.path.glob("step_25*")
    for folder in (step, run.path / "last"):
        alone = Path("elsewhere") / folder.name / "last"
        shutil.copytree(folder, alone)
        resumed = hr.train(resume=alone, total_steps=800, progress="none")
        assert policy_of(resumed.path / "last") == uninterrupted
    for folder in run.path.glob("last*"):
        shutil.rmtree(folder)
    assert checkpoint.load(step, "training")["learner"]["steps"] < 300


def test_a_resumed_run_does_not_write_again_what_its_checkpoint_has(often, uninterrupted, monkeypatch):
    run = train()
    had = pieces_of(run.path / "last")
    assert len(had) > 8
    written, write = [], tensor_file.write
    monkeypatch.setattr(
        tensor_file, "write", lambda path, tensors: (written.append(path.name), write(path, tensors))[1]
    )
    resumed = hr.train(resume=run.path, total_steps=800, progress="none")
    assert policy_of(resumed.path / "last") == uninterrupted
    assert any(name.endswith(".0") for name in written)
    assert not {name.removesuffix(".0") for name in written} & had.keys()


def test_without_hard_links_pieces_are_copied(often, uninterrupted, monkeypatch):

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    run = train()
    assert len(pieces_of(run.path / "last")) > 8
    resumed = hr.train(resume=run.path, total_steps=800, progress="none")
    assert policy_of(resumed.path / "last") == uninterrupted
    assert {path.stat().st_nlink for path in (run.path / "last").iterdir()} == {1}


def test_damage_to_a_piece_is_named_and_not_in_the_checkpoint_before(each_time, uninterrupted):
    run = train()
    name = sorted(pieces_of(run.path / "last").keys() & pieces_of(run.path / "last.previous").keys())[0]
    path = run.path / "last" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with open(path, "r+b") as file:  # in place, as a disk does: all links see it
        file.write(data)
    with pytest.warns(UserWarning, match=rf"{name} is damaged.*Taking .*last\.previous"):
        resumed = hr.train(resume=run.path, total_steps=800, progress="none")
    assert policy_of(resumed.path / "last") == uninterrupted


def test_a_missing_piece_is_named(often):
    run = train()
    shutil.rmtree(run.path / "last.previous")
    name = sorted(pieces_of(run.path / "last"))[0]
    (run.path / "last" / name).unlink()
    with pytest.raises(checkpoint.DamagedCheckpoint, match=rf"{name} is damaged: it is missing"):
        hr.train(resume=run.path, total_steps=800, progress="none")


def test_a_piece_that_the_disk_has_changed_is_not_copied_on(often, monkeypatch):
    copy = tensor_file.copy
    monkeypatch.setattr(tensor_file, "copy", lambda source, target: copy(source, target)[::-1])
    with pytest.raises(OSError, match="what was read is not what was written"):
        train()


@pytest.mark.parametrize("file", ["replay_0.000000003.safetensors.0", "last"])
def test_a_full_disk_ends_the_training_and_leaves_the_checkpoint_before(often, uninterrupted, monkeypatch, file):
    write = tensor_file.write

    def full(path, tensors):
        if path.name == file or (file == "last" and Path("runs/sac/Pendulum-v1_1/last").exists()):
            raise OSError(28, "No space left on device")
        return write(path, tensors)

    monkeypatch.setattr(tensor_file, "write", full)
    with pytest.raises(OSError, match=r"cannot write the (checkpoint|replay buffer): No space left on device"):
        train()
    run = Path("runs/sac/Pendulum-v1_1")
    assert run.exists() and not list(run.glob(".[a-z]*"))
    monkeypatch.setattr(tensor_file, "write", write)
    if (run / "last").exists():
        resumed = hr.train(resume=run, total_steps=800, progress="none")
        assert policy_of(resumed.path / "last") == uninterrupted


def test_learning_does_not_wait_for_the_disk(often, monkeypatch):
    monkeypatch.setattr(recorder, "SAVE_EVERY", 0.0)  # from the first iteration on, before there is a full piece
    trainer = hr.Trainer("sac", "Pendulum-v1", total_steps=600, **SAC)
    go_on, fsync = threading.Event(), os.fsync

    def slow(descriptor):
        if threading.current_thread() is not threading.main_thread():
            assert go_on.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    Path("run").mkdir()
    with recorder.Recorder(trainer, Path("run")) as recording:
        for _ in range(40):
            recording.record(trainer.iterate())
        recording._replays.follow()
        assert not (Path("run") / "last").exists()  # none of the first saves is on the disk yet
        go_on.set()
        while not trainer.reason_to_stop():
            recording.record(trainer.iterate())
        recording.finish("total_steps")
    state = checkpoint.load("run/last", "training")["learner"]
    assert state["steps"] == trainer.steps
    replay = Replay(trainer.collector.rollout, SAC["buffer_size"])
    replay.load_state_dict(state["algorithm"]["replay"])
    assert same(ring(replay), ring(trainer.algorithm.replay))


def test_jobs_after_one_that_failed_are_not_done():
    saver, done, both = Saver(), [], threading.Event()

    def fail():
        assert both.wait(60)
        raise OSError(28, "No space left on device")

    saver.submit(fail)
    saver.submit(done.append, 1)
    both.set()
    saver.close()
    assert done == []
    with pytest.raises(OSError, match="No space left"):
        saver.check()


def test_each_of_several_replays_has_its_own_files(tmp_path):
    worlds = [World(2, 2, seed, 0.1) for seed in (0, 1)]
    replays = [Replay(world.rollout, 60) for world in worlds]
    for replay, world in zip(replays, worlds, strict=True):
        for _ in range(9):
            replay.append(world.collect())
    checkpoint.save(tmp_path / "last", {"training": {str(i): replay.state_dict() for i, replay in enumerate(replays)}})
    state = checkpoint.load(tmp_path / "last", "training")
    for number, replay in enumerate(replays):
        loaded = Replay(worlds[0].rollout, 60)
        loaded.load_state_dict(state[str(number)])
        assert same(ring(loaded), ring(replay))
