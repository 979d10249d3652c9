"""Features that users of other libraries ask for, one task each: returns of five seeds, and of the library that has it.

    python -m benchmarks.returns.feature_returns [--only QR-DQN ...] [--seeds 0 1] [--until 02:45]
    python -m benchmarks.returns.feature_returns --write       # the table of docs/from_sb3.md

Rows of ROWS with a peer are trained by both libraries, with the same arguments, environment, steps and seeds, as
`headrace compare` does. Each last policy plays 30 episodes. A training is appended to results/asked_for.jsonl when it
has ended, and a further call goes on with those that are missing. Seconds are of the CPU while training, with one
thread, so that other programs change them little. Needs sb3-contrib: pip install sb3-contrib.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from benchmarks.common import Neighbours, Row, finish, parser, table
from benchmarks.returns import feature_tasks
from benchmarks.returns.feature_rows import LIBRARIES, ROWS, Asked, Settings
from benchmarks.returns.feature_table import rows_of, write

COLUMNS = ("what", "library", "seed", "steps", "return", "cpu_seconds", "wall")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument(
        "--only", nargs="+", default=[asked.what for asked in ROWS], metavar="WHAT", help="in this order"
    )
    flags.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    flags.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    flags.add_argument("--until", metavar="HH:MM", help="begin no training from then on")
    flags.add_argument("--write", action="store_true", help="write the table of the rows that are there")
    options = flags.parse_args()
    if options.write:
        write(options.results)
    else:
        train_all(options)


def train_all(options: argparse.Namespace) -> None:
    """Train what has no row yet, and append a row for each."""
    os.environ["HEADRACE_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    feature_tasks.register()
    by_name = {asked.what: asked for asked in ROWS}
    there = {(row["what"], row["library"], row["seed"]) for row in rows_of(options.results / "asked_for.jsonl")}
    for asked in (by_name[what] for what in options.only):
        for seed in options.seeds[:1] if options.quick else options.seeds:
            for library in options.libraries[: None if asked.peer else 1]:
                if options.until and time.strftime("%H:%M") >= options.until:
                    return
                if (asked.what, library, seed) in there:
                    continue
                neighbours = Neighbours()
                row = {"what": asked.what, "library": library, "seed": seed, **trained(asked, library, seed, options)}
                print(table([row], COLUMNS), flush=True)
                finish("asked_for", [row], options, neighbours)


def trained(asked: Asked, library: str, seed: int, options: argparse.Namespace) -> Row:
    """One training: steps, the mean return of its last policy, seconds."""
    steps, episodes = (asked.steps // 10, 10) if options.quick else (asked.steps, 30)
    began, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = training_of(asked, library)(asked, steps, seed, Path(folder), episodes)
    part = (time.process_time() - used) / (time.perf_counter() - began)  # of a core
    seconds = {"cpu_seconds": round(found.seconds * part, 1), "wall": round(found.seconds, 1)}
    return {"steps": found.steps, "return": round(found.evaluated, 2), **seconds}


def training_of(asked: Asked, library: str) -> Callable[..., Any]:
    """Function that trains a row by a library."""
    if library == "headrace":
        return ours_resumed if asked.resumed else ours
    return theirs_masked if asked.masked else theirs


def task_of(asked: Asked, steps: int) -> Any:
    """The task that both libraries train, or Headrace alone."""
    from headrace.sb3.zoo import side_by_side

    if not asked.peer:
        settings: Settings = {"total_steps": steps, "num_envs": 1, **asked.given}
        return side_by_side.Task(asked.algorithm, asked.env, {}, settings | {"threads": 1})
    given = deepcopy(asked.given)  # DDPG of Stable-Baselines3 adds to policy_kwargs
    task = side_by_side.task(asked.algorithm, asked.env, given, steps)
    task.settings.update({"threads": 1} | ({"info_mask": True} if asked.masked else {}))
    return task


def ours(asked: Asked, steps: int, seed: int, folder: Path, episodes: int) -> Any:
    """Train by Headrace."""
    from headrace.sb3.zoo import side_by_side

    return side_by_side.train_ours(task_of(asked, steps), seed, folder, episodes)


def theirs(asked: Asked, steps: int, seed: int, folder: Path, episodes: int) -> Any:
    """Train by Stable-Baselines3 or its contrib."""
    from headrace.sb3.zoo import side_by_side

    return side_by_side.train_theirs(task_of(asked, steps), seed, folder, episodes)


def ours_resumed(asked: Asked, steps: int, seed: int, folder: Path, episodes: int) -> Any:
    """Train half of the steps, and the other half with twice the environments."""
    import headrace as hr
    from headrace.sb3.zoo import side_by_side

    task = task_of(asked, steps)
    options: Settings = {**task.settings, "total_steps": steps // 2, "log_folder": str(folder)}
    first = hr.train(task.kind, task.env, seed=seed, progress="none", device="cpu", **options)
    more = {"total_steps": steps, "num_envs": 2 * task.settings["num_envs"]}
    run = hr.train(resume=first.path, progress="none", **more)
    mean = hr.evaluate(run.policy, run.env, episodes=episodes, seed=seed, **run.eval_env_kwargs).mean
    nan = float("nan")
    return side_by_side.Result("headrace", seed, nan, mean, run.steps, run.seconds, nan, run.path)


def theirs_masked(asked: Asked, steps: int, seed: int, folder: Path, episodes: int) -> Any:
    """Train by MaskablePPO of sb3-contrib, which asks the environment for action_masks()."""
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.maskable.evaluation import evaluate_policy
    from stable_baselines3.common.env_util import make_vec_env

    from headrace.sb3.zoo import side_by_side

    given = {name: value for name, value in asked.given.items() if name != "n_envs"}
    env = make_vec_env(asked.env, asked.given["n_envs"], seed)
    model = MaskablePPO("MlpPolicy", env, seed=seed, device="cpu", **given)
    began = time.perf_counter()
    model.learn(steps)
    seconds, nan = time.perf_counter() - began, float("nan")
    mean = float(evaluate_policy(model, make_vec_env(asked.env, 1, seed + 1000), episodes)[0])
    return side_by_side.Result("sb3", seed, nan, mean, int(model.num_timesteps), seconds, nan, folder)


if __name__ == "__main__":
    main()
