"""A run whose environment is a file in its own folder: its code runs with --trust alone."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.core.trust import code_of
from headrace.envs.strangers import check_settings
from headrace.runs import checkpoint
from headrace.training.config import to_toml

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
    assert (theirs / "it_ran").is_file()
    shutil.rmtree(theirs)
    return run.rename(theirs)


def test_eval_asks_for_trust(strangers_run, capsys):
    assert main(["eval", str(strangers_run), "--episodes", "1"]) == 2
    assert "line.py, whose code is in the run's own folder" in capsys.readouterr().err
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
    assert "line.py, whose code is in the run's own folder" in capsys.readouterr().err
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
    assert "line.py, whose code is in the run's own folder" in capsys.readouterr().err
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
    with code_of(run):
        for env in ("CartPole-v1", "gymnasium.envs.classic_control.cartpole:CartPoleEnv"):
            check_settings(run, {"env": env, "env_kwargs": {"sutton_barto_reward": True}})
        check_settings(run, {"env": "subprocess:getoutput", "env_kwargs": {}})
    with code_of(run, trust=True), code_of(run):
        check_settings(run, {"env": "subprocess:getoutput", "env_kwargs": {"cmd": "ls"}})
    assert not (tmp_path / "it_ran").exists()


def names(run: Path, **settings: object) -> None:
    """Write settings into a run's config.toml and, as the training's, into its manifest."""
    config = run / "config.toml"
    kept = tomllib.loads(config.read_text())
    config.write_text(to_toml(**{**kept, **settings}))
    folder, manifest, training = checkpoint.read(run, "last", state="training")
    weights = checkpoint.load(folder, "policy")
    facts = {name: manifest[name] for name in ("policy", "positions", "counters") if name in manifest}
    states = {"policy": weights, "training": training}
    checkpoint.save(folder, states, settings={**manifest["settings"], **settings}, **facts)


def check_refused(words: list[str], capsys, folder: Path) -> None:
    """Check that a command ends with a line that says why, and runs nothing in the folder."""
    capsys.readouterr()
    code, text = main(words), capsys.readouterr().err
    assert (code, [*folder.rglob("it_ran")]) == (2, []) and re.search("--trust|wrappers", text), (words, code, text)


def commands(run: str) -> list[list[str]]:
    """All that builds what a run names."""
    config = [f"{run}/config.toml", *SMALL.split()]
    return [
        ["eval", run, "--episodes", "1"],
        ["play", run, "--output", "play.gif", "--max-steps", "3"],
        ["train", "--resume", run, "--total-steps", "128", "--final-episodes", "0"],
        ["train", "--config", *config],
        ["train", "--config", *config, "--seeds", "1,2"],
        ["tune", "--config", f"{run}/config.toml", "--seconds", "5"],
    ]


@pytest.fixture
def plain_run(tmp_path, monkeypatch) -> Path:
    """A run on a registered environment in Python. Code of another user is next to its policy."""
    monkeypatch.chdir(tmp_path)
    small = "--num-envs 2 --num-steps 8 --minibatch-size 16 --hidden 8 --total-steps 16 --workers none"
    words = f"train ppo MountainCar-v0 {small} --backend inline --no-registered --progress none --final-episodes 0"
    assert main([*words.split(), "--log-folder", "runs"]) == 0
    run = (tmp_path / "runs" / "ppo" / "MountainCar-v0_1").rename(tmp_path / "theirs")
    (run / "stranger.py").write_text(f"{ENV}\n\nclass Wrapped(gymnasium.Wrapper): pass\n")
    return run


@pytest.mark.parametrize(
    "settings",
    [
        {"wrapper": ["theirs/stranger.py:Wrapped"]},
        {"wrapper": ["theirs/last/../stranger.py:Wrapped"]},
        {"env_kwargs": {"wrappers": ["theirs/stranger.py:Wrapped"]}},
        {"env": "theirs.stranger:Line"},  # a package without __init__.py
        {"env": "stranger:Line-v0"},
        {"env": "stranger.-x:Line"},
        {"policy": "theirs/stranger.py:Line"},
        {"algorithm": "theirs/stranger.py:Line"},
        {"env_kwargs": {"model": ["theirs/weights.pkl"]}},
        {"env_kwargs": {"nested": {"theirs/weights.pkl": 1}}},
        {"env": "subprocess:getoutput", "env_kwargs": {"cmd": "touch theirs/it_ran"}},
        {"cluster": "ray.strangers.example:6379", "actors": 1},
    ],
    ids=str,
)
def test_no_verb_runs_what_lies_in_a_strangers_folder(settings, plain_run, capsys):
    sys.path += [str(plain_run.parent), str(plain_run)]  # as by python -m, or PYTHONPATH
    (plain_run / "weights.pkl").write_bytes(b"")
    names(plain_run, **settings)
    verbs = commands("theirs")
    if settings.keys() & {"cluster", "algorithm"}:  # which the others do not make
        verbs = [words for words in verbs if words[0] in ("train", "tune")]
    for words in verbs:
        check_refused(words, capsys, plain_run)
