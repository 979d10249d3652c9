"""Trainings that are killed at any moment of their life, and resumed: each must end as if nothing had happened.

PPO, a recurrent policy, SAC and DQN on compiled environments must end with the same bits as an uninterrupted run, with
actors too; asynchronous actors, and PPO with worker processes on Gymnasium's environments, which cannot be saved, with
all its steps. Nothing
may be left: no process, no unfinished checkpoint. Each run saves every 0.2 s. Rows are appended, so that runs of this
program add up.

    python -m benchmarks.faults.kill_runs --kills 200      # about half an hour
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks import common
from benchmarks.faults import reliability
from benchmarks.faults.kill_runs_one import KINDS, train
from benchmarks.processes import alive, descendants

FORK = multiprocessing.get_context("fork")
BATCH = 10  # kills between two rows
LEFT = 60.0  # s after which no process may be left: a fork server that is still importing ends when it has done so


def start(kind: str, folder: Path, resumed: Path | None = None) -> BaseProcess:
    """A training in a process of its own, a fork of this one: it need not import torch, as its start is."""
    process = FORK.Process(target=train, args=(kind, folder, resumed))
    process.start()
    return process


def finished(process: BaseProcess) -> str:
    """Describe what is wrong with how a training ended; empty for nothing."""
    process.join(600)
    return "" if process.exitcode == 0 else f"it ended with {process.exitcode}"


def run_in(folder: Path) -> Path | None:
    """The run's folder; None where it is not there yet."""
    return next(iter(folder.glob("*/*_1")), None)


def has_checkpoint(folder: Path) -> bool:
    """Tell whether the run in a folder can be resumed."""
    run = run_in(folder)
    return run is not None and any(run.glob("last*/manifest.json"))


def let_live(process: BaseProcess, folder: Path, moment: float, saved: bool = False) -> None:
    """Wait for so many seconds of a training's life; saved: of its life from the first checkpoint on."""
    while saved and process.exitcode is None and not has_checkpoint(folder):
        time.sleep(0.005)
    process.join(moment)


def weights(run: Path) -> str:
    """A digest of the policy at the end."""
    from headrace.runs import checkpoint

    digest = hashlib.sha256()
    for name, tensor in sorted(checkpoint.load(run / "last", "policy").items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


class Reference:
    """An uninterrupted run: how long its process lives, how long from the first checkpoint on, and its weights."""

    def __init__(self, kind: str, folder: Path) -> None:
        start(kind, folder / "warm").join()  # compiles what is not in the cache yet
        began = time.monotonic()
        process = start(kind, folder / "whole")
        let_live(process, folder / "whole", 0.0, saved=True)
        first = time.monotonic()
        wrong = finished(process)
        self.seconds, self.saved_seconds = time.monotonic() - began, time.monotonic() - first
        run = run_in(folder / "whole")
        if wrong or run is None:
            raise RuntimeError(f"{kind} does not train: {wrong}")
        self.weights = weights(run)


def kill_once(
    kind: str, reference: Reference, folder: Path, moment: float, from_saved: bool = False
) -> tuple[str, str]:
    """Kill a training after `moment` seconds and resume it: what it was killed in, and what is wrong at the end."""
    process = start(kind, folder)
    let_live(process, folder, moment, from_saved)
    when = "after its end" if process.exitcode is not None else "before the first checkpoint"
    family = descendants(process.pid or 0)
    process.kill()
    process.join()
    until = time.monotonic() + LEFT
    while any(map(alive, family)) and time.monotonic() < until:
        time.sleep(0.05)
    if any(map(alive, family)):
        return when, "processes were left behind"
    run, saved = run_in(folder), has_checkpoint(folder)
    if saved and when != "after its end":
        when = "with a checkpoint"
    fresh = folder if saved else folder / "again"  # what was never saved is started again
    wrong = finished(start(kind, fresh, run if saved else None))
    run = run_in(fresh)
    return when, wrong or (damage(kind, reference, run) if run else "there is no run")


def damage(kind: str, reference: Reference, run: Path) -> str:
    """Describe what is wrong with a run that has ended."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if rows[-1]["steps"] < KINDS[kind]["total_steps"]:
        return f"it ended at {rows[-1]['steps']} steps"
    if any(run.glob(".*")):
        return f"it left {', '.join(path.name for path in run.glob('.*'))}"
    if not any(run.glob("events.out.tfevents*")):
        return "it has no events for TensorBoard"
    if has_equal_bits(kind) and weights(run) != reference.weights:
        return "its weights are others"
    return ""


def has_equal_bits(kind: str) -> bool:
    """Tell whether a resumed run must end with the bits of an uninterrupted one."""
    return kind != "workers" and not kind.endswith("_async")


def main() -> None:
    """Kill, resume, and append a row for every few kills."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--kills", type=int, default=200, help="how many trainings are killed, of all kinds together")
    flags.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="which trainings")
    flags.add_argument("--seed", type=int, default=None, help="of the moments; by default each run draws others")
    options = flags.parse_args()
    kills, kinds = (1, ["ppo"]) if options.quick else (options.kills, options.kinds)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        references = {kind: Reference(kind, Path(name) / kind) for kind in kinds}
        rows: dict[str, common.Row] = {}
        for number in range(kills):
            kind = kinds[number % len(kinds)]
            reference = references[kind]
            moment = chance.uniform(0, 1.05 * reference.seconds)
            with tempfile.TemporaryDirectory(dir=name) as folder:
                when, wrong = kill_once(kind, reference, Path(folder), moment)
            row = rows.setdefault(kind, reliability.empty(fault(kind)))
            reliability.count(row, f"{kind}, killed after {moment:.2f} s ({when})", wrong, moments=when)
            print(f"{number + 1}: {kind}, {moment:.2f} s, {when}: {wrong or 'as it should be'}", flush=True)
            if (number + 1) % BATCH == 0 and number + 1 < kills:
                reliability.append(options.results, "kill_runs", list(rows.values()))
                rows = {}
    reliability.finish("kill_runs", list(rows.values()), options.results)


def fault(kind: str) -> str:
    """The fault, for the table."""
    first, _, collection = kind.partition("_")
    what = {"ppo": "PPO", "recurrent": "recurrent PPO", "appo": "APPO", "sac": "SAC", "dqn": "DQN"}.get(first)
    if not what:
        return "killed and resumed: PPO with worker processes"
    bits = ", equal bits" * has_equal_bits(kind)
    return f"killed and resumed: {what}{bits}" + f", 2 actors, {collection}" * bool(collection)


if __name__ == "__main__":
    main()
