"""`headrace tune` on real trainings: the table, the file, what is kept, and its end by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.cli import main as command
from headrace.training.trainer import Trainer
from headrace.tuning import store, tuner

ROOT = Path(__file__).parents[2]
FLAGS = ["--num-envs", "4", "--num-steps", "8", "--hidden", "8", "--epochs", "1", "--minibatch-size", "32"]


@pytest.fixture(autouse=True)
def _own_store(in_tmp, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "folder", lambda: tmp_path)


def test_one_command_tunes_and_the_next_trains_by_it(monkeypatch, capsys):
    monkeypatch.setattr(tuner, "LEAST", 1.0)
    env = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    assert command.main(["tune", "ppo", env, "--seconds", "1.5", "--by", "steps", "--output", "my.toml", *FLAGS]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("settings") and "one process, 4 environments" in out and "chosen" in out
    assert "kept in" in out and out.endswith("headrace train --config my.toml\n")
    assert "one process, 4 environments: " in err and "steps/s" in err
    text = Path("my.toml").read_text()
    assert text.startswith("# headrace tune, ") and 'algorithm = "ppo"' in text and "num_envs = 4" in text
    trainer = Trainer(config="my.toml", progress="none")
    assert trainer.plan.algorithm_config.hidden == (8,) and trainer.config.num_envs == 4
    entry = store.load(trainer.plan)
    assert entry.fastest().steps_per_second > 0
    assert {name: trainer.settings()[name] for name in ("actors", "collection")} == {
        name: entry.choice[name] for name in ("actors", "collection")
    }
    trainer.close()


def test_a_missing_folder_is_named_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr("headrace.cli.tune.tune", lambda *_, **__: pytest.fail("measured first"))
    assert command.main(["tune", "ppo", "CartPole-v1", "--output", "nowhere/my.toml"]) == 2
    assert "there is no folder nowhere to write to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 1.0}, "seconds must be at least 5, got 1.0"),
        ({"by": "luck"}, "by must be 'return' or 'steps', got 'luck'"),
        ({"learners": 2}, "leave out learners=2"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        hr.tune("ppo", "CartPole-v1", **arguments)


def test_an_environment_that_fails_in_every_candidate_raises_its_error(monkeypatch):
    monkeypatch.setattr(tuner, "LEAST", 1.0)
    with pytest.raises(ValueError, match="there is no environment 'CartPile-v1'; did you mean"):
        hr.tune("ppo", "CartPile-v1", seconds=1.0)


@pytest.mark.slow
def test_ctrl_c_prints_the_best_so_far(tmp_path):
    words = [sys.executable, "-m", "headrace", "tune", "ppo", "LunarLander-v3", "--seconds", "10000", *FLAGS]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HEADRACE_CACHE": str(tmp_path / "cache")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with subprocess.Popen(words, env=environment, start_new_session=True, **options) as process:
        while "steps/s" not in (line := process.stderr.readline()):
            assert line, "it ended before it measured anything"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 0
    assert "ended early" in out and "chosen" in out and (tmp_path / "ppo-LunarLander-v3.toml").is_file()


@pytest.mark.slow
def test_the_return_decides_on_cartpole(tmp_path):
    found = hr.tune("ppo", "CartPole-v1", seconds=20.0)
    raced = [row for row in found.rows if row.seconds_to_return or row.behind]
    assert len(raced) > 1 and found.chosen.seconds_to_return and "it reached a return of 475" in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["workers", "actors"])
def test_what_nobody_has_measured_is_tried_on_the_training_itself(setting, capfd):
    """Environments that sleep for 2 ms: processes are several times as fast on any machine."""
    options = {"num_envs": 16, "num_steps": 8, "hidden": (8,), "total_steps": None, "max_seconds": 300.0}
    trainer = Trainer("a2c", f"{__file__}:Sleeper", progress="none", **options, **{setting: "auto"})
    chosen = getattr(trainer.config, setting) or trainer.config.workers
    trainer.close()
    said = capfd.readouterr().err
    assert chosen >= 8 and f"{setting}=auto: " in said and "one process" in said and "workers" in said
    assert ("actors " in said.partition(":")[2]) == (setting == "actors")


class Sleeper(gymnasium.Env):
    """Each step sleeps; an episode has 50."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observation_space.low, {}

    def step(self, action):
        time.sleep(0.002)
        self.age += 1
        return self.observation_space.low, 1.0, self.age == 50, False, {}
