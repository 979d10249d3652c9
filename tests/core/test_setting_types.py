"""Values of settings: what fits a field's type, what is refused, and names of other libraries."""

from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.base import algorithm_classes
from headrace.algorithms.config_bases import OnPolicyConfig
from headrace.cli.main import main
from headrace.core.setting_types import INSTEAD, OTHER_NAMES, fit
from headrace.training.config import TrainConfig, merge_settings


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1e6, int, 1_000_000),
        (np.float32(3), int, 3),
        (np.int8(4), int | None, 4),
        ("none", int | None, None),
        (3, float, 3.0),
        (np.float32(0.5), float, 0.5),
        ([64, 32.0], tuple[int, ...], (64, 32)),
        (np.array([64, 32]), tuple[int, ...], (64, 32)),
        (torch.device("cuda:1"), str, "cuda:1"),
    ],
)
def test_what_loses_nothing_is_converted(value, hint, expected):
    fitted = fit("x", value, hint)
    assert fitted == expected and type(fitted) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "error", "message"),
    [
        (1.5, int, TypeError, "x must be int, got 1.5"),
        (float("inf"), int, TypeError, "x must be int, got inf"),
        (float("nan"), float, ValueError, "x must be a number, got nan"),
        (True, float, TypeError, "x must be float, got True"),
        ("4", int, TypeError, "x must be int, got '4'"),
        (64, tuple[int, ...], TypeError, r"x must be tuple\[int, ...\], got 64"),
        ((64, "a"), tuple[int, ...], TypeError, "each of x must be int, got 'a'"),
    ],
)
def test_what_is_of_another_type_is_refused(value, hint, error, message):
    with pytest.raises(error, match=message):
        fit("x", value, hint)


def test_a_config_that_is_made_directly_is_checked_as_well():
    config = hr.PPOConfig(num_steps=8.0, hidden=[64, 64])
    assert config == hr.PPOConfig(num_steps=8, hidden=(64, 64)) and isinstance(config.num_steps, int)
    for make, name in ((hr.PPOConfig, "epochs"), (hr.SACConfig, "batch_size"), (TrainConfig, "num_envs")):
        with pytest.raises(TypeError, match=f"{name} must be int, got 'many'"):
            make(**{name: "many"})


def test_a_config_of_ones_own_may_have_fields_of_any_type():
    @dataclass(frozen=True, kw_only=True)
    class Own(OnPolicyConfig):
        loss: Callable = abs
        anything: Any = None
        sizes: list = field(default_factory=lambda: [1])
        layers: tuple = (3, "a")
        unknown: "OnlyForTypeCheckers | None" = None  # noqa: F821

    assert Own(sizes=[2]).sizes == [2] and Own().layers == (3, "a")
    own = [("loss", Callable, abs), ("mode", Any, 1), ("a", tuple, (3, "a"))]
    Known = make_dataclass("Known", own, bases=(OnPolicyConfig,), frozen=True)
    assert Known(mode="x").mode == "x" and Known(a=["b", 1]).a == ("b", 1)
    assert fit("x", [1, "a"], tuple[int, str]) == (1, "a")
    with pytest.raises(TypeError, match="loss must be Callable, got 3"):
        Known(loss=3)


def test_names_of_other_libraries_lead_to_settings():
    known = {name for algorithm in ("ppo", "sac", "td3", "dqn") for name in _settings(algorithm)}
    assert {*OTHER_NAMES.values(), *(setting for _, setting, _ in INSTEAD.values() if setting)} <= known
    assert (set(OTHER_NAMES) | set(INSTEAD)) & _settings("ppo") == set()
    hints = {"total_timesteps": "'total_steps'", "n_steps": "'num_steps'", "callback": "own-loop"}
    hints |= {
        "lstm": "recurrent='lstm'",
        "render_mode": r"env_kwargs=\{'render_mode': 'human'\}",
        "nenvs": "'num_envs'",
    }
    for name, hint in hints.items():
        with pytest.raises(TypeError, match=f"no setting '{name}'; .*{hint}"):
            hr.Trainer("ppo", "CartPole-v1", **{name: 5})


@pytest.mark.parametrize(
    ("algorithm", "setting", "value", "owners"),
    [
        ("ppo", "prioritized", True, "dqn, c51"),
        ("qrdqn", "double", True, "dqn, c51"),
        ("sac", "critic_members", ("angle",), "ppo, a2c, appo, impala, reinforce, trpo"),
        ("dqn", "clip", 0.1, "ppo, appo"),
    ],
)
def test_a_setting_of_other_algorithms_is_refused_with_their_names(algorithm, setting, value, owners, capsys):
    with pytest.raises(TypeError) as refused:
        hr.Trainer(algorithm, "CartPole-v1", **{setting: value})
    start, _, named = str(refused.value).partition("; it is one of ")
    assert start == f"there is no setting {setting!r}" and set(named.split(", ")) == set(owners.split(", "))
    for name in named.split(", "):
        assert setting in _settings(name)
    for flag in (f"--{setting.replace('_', '-')}", f"--no-{setting.replace('_', '-')}"):
        assert main(["train", algorithm, "CartPole-v1", flag]) == 2
        said = capsys.readouterr().err
        assert f"--{setting.replace('_', '-')}; it is one of {named}" in said


def test_a_setting_that_nothing_has_is_refused_with_names_like_it():
    with pytest.raises(TypeError, match="no setting 'minibatch_sise'; did you mean 'minibatch_size'"):
        hr.Trainer("ppo", "CartPole-v1", minibatch_sise=5)


def _settings(algorithm):
    train, own = merge_settings(algorithm_classes(algorithm)[1], {}, {}, {})
    return set(vars(train)) | set(vars(own))


def test_what_is_no_policy_is_refused_with_what_to_give(tmp_path):
    trainer = hr.Trainer("ppo", "CartPole-v1", num_envs=2, num_steps=4)
    for call in (
        lambda: hr.evaluate(trainer, "CartPole-v1"),
        lambda: hr.save(trainer, tmp_path),
        lambda: hr.play(trainer, "CartPole-v1"),
        lambda: hr.PPO(trainer),
    ):
        with pytest.raises(TypeError, match=r"takes a policy, got <.*; give its \.policy"):
            call()
    with pytest.raises(TypeError, match=r"takes a policy, got 'runs/a'; headrace.load\(folder\) reads one"):
        hr.evaluate("runs/a", "CartPole-v1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "ppo", "CartPole-v1", "--lr", "1e-3"], "no setting --lr; Headrace's name is --learning-rate"),
        (["train", "ppo", "CartPole-v1", "--n-steps=5"], "no setting --n-steps; Headrace's name is --num-steps"),
        (["train", "ppo", "CartPole-v1", "--nenvs", "4"], "no setting --nenvs; Headrace's name is --num-envs"),
        (["train", "sac", "Pendulum-v1", "--gru"], "recurrent policies are made by --recurrent gru"),
        (["train", "sac", "Pendulum-v1", "--policy-kwargs", "{}"], "names of their own, such as --hidden 64 64"),
        (["train", "ppo", "CartPole-v1", "--render-mode", "human"], ": --env-kwargs render_mode=human"),
        (["train", "dqn", "CartPole-v1", "--callback", "x"], "no setting --callback; a loop of your own"),
    ],
)
def test_flags_of_other_libraries_lead_to_settings(words, message, capsys):
    assert main(words) == 2 and message in capsys.readouterr().err


def test_a_plot_in_another_format_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"a plot is a .png, .svg or .pdf file, got 'x.bmp'"):
        hr.plot(tmp_path, "x.bmp")
