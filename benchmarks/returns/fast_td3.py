"""FastTD3's preset against TD3 on HalfCheetah-v5, to equal seconds of a CPU: returns of 20 deterministic episodes.

    taskset -c 0 python -m benchmarks.returns.fast_td3             # an hour, on one core; each training is one row
    python -m benchmarks.returns.fast_td3 --table                  # the rows so far, and train nothing

`fasttd3` steps 64 environments of mujoco/, `td3` what is taken where nothing is given. Trainings may share the machine:
their clock is the time of the process, which leaves evaluations and compiling out.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import torch

import headrace as hr
from benchmarks.common import Row, machine, parser, read_rows, table
from benchmarks.judge import Evaluation, Task

EPISODES = 20
WAYS: dict[str, dict[str, Any]] = {"fasttd3": {"config": "fasttd3", "v_min": -100.0, "v_max": 700.0}, "td3": {}}


def main() -> None:
    flags = parser((__doc__ or "").splitlines()[0])
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    flags.add_argument("--marks", type=float, nargs="+", default=[100.0, 300.0], help="CPU seconds")
    flags.add_argument("--env", default="HalfCheetah-v5")
    flags.add_argument("--table", action="store_true", help="print the rows so far, and train nothing")
    options = flags.parse_args()
    file = options.results / "fast_td3.jsonl"
    options.results.mkdir(parents=True, exist_ok=True)
    for seed in [] if options.table else options.seeds:
        for way in options.ways:
            marks = [1.0] if options.quick else sorted(options.marks)
            row = {"way": way, "env": options.env, "seed": seed, "points": train(way, options.env, seed, marks)}
            row |= {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine()}
            with open(file, "a") as lines:
                lines.write(json.dumps({**row, "quick": options.quick}) + "\n")
            print(way, seed, row["points"], flush=True)
    rows = [row for row in read_rows(file) if row["quick"] == options.quick]
    print(table(summary(rows), ("env", "cpu_s", "way", "seeds", "return", "lowest", "returns")))


def train(way: str, env: str, seed: int, marks: list[float]) -> list[Row]:
    """Train once, and return a row for each mark."""
    torch.set_num_threads(1)
    endless = Task(float("-inf"), 0, 0, 0.0, 0.0)  # no episode is given up
    evaluation = Evaluation(env, endless, EPISODES)
    trainer = hr.Trainer("td3", env, seed=seed, device="cpu", total_steps=100_000_000, target_return=None, **WAYS[way])
    began, points = time.process_time(), list[Row]()
    for mark in marks:
        while (spent := time.process_time() - began) < mark:
            trainer.iterate()
        found = evaluation.mean(lambda observation: trainer.policy.predict(observation)[0])[0]
        points.append({"cpu_s": mark, "spent": spent, "steps": trainer.steps, "return": found})
        began = time.process_time() - spent  # evaluations do not count
    trainer.close()
    return points


def summary(rows: list[Row]) -> list[Row]:
    """A line for each mark and way."""
    groups: dict[tuple[str, float, str], list[float]] = {}
    for row in rows:
        for point in row["points"]:
            groups.setdefault((row["env"], point["cpu_s"], row["way"]), []).append(point["return"])
    return [
        {
            **{"env": env, "cpu_s": mark, "way": way, "seeds": len(found), "return": statistics.mean(found)},
            **{"lowest": min(found), "returns": " ".join(f"{value:.0f}" for value in found)},
        }
        for (env, mark, way), found in sorted(groups.items())
    ]


if __name__ == "__main__":
    main()
