"""Agents in threads of one process: `--together` with seeds and sweeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.cli.main import main
from headrace.cli.several import sweep_trials
from headrace.runs import checkpoint, signals
from headrace.runs.signals import Interrupts
from headrace.runs.task_processes import LOOK, NotTogether, no_question
from headrace.runs.task_threads import Threads

OFF_POLICY = ["Pendulum-v1", "--num-envs", "2", "--hidden", "16", "16", "--learning-starts", "200", "--seeds", "3-5"]
PPO = ["ppo", "CartPole-v1", "--num-envs", "8", "--num-steps", "32", "--hidden", "16", "--target-return", "none"]
TASKS = {
    "ppo": [*PPO[1:-1], "60", "--total-steps", "40_000", "--seeds", "3-5"],  # each stops at a step of its own
    "sac": [*OFF_POLICY, "--total-steps", "1500", "--target-return", "none"],
    "td3": [*OFF_POLICY, "--total-steps", "1500", "--target-return", "none"],
}
MINED = '''
from typing import NamedTuple
import headrace as hr
from headrace.kernels.language.ops import i32, randint

class Mined(hr.KernelEnv):
    """A reward of 1, but by chance, in one of 1,500 steps, of infinity."""

    observation_space, action_space = hr.Box(0.0, 1.0, (1,)), hr.Discrete(2)
    max_steps = 20

    class State(NamedTuple):
        count: i32

    def reset(s, p, key):
        return Mined.State(0)

    def step(s, p, action, key):
        return Mined.State(s.count + 1), (1e38 if randint(key, 0, 1500) == 0 else 1e-5) * 1e5, False

    def observe(s, p, out):
        out[0] = s.count / 20
'''


def train(*words: str | Path) -> int:
    return main(["train", "--final-episodes", "0", "--progress", "none", *map(str, words)])


def by_seed(folder: Path) -> dict[int, Path]:
    """The runs in a folder, by their seeds."""
    return {checkpoint.read_manifest(last)["settings"]["seed"]: last.parent for last in folder.glob("*/*/last")}


def contents(run: Path) -> dict[str, object]:
    """Tensors, counters, episodes and the last row of metrics of a run; no times."""
    found: dict[str, object] = {str(x.relative_to(run)): x.read_bytes() for x in run.rglob("*.safetensors")}
    manifest = checkpoint.read_manifest(run / "last")
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    episodes = (run / "monitor.csv").read_text().splitlines()[2:]
    return {
        **found,
        "counters": {name: manifest["counters"][name] for name in ("steps", "episodes")},
        "reason": manifest["ended_by"],
        "row": {name: x for name, x in row.items() if "second" not in name},
        "episodes": [line.rpartition(",")[0] for line in episodes],
    }


@pytest.mark.parametrize("algorithm", TASKS)
def test_agents_together_have_the_bits_of_single_runs(algorithm, tmp_path, capsys):
    words = [algorithm, *TASKS[algorithm], "--log-folder"]
    states = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    assert train(*words, tmp_path / "one") == 0
    assert train(*words, tmp_path / "all", "--together", "--jobs", "3") == 0
    now = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    assert now == states  # nothing is drawn from generators that a process has once
    single, together = by_seed(tmp_path / "one"), by_seed(tmp_path / "all")
    assert single.keys() == together.keys() == {3, 4, 5}
    for seed, run in single.items():
        assert contents(run) == contents(together[seed])
    if algorithm == "ppo":
        steps = {contents(run)["counters"]["steps"] for run in together.values()}
        assert len(steps) > 1 and max(steps) < 40_000
    assert capsys.readouterr().out.count("ended: ") == 3


@pytest.mark.parametrize(("flag", "said"), [(["--jobs", "2"], "--jobs 2"), (["--together"], "--together")])
def test_one_training_is_not_told_how_to_train_several(flag, said, tmp_path, capsys):
    assert train("ppo", "CartPole-v1", "--log-folder", tmp_path, *flag) == 2
    assert f"{said} is for several seeds: give --seeds 0-9, or leave it out" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_agent_that_diverges_ends_alone(tmp_path, capsys, monkeypatch):
    (tmp_path / "mined.py").write_text(MINED)
    monkeypatch.chdir(tmp_path)
    words = ["ppo", "mined.py:Mined", "--num-envs", "4", "--num-steps", "16", "--hidden", "8", "--total-steps", "1500"]
    assert train(*words, "--seeds", "0-3", "--together", "--jobs", "2") == 2
    said = capsys.readouterr()
    ends = {line.split()[0]: line.split() for line in said.out.splitlines() if line[:1].isdigit()}
    diverged = {seed for seed, cells in ends.items() if "NotFinite" in cells}
    assert len(ends) == 4 and diverged and len(diverged) < 4
    for seed, cells in ends.items():
        assert ("total_steps" in cells) == (seed not in diverged)
        assert (f"seed {seed}: " in said.err) == (seed in diverged)
    for seed, run in by_seed(tmp_path / "runs").items():
        assert str(seed) not in diverged and contents(run)["counters"]["steps"] >= 1500


def test_what_cannot_share_a_process_is_named(tmp_path, capsys):
    words = [*PPO, "--total-steps", "500", "--seeds", "0-3", "--together", "--log-folder", tmp_path]
    for flag, value in (
        ("--precision", "bfloat16"),
        ("--progress", "rich"),
        ("--shards", "2"),
        ("--backend", "inline"),
        ("--workers", "2"),
    ):
        assert train(*words, flag, value) == 2
        said = capsys.readouterr()
        assert said.err.count("together in one process") == 1 and value in said.err and not said.out
    assert not [*tmp_path.iterdir()]
    assert train(*PPO, "--together", "--log-folder", tmp_path) == 2
    assert "give --seeds 0-9" in capsys.readouterr().err


def test_a_signal_ends_all_and_each_saves(tmp_path, capsys):
    words = [*PPO, "--total-steps", "100_000_000", "--seeds", "0-3", "--together", "--jobs", "2", "--log-folder"]

    def interrupt() -> None:
        while len([*tmp_path.glob("*/*/monitor.csv")]) < 2:
            time.sleep(0.01)
        time.sleep(0.3)
        signal.raise_signal(signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    assert train(*words, tmp_path) == 0
    waiting.join()
    said = capsys.readouterr().out
    assert "not begun: seeds 2, 3" in said and by_seed(tmp_path).keys() == {0, 1}
    for run in by_seed(tmp_path).values():
        assert contents(run)["reason"] == "SIGINT" and contents(run)["counters"]["steps"] > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_agents_of_a_killed_process_resume_alone(tmp_path):
    words = [*PPO, "--total-steps", "300_000", "--save-freq", "15000", "--seeds", "0-1", "--log-folder"]
    command = [sys.executable, "-m", "headrace", "train", "--final-episodes", "0", "--together", *words, tmp_path / "a"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while sum(len([*run.glob("step_*/manifest.json")]) > 1 for run in (tmp_path / "a").glob("*/*")) < 2:
            assert process.poll() is None  # one agent may be ahead of the other
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    killed = by_seed(tmp_path / "a")
    assert all(checkpoint.read_manifest(run / "last")["counters"]["steps"] < 300_000 for run in killed.values())
    for run in killed.values():
        assert train("--resume", run) == 0
    assert train(*words, tmp_path / "b") == 0
    for seed, run in by_seed(tmp_path / "b").items():
        mine, its = contents(killed[seed]), contents(run)
        assert {x for x in mine if mine[x] != its.get(x)} == set()


def test_trials_of_a_sweep_train_together(tmp_path, capsys):
    pytest.importorskip("optuna")
    words = ["sweep", *PPO, "--total-steps", "2000", "--final-episodes", "2", "--search", "learning_rate=1e-4..1e-2"]
    words += ["--trials", "6", "--together", "--jobs", "3", "--folder", str(tmp_path / "s")]
    assert main(words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert len(rows) == 6 and {row[-2] for row in rows} <= {"complete", "pruned"}
    trial = next(row for row in rows if row[-2] == "complete")
    single = [*PPO, "--total-steps", "2000", "--learning-rate", checkpoint.read_manifest(Path(trial[-1], "last"))]
    single[-1] = repr(single[-1]["settings"]["learning_rate"])
    assert train(*single, "--log-folder", tmp_path / "one") == 0
    assert contents(Path(trial[-1])) == contents(by_seed(tmp_path / "one")[0])
    assert main([*words[:-1], str(tmp_path / "t"), "--shards", "2"]) == 2
    assert "shards=2" in capsys.readouterr().err
    study = [json.loads(line) for line in (tmp_path / "t" / "study.jsonl").read_text().splitlines()]
    assert not any("error" in row.get("user_attr", {}) for row in study)


def test_what_a_task_raises_ends_the_others_and_is_raised(monkeypatch):
    monkeypatch.delenv("HEADRACE_THREADS", raising=False)
    interval, began, ended = sys.getswitchinterval(), threading.Event(), []

    def work(task, ask):
        if task == "wrong":
            assert began.wait(10)
            raise KeyError(task)
        began.set()
        own = Interrupts()
        while not own.caught:
            time.sleep(0.001)
        ended.append((task, own.caught, os.environ["HEADRACE_THREADS"]))

    tasks = iter([("long", no_question), ("wrong", no_question), ("never", no_question)])
    with pytest.raises(KeyError, match="wrong"), Threads(work, 2, "task") as threads:
        threads.run(tasks, lambda *outcome: None)
    assert [task for task, *_ in ended] == ["long"] and ended[0][1] == "SIGTERM"
    assert "HEADRACE_THREADS" not in os.environ and sys.getswitchinterval() == interval
    assert Interrupts().caught == ""


def test_a_second_ctrl_c_is_raised_in_all_threads(monkeypatch):
    monkeypatch.setattr(signals, "ONE_WISH", 0.0)
    began, raised = threading.Barrier(3), []

    def work(task, ask):
        try:
            began.wait()
            while True:
                time.sleep(0.001)
        except KeyboardInterrupt:
            raised.append(task)
            raise

    def interrupt():
        began.wait()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(2 * LOOK)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), Threads(work, 2, "task") as threads:
        threads.run(iter([("one", no_question), ("other", no_question)]), lambda *outcome: None)
    assert sorted(raised) == ["one", "other"]


def test_a_trial_that_cannot_be_together_is_not_an_outcome():
    def refused(*_, **options):
        raise NotTogether("shards=2")

    with pytest.raises(ValueError, match="shards=2"):
        sweep_trials.attempt(refused, [], lambda point: False)
