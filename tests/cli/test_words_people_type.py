"""Verbs, algorithms and flags of other libraries, and words in another order: an error with the command to type."""

from __future__ import annotations

import re
import shlex

import pytest

from headrace.algorithms import base as registry
from headrace.cli import main as command
from headrace.cli.main import VERBS, main
from headrace.training.config import TrainConfig


@pytest.mark.parametrize(("verb", "instead"), command.ELSEWHERE.items())
def test_verbs(verb, instead, capsys):
    assert verb not in VERBS and main([verb]) == 2
    assert capsys.readouterr().err.endswith(f"  {re.sub('[{}]', '', instead)}\n")
    assert instead.split()[0] == "tensorboard" or instead.split()[1] in VERBS


@pytest.mark.parametrize(("name", "instead"), registry.ELSEWHERE.items())
def test_algorithms(name, instead, capsys):
    assert name not in registry.ALGORITHMS and main(["train", name, "Pendulum-v1", "--seed", "3"]) == 2
    algorithm, settings = instead
    given = ((setting.replace("_", "-"), value) for setting, value in settings.items())
    flags = "".join(f" --{flag} {value}".removesuffix(f" {registry.ON}") for flag, value in given)
    said = capsys.readouterr().err
    assert said.endswith(f"\n  headrace train {algorithm} Pendulum-v1 --seed 3{flags}\n") and "=on" not in said
    own = registry.algorithm_classes(algorithm).config.__dataclass_fields__
    assert own.keys() | TrainConfig.__dataclass_fields__.keys() | {"config"} >= settings.keys()


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("resume runs/x", "headrace train --resume runs/x"),
        ("enjoy runs/x --episodes 3", "headrace eval runs/x --episodes 3"),
        ("learn a2c 'my env.py:Env' --seed 1", "headrace train a2c 'my env.py:Env' --seed 1"),
        ("convert runs/x", "headrace export runs/x --to onnx"),
        ("optimize dqn CartPole-v1", "headrace sweep dqn CartPole-v1 --search learning_rate=1e-4..1e-2"),
        ("PPO CartPole-v1", "headrace train ppo CartPole-v1"),
        ("td3", "headrace train td3 ENV"),
        ("train CartPole-v1", "headrace train ppo CartPole-v1"),
        ("train CartPole-v1 dqn --seed 2", "headrace train dqn CartPole-v1 --seed 2"),
        ("train Pong-v5x", None),
        ("train DQN CartPole-v1", "headrace train dqn CartPole-v1"),
        ("sweep A3C CartPole-v1 --search gamma=0.9,0.99", "headrace sweep impala CartPole-v1 --search gamma=0.9,0.99"),
        ("tune ddqn CartPole-v1", "headrace tune dqn CartPole-v1"),
        ("train sac-discrete CartPole-v1", "headrace train discrete_sac CartPole-v1"),
        (
            "train Rainbow CartPole-v1 --seed 1",
            "headrace train c51 CartPole-v1 --seed 1 --noisy 0.5 --n-steps 3 --double --dueling --prioritized",
        ),
    ],
)
def test_the_command_has_the_other_words(words, instead, capsys):
    assert main(shlex.split(words)) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"\n  {instead}\n") if instead else "\n  " not in said, said


@pytest.mark.parametrize(
    ("flag", "instead"), [("--lstm", "--recurrent lstm"), ("--use-gpu", "--device cuda"), ("--cuda", "--device cuda")]
)
def test_flags(flag, instead, capsys):
    assert main(["train", "ppo", "CartPole-v1", flag]) == 2
    assert instead in capsys.readouterr().err
