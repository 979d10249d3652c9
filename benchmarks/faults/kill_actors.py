"""An actor is killed at any moment of a training: while it starts, collects, or the learner publishes, saves, or ends.

On compiled environments the training must end with the bits of an undisturbed one; on Gymnasium's environments, which
cannot be saved, with all its steps, having counted those that were lost. Nothing may be left. Moments are drawn by a
seed; rows are appended, so that runs of this program add up.

    python -m benchmarks.faults.kill_actors      # 30 kills with each kind of environments: about ten minutes
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.faults import kill_runs, reliability
from benchmarks.faults.kill_runs_one import ACTORS, KINDS, train
from benchmarks.processes import alive, descendants

LOST = 4  # environments of an actor
GYMNASIUM = {
    f"gymnasium_{collection}": {
        **{"env": "CartPole-v1", "num_envs": 2 * LOST, "num_steps": 32, "total_steps": 8_000, "backend": "inline"},
        **{"actors": 2, "collection": collection, "on_error": "restart"},
    }
    for collection in ("sync", "overlapped", "async")
}
GYMNASIUM["gymnasium_async"]["max_policy_lag"] = 1  # of PPO, at most
BATCH = 5  # kills between two rows
# the longest delay of a kill within each, in seconds, and how often it has begun before, at most
PHASES = {
    "start": (2.0, 1),
    "collecting": (0.01, 20),
    "publishing": (0.001, 20),
    "saving": (0.02, 2),
    "exit": (0.02, 1),
}


class Moment(NamedTuple):
    """Moment at which an actor is killed."""

    phase: str
    count: int  # how often this phase has begun by then
    delay: float  # s
    place: int  # which actor


def watched(kind: str, folder: Path, moment: Moment) -> None:
    """A training in which an actor is killed; the file `killed` in its folder says so."""
    from headrace.envs.workers.process import WorkerProcess
    from headrace.parallel.actors import Actors
    from headrace.runs import checkpoint
    from headrace.training.trainer import Trainer

    begun, processes = [0], []

    def strike() -> None:
        time.sleep(moment.delay)
        (folder / "killed").touch()
        with suppress(ProcessLookupError):  # it has ended
            os.kill(processes[moment.place], signal.SIGKILL)

    def begins(phase: str) -> None:
        if phase == moment.phase:
            begun[0] += 1
            if begun[0] == moment.count:
                threading.Thread(target=strike, daemon=True).start()

    def launched(worker: WorkerProcess) -> None:
        processes.append(worker.process.pid)
        if len(processes) == moment.place + 1:
            begins("start")

    after(WorkerProcess, "_launch", launched)
    before(Actors, "collect", lambda *_: begins("collecting"))
    before(Actors, "publish", lambda *_: begins("publishing"))
    before(checkpoint, "save", lambda *_: begins("saving"))
    before(Trainer, "close", lambda *_: begins("exit"))
    train(kind, folder)


def before(owner: Any, name: str, do: Callable[..., None]) -> None:
    """Let a function do something else first."""
    function = getattr(owner, name)

    def changed(*arguments: Any, **options: Any) -> Any:
        do(*arguments)
        return function(*arguments, **options)

    setattr(owner, name, changed)


def after(owner: Any, name: str, do: Callable[..., None]) -> None:
    """Let a function do something else at last."""
    function = getattr(owner, name)

    def changed(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        do(*arguments)
        return result

    setattr(owner, name, changed)


def drawn(phase: str, chance: random.Random) -> Moment:
    """A moment within a phase."""
    delay, most = PHASES[phase]
    return Moment(phase, chance.randint(1, most), chance.uniform(0, delay), chance.randrange(2))


def kill_one(kind: str, reference: kill_runs.Reference | None, folder: Path, moment: Moment) -> str:
    """Describe what is wrong with a training in which an actor is killed; empty for nothing."""
    process = kill_runs.FORK.Process(target=watched, args=(kind, folder, moment))
    process.start()
    family = seen(process)
    wrong = kill_runs.finished(process)
    until = time.monotonic() + kill_runs.LEFT
    while any(map(alive, family)) and time.monotonic() < until:
        time.sleep(0.05)
    run = kill_runs.run_in(folder)
    if wrong or run is None:
        return wrong or "there is no run"
    if any(map(alive, family)):
        return "processes were left behind"
    if not (folder / "killed").exists():
        return "nothing was killed"
    if reference is not None:
        return kill_runs.damage(kind, reference, run)
    return miscounted(kind, run, moment)


def seen(process: BaseProcess) -> set[int]:
    """All processes that a training starts, until it ends."""
    found: set[int] = set()
    while process.is_alive():
        found |= set(descendants(process.pid or 0))
        time.sleep(0.02)
    return found


def miscounted(kind: str, run: Path, moment: Moment) -> str:
    """Describe what is wrong with the steps and the restarts of a training whose environments cannot be saved."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    if last["steps"] < KINDS[kind]["total_steps"]:
        return f"it ended at {last['steps']} steps"
    known = moment.phase in ("start", "saving", "exit") or moment.count <= 2  # its first fragment, or perhaps its last
    if last.get("restarts", 0) not in ((0, LOST) if known else (LOST,)):
        return f"it counted {last.get('restarts')} restarts"
    return ""


def main() -> None:
    """Kill, and append a row for each kind."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--kills", type=int, default=30, help="with compiled environments, and as many with Gymnasium's")
    flags.add_argument("--kinds", nargs="+", default=[*ACTORS, *GYMNASIUM], choices=[*ACTORS, *GYMNASIUM])
    flags.add_argument("--seed", type=int, default=0, help="of the moments")
    options = flags.parse_args()
    KINDS.update(GYMNASIUM)
    kills, kinds = (1, ["ppo_overlapped"]) if options.quick else (options.kills, options.kinds)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        references = {kind: kill_runs.Reference(kind, Path(name) / kind) for kind in kinds if kind in ACTORS}
        rows: dict[str, common.Row] = {}
        for number in range(kills):
            for mine in ([kind for kind in kinds if kind in table] for table in (ACTORS, GYMNASIUM)):
                if mine:
                    kind, phase = mine[number % len(mine)], list(PHASES)[number % len(PHASES)]
                    with tempfile.TemporaryDirectory(dir=name) as folder:
                        moment = drawn(phase, chance)
                        wrong = kill_one(kind, references.get(kind), Path(folder), moment)
                    count(rows, kind, moment, wrong)
            if (number + 1) % BATCH == 0 and number + 1 < kills:
                reliability.append(options.results, "kill_actors", list(rows.values()))
                rows = {}
    reliability.finish("kill_actors", list(rows.values()), options.results)


def count(rows: dict[str, common.Row], kind: str, moment: Moment, wrong: str) -> None:
    """Count a kill in the row of its fault."""
    row = rows.setdefault(fault(kind), reliability.empty(fault(kind)))
    reliability.count(row, f"{kind}, {moment}", wrong, moments=moment.phase)
    print(f"{kind}, {moment}: {wrong or 'as it should be'}", flush=True)


def fault(kind: str) -> str:
    """The fault, for the table."""
    if kind in ACTORS:
        return kill_runs.fault(kind).replace("killed and resumed", "an actor killed")
    return "an actor killed: PPO on Gymnasium's environments, counted"


if __name__ == "__main__":
    main()
