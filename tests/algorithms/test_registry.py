"""Algorithms are found by name, and users' own by file and class or by package and class."""

from __future__ import annotations

import os
import sys

import pytest
from helpers import forked

import headrace as hr
from headrace.algorithms.base import ALGORITHMS, PURPOSES, algorithm_classes
from headrace.core.user_names import absolute_reference

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar
from headrace.algorithms.on_policy import OnPolicy

@dataclass(frozen=True)
class VPGConfig:
    num_steps: int = 8  # steps of each env in a rollout
    learning_rate: float = 1e-2  # of Adam, at the start
    hidden: tuple[int, ...] = (8,)  # sizes of the hidden layers

class VPG(OnPolicy):
    name: ClassVar[str] = "vpg"

    def update(self, rollout, progress):
        rows = self.policy.rows
        log_prob, _, _ = self.policy.log_prob_entropy_value(self.policy.inputs(rollout), rows(rollout.action))
        loss = -(log_prob * rows(rollout.reward)).mean()
        loss.backward()
        self.optimizer.step(1.0)
        self.iteration += 1
        return {"loss": loss.detach()}
"""
SMALL = {"num_envs": 4, "total_steps": 64, "progress": "none"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_algorithm.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_has_a_class_and_a_config(name):
    kind, config = algorithm_classes(name)
    assert kind.name == name
    assert config().num_steps > 0


def test_the_help_says_what_each_is_for():
    assert PURPOSES.keys() == ALGORITHMS.keys()


def test_an_algorithm_in_a_file_trains_and_resumes(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = hr.train("my_algorithm.py:VPG", "CartPole-v1", **SMALL)
    assert run.path.parent.name == "vpg"
    monkeypatch.chdir("/")  # the checkpoint names the file by its absolute path
    again = hr.train(resume=tmp_path / run.path, total_steps=128)
    assert again.steps >= 128


def test_an_algorithm_in_a_package(file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    kind, config = algorithm_classes("my_algorithm:VPG")
    assert (kind.__name__, config.__name__) == ("VPG", "VPGConfig")


def test_the_command_line_takes_an_algorithm_of_ones_own(file, tmp_path):
    flags = ["--num-envs", "4", "--num-steps", "16", "--total-steps", "64", "--final-episodes", "0"]
    command = [sys.executable, "-m", "headrace", "train", "my_algorithm.py:VPG", "CartPole-v1", *flags]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = forked.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "vpg").is_dir()


def test_what_is_not_there_is_said(file, tmp_path):
    with pytest.raises(ValueError, match="did you mean 'ppo'"):
        algorithm_classes("ppoo")
    with pytest.raises(ValueError, match="has no class Missing"):
        algorithm_classes(f"{file}:Missing")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py"):
        algorithm_classes("nowhere.py:VPG")
    with pytest.raises(ImportError, match="no module 'no_such_package'"):
        algorithm_classes("no_such_package:VPG")
    (tmp_path / "half.py").write_text("class Half: ...")
    with pytest.raises(ValueError, match="has no class HalfConfig"):
        algorithm_classes(f"{tmp_path / 'half.py'}:Half")


def test_a_reference_holds_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_reference("mine.py:VPG") == f"{tmp_path.resolve() / 'mine.py'}:VPG"
    assert absolute_reference("package.mine:VPG") == "package.mine:VPG"
    assert absolute_reference("ppo") == "ppo"
