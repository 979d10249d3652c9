"""One of two learners is killed at any moment of a training: while they start, collect, learn, save, or end.

Where it is rank 1, the training goes on by itself from its last checkpoint; where it is rank 0, which is the training's
process, the run is resumed. Both must end with the bits of an undisturbed run, and no process may be left. Moments are
drawn by a seed; rows are appended, so that runs of this program add up.

    python -m benchmarks.faults.kill_learners              # 20 kills of each rank: about ten minutes
    python -m benchmarks.faults.kill_learners --saved      # likewise, all of them from the first checkpoint on
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from pathlib import Path

from benchmarks import common
from benchmarks.faults import kill_runs, reliability
from benchmarks.faults.kill_actors import after, seen
from benchmarks.faults.kill_runs_one import KINDS, train
from benchmarks.processes import alive

LEARNERS = {f"{kind}_learners": {**KINDS[kind], "learners": 2} for kind in ("ppo", "recurrent", "sac", "dqn")}
NAMES = {"ppo": "PPO", "recurrent": "recurrent PPO", "sac": "SAC", "dqn": "DQN"}
BATCH = 5  # kills between two rows


def watched(kind: str, folder: Path) -> None:
    """A training that writes the process of its other learner to the file `rank`."""
    from headrace.envs.workers.process import WorkerProcess

    folder.mkdir(parents=True, exist_ok=True)
    after(WorkerProcess, "_launch", lambda worker: (folder / "rank").write_text(str(worker.process.pid)))
    train(kind, folder)


def kill_other(
    kind: str, reference: kill_runs.Reference, folder: Path, moment: float, from_saved: bool
) -> tuple[str, str]:
    """Kill rank 1 after `moment` seconds: what it was killed in, and what is wrong at the end."""
    process = kill_runs.FORK.Process(target=watched, args=(kind, folder))
    process.start()
    kill_runs.let_live(process, folder, moment, from_saved)
    while process.exitcode is None and not (folder / "rank").exists():
        time.sleep(0.01)
    if process.exitcode is None:
        when = "with a checkpoint" if kill_runs.has_checkpoint(folder) else "before the first checkpoint"
        try:
            os.kill(int((folder / "rank").read_text()), signal.SIGKILL)
        except ProcessLookupError:
            when = "at its end"
    else:
        when = "after its end"
    family = seen(process)
    wrong = kill_runs.finished(process)
    until = time.monotonic() + kill_runs.LEFT
    while any(map(alive, family)) and time.monotonic() < until:
        time.sleep(0.05)
    if any(map(alive, family)):
        return when, "processes were left behind"
    if wrong and when == "before the first checkpoint":  # what was never saved is started again
        folder = folder / "again"
        wrong = kill_runs.finished(kill_runs.start(kind, folder))
    run = kill_runs.run_in(folder)
    return when, wrong or (kill_runs.damage(kind, reference, run) if run else "there is no run")


def main() -> None:
    """Kill, and append a row for each kind and rank."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--kills", type=int, default=20, help="of each rank")
    flags.add_argument("--kinds", nargs="+", default=list(LEARNERS), choices=LEARNERS, help="which trainings")
    flags.add_argument("--seed", type=int, default=0, help="of the moments")
    flags.add_argument("--saved", action="store_true", help="draw moments from the first checkpoint on")
    options = flags.parse_args()
    KINDS.update(LEARNERS)
    kills, kinds = (1, ["ppo_learners"]) if options.quick else (options.kills, options.kinds)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        references = {kind: kill_runs.Reference(kind, Path(name) / kind) for kind in kinds}
        rows: dict[str, common.Row] = {}
        for number in range(2 * kills):
            kind, rank = kinds[number // 2 % len(kinds)], number % 2
            reference = references[kind]
            life = 0.95 * reference.saved_seconds if options.saved else 1.05 * reference.seconds
            moment = chance.uniform(0, life)
            with tempfile.TemporaryDirectory(dir=name) as folder:
                kill = kill_other if rank else kill_runs.kill_once
                when, wrong = kill(kind, reference, Path(folder), moment, options.saved)
            row = rows.setdefault(fault(kind, rank), reliability.empty(fault(kind, rank)))
            reliability.count(row, f"{kind}, rank {rank} killed after {moment:.2f} s ({when})", wrong, moments=when)
            print(
                f"{number + 1}: {kind}, rank {rank}, {moment:.2f} s, {when}: {wrong or 'as it should be'}", flush=True
            )
            if (number + 1) % BATCH == 0 and number + 1 < 2 * kills:
                reliability.append(options.results, "kill_learners", list(rows.values()))
                rows = {}
    reliability.finish("kill_learners", list(rows.values()), options.results)


def fault(kind: str, rank: int) -> str:
    """The fault, for the table."""
    how = "and the training went on" if rank else "and the run resumed"
    return f"rank {rank} of 2 learners killed {how}: {NAMES[kind.partition('_')[0]]}, equal bits"


if __name__ == "__main__":
    main()
