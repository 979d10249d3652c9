"""Trainings whose environments go wrong in every way, 1,000 times in all: each must end as it should, count what
happened, and leave nothing behind: no process, no descriptor, no shared memory, no growth.

    python -m benchmarks.faults.env_faults            # about four minutes
    python -m benchmarks.faults.env_faults --quick    # a tenth of the faults
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks import common
from benchmarks.processes import alive, descendants

NUM_ENVS, WORKERS = 8, 2
LOST = NUM_ENVS // WORKERS  # environments that go with a worker's process
STEP_TIMEOUT = 1.0  # s
CHANCE = 0.005  # of a fault at a step or reset: three in a row at the same one, which end a run, are rare
LETTERS = {"step": "s", "reset": "r", "constructor": "c", "kill": "k", "hang": "h", "nan": "n", "shape": "w"}


class Case(NamedTuple):
    """Trainings with one kind of fault."""

    kind: str
    on_error: str
    runs: int
    faults: int  # in each
    restarts: int  # that each fault costs
    raises: str  # the exception that ends the run; empty where it goes on to its end


CASES = [
    Case("step", "restart", 4, 90, 1, ""),
    Case("reset", "restart", 4, 60, 1, ""),
    Case("shape", "restart", 4, 50, 1, ""),
    Case("constructor", "restart", 4, 20, 1, ""),  # when one that went wrong is made again
    Case("kill", "restart", 3, 15, LOST, ""),
    Case("hang", "restart", 3, 5, LOST, ""),
    *(
        Case(kind, "raise", runs, 1, 0, error)
        for kind, runs, error in (
            ("step", 15, "ZeroDivisionError"),
            ("reset", 15, "ZeroDivisionError"),
            ("constructor", 15, "ZeroDivisionError"),
            ("shape", 15, "ValueError"),
            ("kill", 15, "WorkerError"),
            ("hang", 5, "WorkerError"),
            ("nan", 15, "NotFinite"),
        )
    ),
]
COLUMNS = ("kind", "on_error", "runs", "faults", "restarts", "as_they_should")
GROWTH = 30  # megabytes that a process may hold more at the end
PARENTS = 6  # trainings that are killed themselves


class Faulty(gymnasium.Env):
    """Episodes of 20 steps. Goes wrong in one way while the ledger holds less than `quota` faults, and writes each
    into the ledger before it happens: a byte at the end of a file, which survives whoever wrote it."""

    observation_space, action_space = Box(-1e3, 1e3, (3,)), Discrete(2)

    def __init__(self, kind: str, quota: int, ledger: str) -> None:
        self.kind, self.quota, self.ledger = kind, quota, Path(ledger)
        self.steps = 0
        self.chance = np.random.default_rng([os.getpid(), time.monotonic_ns()])
        if kind == "constructor":
            happened = Counter(self.ledger.read_bytes())
            if quota == 1 or happened[ord("s")] > happened[ord("c")]:
                self._go_wrong("constructor")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode, or go wrong."""
        super().reset(seed=seed)
        self.steps = 0
        if self.kind == "reset" and self._due(CHANCE):
            self._go_wrong("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step, or what is wrong with it."""
        self.steps += 1
        observation = np.full(3, self.steps, np.float32)
        if self.kind != "reset" and self._due(CHANCE):
            self._go_wrong("step" if self.kind == "constructor" else self.kind)
            observation = np.full(3, np.nan, np.float32) if self.kind == "nan" else np.zeros(5, np.float32)
        return observation, 1.0, self.steps == 20, False, {}

    def _due(self, chance: float) -> bool:
        return self.chance.random() < chance and self.ledger.stat().st_size < self.quota

    def _go_wrong(self, kind: str) -> None:
        with self.ledger.open("ab", buffering=0) as ledger:
            ledger.write(LETTERS[kind].encode())
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang":
            time.sleep(1000)
        if kind not in ("nan", "shape"):
            raise ZeroDivisionError(f"the {kind} went wrong")


def trainer(case: Case, ledger: Path) -> Any:
    """A small training with two worker processes."""
    from headrace.training.trainer import Trainer

    return Trainer(
        "ppo",
        partial(Faulty, case.kind, case.faults, str(ledger)),
        num_envs=NUM_ENVS,
        workers=WORKERS,
        num_steps=16,
        minibatch_size=64,
        epochs=1,
        hidden=(8,),
        on_error=case.on_error,
        step_timeout=STEP_TIMEOUT,
    )


def run(case: Case, folder: Path, number: int) -> tuple[int, int, str]:
    """One training: faults that happened, restarts that were counted, and the exception that ended it."""
    ledger = folder / f"{case.kind}_{case.on_error}_{number}"
    ledger.touch()
    counted, ended, training = 0, "", None
    try:
        training = trainer(case, ledger)
        rows = 0  # after the last fault: it has gone on
        while rows < 3:
            row = training.iterate().row()
            counted = row.get("restarts", 0)
            rows += ledger.stat().st_size >= case.faults
    except Exception as error:
        ended = type(error).__name__
    finally:
        if training is not None:
            training.close()
    happened = Counter(ledger.read_bytes().decode())
    cost = happened["s"] if case.kind == "constructor" else sum(happened.values())
    expected = cost * case.restarts
    if case.on_error == "restart" and counted != expected:
        ended = ended or f"counted {counted} instead of {expected}"
    return sum(happened.values()), counted, ended


PARENT = """
import sys
from pathlib import Path
from benchmarks.faults import env_faults
ledger = Path(sys.argv[1])
ledger.touch()
training = env_faults.trainer(env_faults.Case("step", "restart", 1, 0, 1, ""), ledger)
while True:
    training.iterate()
    print("iterated", flush=True)
"""


def kill_a_parent(folder: Path) -> bool:
    """Kill a training in the middle of it: whether all of its processes are gone within ten seconds."""
    words = [sys.executable, "-c", PARENT, str(folder / "ledger")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=common.environment())
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    family = descendants(process.pid)
    process.kill()
    process.communicate()
    until = time.monotonic() + 10
    while any(map(alive, family)) and time.monotonic() < until:
        time.sleep(0.05)
    return len(family) >= WORKERS and not any(map(alive, family))


class Left(NamedTuple):
    """Resources that a process holds."""

    descriptors: int
    processes: int
    megabytes: float
    shared: frozenset[str]  # what lies in /dev/shm and no other program uses

    @classmethod
    def now(cls) -> Left:
        """Resources of this process."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            len(os.listdir("/proc/self/fd")),
            len(descendants(os.getpid())),
            pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            shared_files(),
        )


def shared_files() -> frozenset[str]:
    """Files in /dev/shm that no process of another program has mapped."""
    mine, others = {os.getpid(), *descendants(os.getpid())}, set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) not in mine:
            with suppress(OSError):  # it has ended, or is another user's
                others |= {int(line.split()[4]) for line in maps.read_text().splitlines() if "/dev/shm/" in line}
    found = set()
    for entry in os.scandir("/dev/shm"):
        with suppress(OSError):  # it has gone
            found |= {entry.name} if entry.stat().st_ino not in others else set()
    return frozenset(found)


def main() -> None:
    """Run all cases, print a table, and end with exit code 1 where something is not as it should be."""
    options, neighbours = common.parser(__doc__ or "").parse_args(), common.Neighbours()
    share = 0.1 if options.quick else 1.0
    began, wrong, rows = time.perf_counter(), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(Case("step", "restart", 1, 1, 1, ""), folder, -1)  # starts what stays: the server of processes
        before = Left.now()
        for case in CASES:
            row, bad = measured(case, max(1, round(case.runs * share)), folder)
            rows.append(row)
            wrong += [f"{case.kind}, {case.on_error}: ended by {ended or 'nothing'}" for ended in bad]
            print(f"{case.kind}, {case.on_error}: {row['as_they_should']} of {row['runs']}", flush=True)
        parents = max(1, round(PARENTS * share))
        buried = sum(kill_a_parent(folder) for _ in range(parents))
        after = Left.now()
    rows.append({"kind": "parent", "runs": parents, "faults": parents, "as_they_should": buried})
    wrong += [f"{parents - buried} of {parents} killed trainings left processes behind"] * (buried < parents)
    wrong += differences(before, after)
    faults, seconds = sum(row["faults"] for row in rows), time.perf_counter() - began
    print(common.table(rows, COLUMNS))
    print(f"{faults:,} faults in {seconds:.0f} s")
    print(
        f"descriptors {before.descriptors} -> {after.descriptors}, processes {before.processes} -> {after.processes}, "
        f"memory {before.megabytes:.0f} -> {after.megabytes:.0f} MB"
    )
    print("\n".join(wrong) or "all as they should be")
    held = {
        when: left._replace(shared=sorted(left.shared))._asdict()
        for when, left in (("before", before), ("after", after))
    }
    common.finish("faults", rows, options, neighbours, faults=faults, seconds=seconds, wrong=wrong, **held)
    raise SystemExit(bool(wrong))


def measured(case: Case, runs: int, folder: Path) -> tuple[common.Row, list[str]]:
    """A row of the table, and how those runs ended that did not end as they should."""
    results = [run(case, folder, number) for number in range(runs)]
    bad = [ended for _, _, ended in results if ended != case.raises]
    row = {
        "kind": case.kind,
        "on_error": case.on_error,
        "runs": runs,
        "faults": sum(happened for happened, _, _ in results),
        "restarts": sum(counted for _, counted, _ in results),
        "as_they_should": runs - len(bad),
    }
    return row, bad


def differences(before: Left, after: Left) -> list[str]:
    """Describe the resources that have grown."""
    found = [
        f"{name}: {getattr(before, name)} before, {getattr(after, name)} after"
        for name, slack in (("descriptors", 0), ("processes", 0), ("megabytes", GROWTH))
        if getattr(after, name) > getattr(before, name) + slack
    ]
    stayed = sorted(after.shared - before.shared)
    return [*found, *([f"in /dev/shm there stay {', '.join(stayed)}"] if stayed else [])]


if __name__ == "__main__":
    main()
