"""Several runs: --seeds, `headrace runs`, and learning curves by setting."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import forked

from headrace.cli.main import main
from headrace.cli.several.seeds import _answer, parsed
from headrace.core.stopping import Stopped
from headrace.evaluation.curves import grouped
from headrace.evaluation.history import read
from headrace.runs.listing import runs, summary

SMALL = ["--num-envs", "8", "--num-steps", "32", "--hidden", "8"]
SMALL += ["--total-steps", "1000", "--target-return", "none", "--final-episodes", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs of two seeds, and one with another learning rate."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["train", "ppo", "CartPole-v1", "--log-folder", str(folder), "--progress", "none", *SMALL]
    assert main([*words, "--seeds", "3-4"]) == 0
    assert main([*words, "--seed", "3", "--learning-rate", "0.01"]) == 0
    return folder


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-2", [0, 1, 2]), ("7", [7]), ("1,5,7", [1, 5, 7]), ("0-1, 9", [0, 1, 9])]
)
def test_seeds_are_numbers_and_ranges(text, seeds):
    assert parsed(text) == seeds


@pytest.mark.parametrize(("text", "wrong"), [("a", "got 'a'"), ("4-2", "'4-2'"), ("1,1", "twice"), ("", "got ''")])
def test_other_seeds_are_refused(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        parsed(text)


@pytest.mark.parametrize(("more", "wrong"), [("--seed 1", "leave out --seed"), ("--jobs 0", "got '0'")])
def test_what_does_not_go_with_seeds_is_refused(more, wrong, capsys):
    assert main(["train", "ppo", "CartPole-v1", "--seeds", "1-2", *more.split()]) == 2
    assert wrong in capsys.readouterr().err


def test_runs_lists_settings_that_differ(folder, capsys):
    assert main(["runs", str(folder)]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[-2:] == ["state", "learning_rate"]
    assert [row.split()[3] for row in rows] == ["3", "4", "3"]
    assert all("total_steps" in row and int(row.split()[4].replace(",", "")) >= 1000 for row in rows)
    assert rows[2].split()[-1] == "0.01" != rows[0].split()[-1]


def test_runs_as_json_and_sorted(folder, capsys):
    assert main(["runs", str(folder), "--json", "--sort", "return"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    returns = [row["mean_return"] for row in rows]
    assert returns == sorted(returns, reverse=True) and rows[0]["settings"]["algorithm"] == "ppo"
    assert main(["runs", str(folder), "--sort", "seed"]) == 2
    assert main(["runs", str(folder / "nowhere")]) == 2


def test_a_run_that_goes_on_or_was_killed_is_told_so(folder):
    from headrace.runs.run import lock

    path = folder / "ppo" / "CartPole-v1_1"
    held = lock(path)
    assert summary(path).state == "running"
    held.close()
    assert summary(path).state == "total_steps"
    (path / "last" / "manifest.json").rename(path / "manifest.json")
    assert summary(path).state == "interrupted"
    (path / "manifest.json").rename(path / "last" / "manifest.json")
    assert len(list(runs(folder))) == 3


def test_curves_are_grouped_by_what_differs_or_by_what_is_asked_for(folder):
    histories = [read(path) for path in sorted((folder / "ppo").iterdir())]
    rate = histories[0].settings["learning_rate"]
    found = grouped(histories)
    assert {name: len(members) for name, members in found.items()} == {
        f"PPO, learning_rate {rate}": 2,
        "PPO, learning_rate 0.01": 1,
    }
    assert list(grouped(histories, ())) == ["PPO"]
    assert list(grouped(histories, ("seed",))) == ["PPO, seed 3", "PPO, seed 4"]


def test_a_setting_that_no_run_has_is_refused(folder, capsys, tmp_path):
    words = ["plot", str(folder / "ppo" / "CartPole-v1_1"), "--output", str(tmp_path / "a.png"), "--by", "learning_rat"]
    assert main(words) == 2
    assert "did you mean 'learning_rate'?" in capsys.readouterr().err


def test_a_signal_in_an_evaluation_ends_it_and_no_further_seed_begins(tmp_path, capsys, monkeypatch):
    from headrace.cli import train

    def evaluate(*arguments, watch, **options):
        assert not watch(0, 0)
        signal.raise_signal(signal.SIGINT)
        assert watch(0, 8)
        raise Stopped

    monkeypatch.setattr(train, "evaluate", evaluate)
    words = ["train", "ppo", "CartPole-v1", "--log-folder", str(tmp_path), "--progress", "none", *SMALL]
    assert main([*words, "--seeds", "3-4"]) == 0
    said = capsys.readouterr().out
    assert "was given up: SIGINT came first" in said and "not begun: seeds 4" in said
    assert main([*words, "--seed", "4"]) == 0
    assert "CartPole-v1_2 was given up: SIGINT came first; the run is whole" in capsys.readouterr().out


def test_a_process_that_a_signal_ends_before_its_training_is_no_error():
    for caught in ("SIGTERM", ""):
        here, there = multiprocessing.Pipe(duplex=False)
        there.close()
        process = SimpleNamespace(name="seed 1", join=lambda: None)
        arguments = (here, process, (), SimpleNamespace(caught=caught))
        if caught:
            assert _answer(*arguments) is None
        else:
            with pytest.raises(RuntimeError, match="the process of seed 1 was killed"):
                _answer(*arguments)


@pytest.mark.slow  # processes that import torch
def test_seeds_side_by_side_have_the_same_bits_and_end_together(tmp_path, folder):
    words = [sys.executable, "-m", "headrace", "train", "ppo", "CartPole-v1", "--jobs", "2", *SMALL]
    done = forked.run([*words, "--seeds", "3-4", "--log-folder", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {run.settings["seed"]: run.mean_return for run in runs(tmp_path)}
    known = {run.settings["seed"]: run.mean_return for run in runs(folder) if run.settings["learning_rate"] != 0.01}
    assert found == known

    words = [*words, "--seeds", "0-9", "--log-folder", str(tmp_path / "long"), "--total-steps", "1000000000"]
    process = forked.Popen(words, start_new_session=True, stdout=subprocess.PIPE, text=True)
    while len(list((tmp_path / "long").glob("*/*/metrics.jsonl"))) < 2 and process.poll() is None:
        time.sleep(0.1)
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate()
    ended = [run.state for run in runs(tmp_path / "long")]
    assert ended == ["SIGINT", "SIGINT"] and "not begun: seeds 2, 3, 4, 5, 6, 7, 8, 9" in out
