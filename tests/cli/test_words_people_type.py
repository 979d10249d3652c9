"""Verbs, algorithms and flags of other libraries: an error with the command to type."""

from __future__ import annotations

import pytest

from headrace.algorithms import base as registry
from headrace.cli import main as command
from headrace.cli.main import VERBS, main


@pytest.mark.parametrize(("verb", "instead"), command.ELSEWHERE.items())
def test_verbs(verb, instead, capsys):
    assert verb not in VERBS and main([verb, "runs/x"]) == 2
    assert capsys.readouterr().err.endswith(f"  {instead}\n")
    assert instead.split()[0] == "tensorboard" or instead.split()[1] in VERBS


@pytest.mark.parametrize(("name", "instead"), registry.ELSEWHERE.items())
def test_algorithms(name, instead, capsys):
    assert name not in registry.ALGORITHMS and main(["train", name, "CartPole-v1"]) == 2
    algorithm, *flags = instead.split()
    assert f"headrace train {algorithm} ENV" in capsys.readouterr().err
    assert all(flag[2:] in registry.algorithm_classes(algorithm).config.__dataclass_fields__ for flag in flags[1:2])


@pytest.mark.parametrize(
    ("flag", "instead"), [("--lstm", "--recurrent lstm"), ("--use-gpu", "--device cuda"), ("--cuda", "--device cuda")]
)
def test_flags(flag, instead, capsys):
    assert main(["train", "ppo", "CartPole-v1", flag]) == 2
    assert instead in capsys.readouterr().err
