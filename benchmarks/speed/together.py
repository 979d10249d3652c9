"""Agents together in one process, compared with `--seeds` one after another and in processes that share the cores.

For each task a command for all agents, in turns: `--jobs 1`, `--jobs` as many as cores, and `--together`. Seconds are
those of the whole command. `startup_s` are those of the same command with one step in place of the training,
`startup_share` what they are of the seconds. `cpu_s` is the processors' time, of all processes. `ratio` are the seconds
together compared with the better of the others. `cpu_ratio` compares `cpu_s` with that of `--jobs` as many as cores,
which keeps all cores busy too: it says more than seconds where other programs use the cores. `same_bits`: agents whose
last policies have the bits of `--jobs 1`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Neighbours, Row, cores, finish, parser, table

COLUMNS = ("task", "mode", "seconds", "cpu_s", "startup_s", "startup_share", "same_bits")
TASKS = {"ppo": ("Acrobot-v1", 2_000_000), "sac": ("Pendulum-v1", 200_000)}
MODES = {"jobs 1": ("--jobs", "1"), f"jobs {cores()}": ("--jobs", str(cores())), "together": ("--together",)}


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--only", nargs="*", default=[*TASKS], choices=TASKS)
    flags.add_argument("--agents", type=int, default=16)
    flags.add_argument("--share", type=float, default=1.0, help="fraction of the steps")
    options = flags.parse_args()
    neighbours = Neighbours()
    agents, share = (2, 0.001) if options.quick else (options.agents, options.share)
    tasks = options.only[:1] if options.quick else options.only
    rows = [row for task in tasks for row in compared(task, agents, share)]
    print(table(rows, COLUMNS))
    found = {task: ratios([row for row in rows if row["task"] == task]) for task in tasks}
    finish("together", rows, options, neighbours, agents=agents, share=share, ratios=found)


def compared(task: str, agents: int, share: float) -> list[Row]:
    """A row for each mode."""
    rows, policies = list[Row](), dict[int, bytes]()
    for mode, flags in MODES.items():
        with tempfile.TemporaryDirectory() as folder:
            begin, _ = command(task, agents, 1, flags, Path(folder, "begin"))
            seconds, cpu = command(task, agents, round(TASKS[task][1] * share), flags, Path(folder, "runs"))
            found = last_policies(Path(folder, "runs"))
        policies = policies or found
        same = sum(policy == found.get(seed) for seed, policy in policies.items())
        values = (task, mode, seconds, cpu, begin, begin / seconds, same)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def command(task: str, agents: int, steps: int, flags: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Seconds of a command that trains all agents, and those of processors."""
    words = ["train", task, TASKS[task][0], "--seeds", f"0-{agents - 1}", "--total-steps", str(steps)]
    words += ["--target-return", "none", "--final-episodes", "0", "--progress", "none", "--log-folder", str(folder)]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "headrace", *words, *flags], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def last_policies(folder: Path) -> dict[int, bytes]:
    """The policies' files in a folder of runs, by seed."""
    found = {}
    for last in folder.glob("*/*/last"):
        seed = json.loads((last / "manifest.json").read_text())["settings"]["seed"]
        found[seed] = (last / "policy.safetensors").read_bytes()
    return found


def ratios(rows: list[Row]) -> Row:
    """Agents together compared with the other modes of a task."""
    one, several, together = rows
    better = min(one["seconds"], several["seconds"])
    return {
        "ratio": round(together["seconds"] / better, 3),
        "cpu_ratio": round(together["cpu_s"] / several["cpu_s"], 3),
    }


if __name__ == "__main__":
    main()
