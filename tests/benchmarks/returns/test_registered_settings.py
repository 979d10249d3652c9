"""The benchmark of the registered settings: thresholds, and which trainings are missing."""

from __future__ import annotations

import json
from argparse import Namespace

from benchmarks.common import read_rows
from benchmarks.returns import algorithms
from benchmarks.returns.registered_settings import FIRST_SEED, Training, digest, missing, pairs, summary, threshold

ALL = Namespace(only="", env="", times=[1, 3], seeds=None)


def test_all_registered_settings_have_the_threshold_of_the_other_benchmarks():
    found = {pair: threshold(*pair) for pair in pairs(ALL)}
    assert all(found[task.algorithm, task.env] == task.threshold for task in algorithms.TASKS)
    assert (found["ppo", "HalfCheetah-v5"], found["sac", "InvertedDoublePendulum-v5"]) == (2000, 9000)
    assert (found["ppo", "PixelPendulum"], found["ppo", "MountainCar-v0"]) == (-300, -120)  # sac's; judge.py's


def test_trainings_that_have_a_row_of_the_same_settings_are_not_run_again(tmp_path):
    options = Namespace(only="ppo,td3", env="Pendulum-v1,LunarLander-v3", times=[1, 3])
    todo = missing([], lambda row: 2, options)
    assert {(t.env, t.algorithm, t.times) for t in todo} == {
        *(("Pendulum-v1", name, times) for name in ("ppo", "td3") for times in (1, 3)),
        ("LunarLander-v3", "ppo", 1),  # of another package: at the registered steps alone
    }
    training = Training("ppo", "Pendulum-v1", 1, FIRST_SEED, digest("ppo", "Pendulum-v1"))
    row = {**training._asdict(), "return": -150.0, "steps": 600_000, "seconds": 1.0}
    rows = [row, row | {"seed": FIRST_SEED + 1, "return": -250.0}, row | {"settings": "others"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = read_rows(tmp_path / "rows.jsonl")
    left = missing(known, lambda row: 2, options)
    assert len(left) == len(todo) - 2 and training not in left
    (line,) = summary(known, options)
    assert (line["reached"], line["seeds"], line["lowest"], line["mean"]) == (1, 2, -250, -200)
