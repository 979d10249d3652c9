"""A run whose environment is a file in its own folder: its code runs with --trust alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.main import main
from headrace.cli.run_policy import check_calls, check_trust

ENV = """
from pathlib import Path
import gymnasium
import numpy as np

Path(__file__).with_name("it_ran").touch()


class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}
"""
SMALL = "--num-envs 4 --num-steps 8 --minibatch-size 32 --hidden 8 --progress none --final-episodes 0 --total-steps 64"


@pytest.fixture
def strangers_run(tmp_path, monkeypatch) -> Path:
    """A run's folder, "theirs", with the file of its environment in it."""
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "line.py").write_text(ENV)
    assert main(f"train ppo theirs/line.py:Line {SMALL} --log-folder runs".split()) == 0
    run = tmp_path / "runs" / "ppo" / "Line_1"
    (theirs / "line.py").rename(run / "line.py")
    os.utime(run / "line.py", (0, 0))  # not the file that this process has loaded
    (theirs / "it_ran").unlink()
    theirs.rmdir()
    return run.rename(theirs)


def test_eval_asks_for_trust(strangers_run, capsys):
    assert main(["eval", str(strangers_run), "--episodes", "1"]) == 2
    assert "line.py:Line, whose code is in the run's own folder" in capsys.readouterr().err
    assert main(["eval", str(strangers_run / "last"), "--episodes", "1"]) == 2
    assert not (strangers_run / "it_ran").exists()
    assert main(["eval", str(strangers_run), "--episodes", "1", "--trust"]) == 0
    assert (strangers_run / "it_ran").exists()


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_a_runs_config_asks_for_trust(verb, strangers_run, capsys):
    config = strangers_run / "config.toml"
    text = config.read_text().splitlines()
    env = [f'env = "{strangers_run / "line.py"}:Line"' if line.startswith("env = ") else line for line in text]
    config.write_text("\n".join(env))
    assert main([verb, "--config", str(config)]) == 2
    assert "line.py:Line, whose code is in the run's own folder" in capsys.readouterr().err
    assert not (strangers_run / "it_ran").exists()


def test_a_config_beside_an_environment_of_ones_own_needs_no_trust(strangers_run):
    config = strangers_run.parent / "mine" / "config.toml"
    config.parent.mkdir()
    (strangers_run / "line.py").rename(config.parent / "line.py")
    config.write_text(f'algorithm = "ppo"\nenv = "{config.parent / "line.py"}:Line"\n')
    assert main(["train", "--config", str(config), *SMALL.split()]) == 0


def test_resuming_asks_for_trust(strangers_run, capsys):
    words = ["train", "--resume", str(strangers_run), "--total-steps", "128", "--final-episodes", "0"]
    assert main(words) == 2
    assert "line.py:Line, whose code is in the run's own folder" in capsys.readouterr().err
    assert not (strangers_run / "it_ran").exists()
    assert main([*words, "--trust"]) == 0
    assert (strangers_run / "it_ran").exists()


def test_a_file_elsewhere_is_the_user_s_own(strangers_run):
    (strangers_run / "line.py").rename("line.py")
    assert main(["eval", str(strangers_run), "--episodes", "1", "--env", "line.py:Line"]) == 0


def test_a_function_that_a_run_has_called_with_arguments_asks_for_trust(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs" / "last").mkdir(parents=True)
    (tmp_path / "theirs" / "last" / "manifest.json").write_text("{}")
    config = tmp_path / "theirs" / "config.toml"
    config.write_text('algorithm = "ppo"\nenv = "subprocess:getoutput"\nenv_kwargs = {cmd = "touch it_ran"}\n')
    for verb in ("train", "tune"):
        assert main([verb, "--config", str(config)]) == 2
        assert "it could be any function. Add --trust" in capsys.readouterr().err
    run = Path("theirs")
    for env in ("CartPole-v1", "gymnasium.envs.classic_control.cartpole:CartPoleEnv"):
        check_calls(run, False, env, {"env_kwargs": {"sutton_barto_reward": True}})
    check_calls(run, False, "subprocess:getoutput", {})
    check_calls(run, True, "subprocess:getoutput", {"env_kwargs": {"cmd": "ls"}})
    assert not (tmp_path / "it_ran").exists()


def test_a_module_of_the_current_folder_is_found_and_in_a_runs_folder_asks_for_trust(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines_here.py").write_text(ENV)
    with pytest.raises(ValueError, match="lines_here:Line, whose code is in the run's own folder"):
        check_trust(tmp_path, False, "lines_here:Line")
    assert not (tmp_path / "it_ran").exists()
    sys.path.remove(str(tmp_path))
    assert hr.make("lines_here:Line", 1).num_envs == 1
    with pytest.raises(ImportError, match="there is no module 'lines_there'"):
        hr.make("lines_there:Line", 1)
    del sys.modules["lines_here"]
