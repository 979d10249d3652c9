"""`--try`: runs that differ in environment variables, compared by their progress."""

from __future__ import annotations

import math
import sys
from itertools import cycle
from pathlib import Path
from random import Random

import pytest
from helpers.profiles import profile

from headrace.diagnose.record import trials

TORCH = """
import os, sys, time, types

hooks, optimizer = [], types.ModuleType("torch.optim.optimizer")
optimizer.register_optimizer_step_post_hook = hooks.append
sys.modules["torch.optim.optimizer"] = optimizer
pause = 0.002 if os.environ.get("OMP_NUM_THREADS") == "1" else 0.02
open("log.txt", "a").close()
while True:
    time.sleep(pause)
    for hook in hooks:
        hook(None, (), {})
"""


def test_steps_are_counted_over_whole_updates() -> None:
    even = [(0.02 * index, index) for index in range(100)]
    assert trials.rate(even) == pytest.approx(50.0)
    updates = []  # ten steps within 0.2 s, every second, from 0.5 s before the first to 0.3 s after the last
    for update in range(6):
        updates += [(update + 0.02 * step, 10 * update + step) for step in range(10)]
    assert trials.rate(updates[7:-3]) == pytest.approx(10.0)
    assert trials.rate(updates[:2]) is None


def test_what_a_script_sets_itself_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    found, notes = trials.changes(profile(), "import torch")
    assert (found, notes) == (["OMP_NUM_THREADS=1", "OMP_NUM_THREADS=4", "OMP_WAIT_POLICY=passive"], [])
    found, notes = trials.changes(profile(counters={"cuda": 1}), "torch.set_num_threads(2)")
    assert found == ["OMP_WAIT_POLICY=passive", "CUDA_VISIBLE_DEVICES="] and "set_num_threads" in notes[0]
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert trials.changes(profile(), "set_num_threads")[0] == []


def test_paths_of_the_command_hold_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, copy = tmp_path / "a b", tmp_path / "copy"
    for path in ("train.py", "run.sh", ".venv/bin/python", "runs/1/model.zip"):
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).touch()
    monkeypatch.chdir(here)
    trials.copy_folder(here, copy)
    expected = {
        ".venv/bin/python": str(here / ".venv/bin/python"),
        "runs/1/model.zip": str(here / "runs/1/model.zip"),
        str(here / "train.py"): "train.py",
        **{word: word for word in ("train.py", "./run.sh", "--log-folder", "runs", "python")},
    }
    assert {word: trials._within(copy, word) for word in expected} == expected


@pytest.mark.slow
def test_runs_are_compared_in_a_copy_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(TORCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = trials.run([sys.executable, "train.py"], ["OMP_NUM_THREADS=1"], seconds=0.6, turns=1, most=1)
    assert found.best is not None and found.best.change == "OMP_NUM_THREADS=1" and found.best.gain > 1.5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_a_folder_too_large_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(2000))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "large.bin").write_bytes(bytes(2000))
    monkeypatch.setattr(trials, "LARGEST", 2500)
    trials.copy_folder(tmp_path, tmp_path.parent / "one")
    assert sorted(path.name for path in (tmp_path.parent / "one").iterdir()) == ["data.bin"]
    monkeypatch.setattr(trials, "LARGEST", 1500)
    with pytest.raises(ValueError, match="call it in a smaller folder"):
        trials.copy_folder(tmp_path, tmp_path.parent / "two")


def test_an_interval_holds_what_is_measured_later_nine_times_in_ten() -> None:
    random, held, tried = Random(1), 0, 4000
    for _ in range(tried):
        turns = [(random.lognormvariate(0, 0.1), 2 * random.lognormvariate(0, 0.1)) for _ in range(7)]
        base, rates = zip(*turns, strict=True)
        first, later = trials.compare("", base[:4], rates[:4]), trials.compare("", base[4:], rates[4:])
        held += first.low * math.exp(trials.UNCERTAIN) <= later.gain <= first.high * math.exp(-trials.UNCERTAIN)
    assert 0.88 < held / tried < 0.92


def test_wide_intervals_get_more_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    wide, asked = cycle([1.0, 1.6]), []

    def measured(command: list[str], change: str, *_: object) -> list[float]:
        asked.append(change)
        return [] if change == "fails" else [next(wide) if change == "wide" else 1.0]

    monkeypatch.setattr(trials, "_measured", measured)
    found = trials.run(["python", "train.py"], ["steady", "wide", "fails"])
    turns = {trial.change: len(trial.rates) for trial in found.found}
    assert turns == {"steady": trials.TURNS, "wide": trials.MOST_TURNS} and found.runs == len(asked)
    assert asked.count("") == trials.MOST_TURNS and asked.count("fails") == 1 and len(found.notes) == 1
