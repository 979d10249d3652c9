"""The disk is full from the n-th write of a run on, for every n: the run ends with an error that says so, the
checkpoint before is whole, and once there is room the run is resumed to the same bits.

    python -m benchmarks.faults.fill_disk       # every n, some minutes
"""

from __future__ import annotations

import argparse
import errno
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.faults import reliability
from benchmarks.faults.file_operations import NEED_ROOM, FileOperations

FORK = multiprocessing.get_context("fork")
SETTINGS: dict[str, Any] = {"num_envs": 8, "hidden": (8,), "progress": "none", "threads": 1, "target_return": None}
# pieces of the buffer are written, shared by checkpoints, and removed once their rows are overwritten
REPLAY: dict[str, Any] = {"learning_starts": 100, "buffer_size": 240, "total_steps": 400, "scale": False}
KINDS: dict[str, dict[str, Any]] = {
    "ppo": {"env": "CartPole-v1", "num_steps": 16, "total_steps": 400, "minibatch_size": 64, "scale": False},
    "sac": {"env": "Pendulum-v1", **REPLAY},
    "dqn": {"env": "CartPole-v1", "prioritized": True, **REPLAY},
}
NAMES = {"ppo": "PPO", "sac": "SAC", "dqn": "DQN with priorities"}


class FullDisk(FileOperations):
    """Disk without room from the n-th write on (0: always)."""

    def __init__(self, folder: Path, full_from: int) -> None:
        super().__init__(folder, NEED_ROOM)
        self.full_from = full_from

    def before(self, name: str, path: str) -> None:
        """Raises OSError where there is no room for an operation."""
        if self.full_from and self.count >= self.full_from:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def train(kind: str, folder: Path, full_from: int, reported: Any) -> None:
    """One training, and what ended it: its writes, the kind of error and its text."""
    import headrace as hr
    from headrace.data import pieces
    from headrace.runs import logs, recorder

    recorder.SAVE_EVERY, recorder.SAVE_SHARE, pieces.ROWS = 0.0, 1e9, 64
    logs.LEAST_INTERVAL = logs.GROWTH = logs.EVENTS_AFTER = 0.0  # the same writes however fast the run is
    disk = FullDisk(folder, full_from)
    disk.install()
    try:
        hr.train(kind, log_folder=str(folder), **SETTINGS, **KINDS[kind])
        reported.send((disk.count, "", ""))
    except BaseException as error:
        reported.send((disk.count, type(error).__name__, f"{error}\n{traceback.format_exc()[-600:]}"))


def resume(kind: str, run: Path, folder: Path, reported: Any) -> None:
    """Resume a run, or start it again where it was never saved."""
    import headrace as hr

    try:
        saved = any(run.glob("last*/manifest.json"))
        again = hr.train(resume=run) if saved else hr.train(kind, log_folder=str(folder), **SETTINGS, **KINDS[kind])
        reported.send((str(again.path), "", ""))
    except BaseException as error:
        reported.send(("", type(error).__name__, traceback.format_exc()[-600:]))


def in_process(work: Callable[..., None], *arguments: Any) -> Any:
    """Run work in a fork of this process, and return its report."""
    mine, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=work, args=(*arguments, theirs))
    process.start()
    answer = mine.recv() if mine.poll(60) else ("", "Hang", "nothing happened for a minute")
    process.kill()
    process.join()
    return answer


def attempt(training: str, full_from: int, folder: Path, weights: bytes) -> str:
    """Describe what is wrong with a training whose disk is full from the n-th write on; empty for nothing.

    The number of saves depends on how fast the disk is: a run may end before its n-th write.
    """
    writes, kind, text = in_process(train, training, folder, full_from)
    if (kind != "OSError" or "No space left on device" not in text) and (kind or writes >= full_from):
        return f"it ended by {kind or 'nothing'}: {text}"
    run = next(iter(folder.glob("*/*_1")), folder)
    path, kind, text = in_process(resume, training, run, folder / "again")
    if kind:
        return f"it could not be resumed: {kind}: {text}"
    return "" if digest(Path(path)) == weights else "its weights are others"


def digest(run: Path) -> bytes:
    """The file of the policy at the end."""
    return (run / "last" / "policy.safetensors").read_bytes()


def main() -> None:
    """Fill the disk at each write."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--every", type=int, default=1, help="only every n-th write")
    options = flags.parse_args()
    import headrace.training.loop  # noqa: F401  the forks need not import it, and torch, again

    rows = [filled(kind, name, options) for kind, name in NAMES.items()]
    reliability.finish("fill_disk", rows, options.results)


def filled(training: str, shown: str, options: argparse.Namespace) -> common.Row:
    """Fill the disk at each write of a training."""
    row = reliability.empty(f"disk full at the n-th write, resumed: {shown}, equal bits")
    with tempfile.TemporaryDirectory() as name:
        warm, whole = Path(name) / "warm", Path(name) / "whole"
        warm.mkdir()
        whole.mkdir()  # as the folders of the attempts: to make it is no write
        in_process(train, training, warm, 0)
        writes, kind, text = in_process(train, training, whole, 0)
        if kind:
            raise RuntimeError(text)
        weights = digest(next(iter(whole.glob("*/*_1"))))
        for full_from in range(1, writes + 1, writes // 3 if options.quick else options.every):
            with tempfile.TemporaryDirectory(dir=name) as folder:
                wrong = attempt(training, full_from, Path(folder), weights)
            reliability.count(row, f"{shown}, write {full_from} of {writes}", wrong)
    return row


if __name__ == "__main__":
    main()
