"""A training is killed at the n-th file operation of its saves, for every n, and resumed to the same bits.

The trainings are SAC and DQN with priorities on compiled environments. Their replay buffers are in many small pieces,
of which the first are overwritten and removed before the end. An operation makes, writes, syncs, links, renames or
removes a file or folder; writes are also cut off in the middle. The run is then resumed, or started again where it was
never saved, and must end with the bits of an uninterrupted one, without a file that that one does not have. Resumed
runs, which begin with the pieces of another process, are killed in the same way.

    python -m benchmarks.faults.kill_saves               # every n, more than an hour
    python -m benchmarks.faults.kill_saves --every 10    # each tenth, from a drawn one on
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import shutil
import signal
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.faults import reliability
from benchmarks.faults.file_operations import CALLS, FileOperations
from benchmarks.faults.kill_runs import finished, has_checkpoint, run_in, weights

FORK = multiprocessing.get_context("fork")
ROWS = 32  # of a replay buffer in a piece
SETTINGS: dict[str, Any] = {"num_envs": 4, "hidden": (8,), "progress": "none", "threads": 1, "target_return": None}
SETTINGS |= {"total_steps": 320, "save_freq": 80, "learning_starts": 40, "buffer_size": 160, "batch_size": 16}
SETTINGS |= {"scale": False, "seed": 3}
KINDS: dict[str, dict[str, Any]] = {
    "SAC": {"algorithm": "sac", "env": "Pendulum-v1"},
    "DQN with priorities": {"algorithm": "dqn", "env": "CartPole-v1", "prioritized": True},
}
SAVES = re.compile(r"/\.?(last|best|step_\d+|replay)\b")  # in paths of what saves write; others are of logs
NUMBERS = re.compile(r"\d{4,}")  # in names: moments, processes, pieces


class Killing(FileOperations):
    """Ends this process at the n-th operation of a run's saves (0: never), or in the middle of it if it is a write."""

    def __init__(self, folder: Path, at: int, middle: bool) -> None:
        super().__init__(folder, ("open", "write", *CALLS))
        self.at, self.middle = at, middle
        self.seen: list[str] = []  # the names of all

    def concerns(self, path: str) -> bool:
        """Tell whether a path is that of a save."""
        return super().concerns(path) and bool(SAVES.search(path.removeprefix(self.folder)))

    def before(self, name: str, path: str) -> None:
        """Kill this process where it is time."""
        self.seen.append(name)
        if self.count == self.at and not self.middle:
            os.kill(os.getpid(), signal.SIGKILL)

    def inside(self, data: Any, file: Any) -> None:
        """Kill this process in the middle of a write."""
        if self.count == self.at:
            file.write(memoryview(data)[: len(data) // 2])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def train(kind: str, folder: Path, resumed: Path | None, at: int = 0, middle: bool = False, seen: Any = None) -> None:
    """Train into a folder, or resume a run, to the end or to an operation of its saves; send all to `seen`."""
    import headrace as hr
    from headrace.data import pieces
    from headrace.runs import recorder, replay_files

    pieces.ROWS, replay_files.EVERY, recorder.SAVE_EVERY = ROWS, 0.0, 1e9
    operations = Killing(folder, at, middle)
    operations.install()
    if resumed:
        hr.train(resume=resumed, progress="none")
    else:
        hr.train(log_folder=str(folder), **SETTINGS, **KINDS[kind])
    if seen:
        seen.send(operations.seen)


def start(*arguments: Any, **options: Any) -> BaseProcess:
    """train() in a fork of this process."""
    process = FORK.Process(target=train, args=arguments, kwargs=options)
    process.start()
    return process


class Case:
    """A training that is killed, from its start or from where an earlier process was killed (`resumed`)."""

    def __init__(self, kind: str, folder: Path, resumed: bool) -> None:
        self.kind, self.begun = kind, None
        finished(start(kind, folder / "warm", None))  # compiles what is not in the cache yet
        whole = folder / "whole"
        self.operations = self._count(whole, None)
        run = run_in(whole)
        if run is None:
            raise RuntimeError(f"{kind} does not train")
        self.weights, self.files = weights(run), names(run)
        if resumed:
            begun = folder / "begun"
            start(kind, begun, None, at=len(self.operations) * 6 // 10).join()
            self.operations = self._count(*self._copied(begun, folder / "copy"))
            self.begun = begun

    def _count(self, folder: Path, resumed: Path | None) -> list[str]:
        mine, theirs = FORK.Pipe(duplex=False)
        process = start(self.kind, folder, resumed, seen=theirs)
        if not mine.poll(1800):
            raise RuntimeError(f"{self.kind} does not end")
        operations = mine.recv()
        process.join()
        return operations

    def _copied(self, begun: Path, folder: Path) -> tuple[Path, Path | None]:
        shutil.copytree(begun, folder)
        return folder, run_in(folder)

    def attempt(self, at: int, middle: bool, folder: Path) -> str | None:
        """Describe what is wrong after a kill; empty for nothing; None where the training had ended before."""
        arguments = self._copied(self.begun, folder / "run") if self.begun else (folder / "run", None)
        process = start(self.kind, *arguments, at=at, middle=middle)
        process.join(1800)
        if process.exitcode == 0:
            return None
        if process.exitcode != -signal.SIGKILL:
            return f"it ended with {process.exitcode} instead of being killed"
        folder = arguments[0]
        saved = run_in(folder) if has_checkpoint(folder) else None
        fresh = folder if saved else folder / "again"
        wrong = finished(start(self.kind, fresh, saved))
        run = run_in(fresh)
        if wrong or run is None:
            return wrong or "there is no run"
        more = names(run) - self.files
        if more:
            return f"it left {', '.join(sorted(more))}"
        return "" if weights(run) == self.weights else "its weights are others"


def names(run: Path) -> set[str]:
    """The files and folders of a run, without numbers of moments, processes and pieces."""
    return {NUMBERS.sub("N", str(path.relative_to(run))) for path in run.rglob("*")}


def killed(kind: str, resumed: bool, options: argparse.Namespace, chance: random.Random) -> common.Row:
    """Kill a training at each operation of its saves."""
    where = ", of a run that was resumed" * resumed
    row = reliability.empty(f"killed at the n-th operation of a save, and resumed: {kind}, equal bits{where}")
    with tempfile.TemporaryDirectory() as name:
        case = Case(kind, Path(name), resumed)
        moments = [(n, False) for n in range(1, len(case.operations) + 1)]
        moments += [(n, True) for n, operation in enumerate(case.operations, 1) if operation == "write"]
        every = len(moments) // 3 if options.quick else options.every
        for at, middle in sorted(moments)[chance.randrange(every) :: every]:
            with tempfile.TemporaryDirectory(dir=name) as folder:
                wrong = case.attempt(at, middle, Path(folder))
            what = f"{row['fault']}: {'in' if middle else 'before'} operation {at} of {len(case.operations)}"
            print(f"{what}: {'it had ended' if wrong is None else wrong or 'as it should be'}", flush=True)
            if wrong is not None:
                reliability.count(row, what, wrong, operations=case.operations[at - 1])
    return row


def main() -> None:
    """Kill trainings at each operation of their saves, new ones and resumed ones."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--every", type=int, default=1, help="only every n-th moment, beginning with one that is drawn")
    flags.add_argument("--seed", type=int, default=None, help="of the first moment")
    flags.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="which trainings")
    options = flags.parse_args()
    import headrace.training.loop  # noqa: F401  the forks need not import it, and torch, again

    chance = random.Random(options.seed)
    rows = [killed(kind, resumed, options, chance) for kind in options.kinds for resumed in (False, True)]
    reliability.finish("kill_saves", rows, options.results)


if __name__ == "__main__":
    main()
