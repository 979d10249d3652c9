"""Schedules in files: a model that is loaded goes on with the values that they have, and no code is stored."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch

from headrace.sb3 import PPO
from headrace.sb3.schedules import Interpolated, interpolated, of_text

SMALL = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 0, "device": "cpu"}
FUNCTIONS = {
    "linear": (lambda left: 3e-4 * left, 2),
    "constant": (lambda left: 0.25, 2),
    "two parts": (lambda left: max(left, 0.5) * 1e-3, 4),
    "step": (lambda left: 1e-3 if left > 0.3 else 1e-5, 4),
    "cosine": (lambda left: 1e-3 * (1 - math.cos(math.pi * left)), 1001),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_kept_by_their_values(name):
    function, most = FUNCTIONS[name]
    kept = interpolated(function)
    assert len(kept.at) == len(kept.values) <= most and kept.at[0] == 0 and kept.at[-1] == 1
    far = [x for x in np.linspace(0, 1, 777) if name != "step" or abs(x - 0.3) > 1e-3]
    largest = max(abs(function(x)) for x in far)
    assert all(abs(kept(x) - function(x)) <= 1e-5 * largest for x in far)
    assert type(kept(1.0)) is float and kept(1.0) == pytest.approx(function(1.0))


@pytest.mark.parametrize("function", [lambda left: math.log(left), lambda left: 1 / left, lambda left: math.nan])
def test_functions_without_a_value_somewhere_are_kept_by_the_first_one(function, capsys):
    assert interpolated(function) is None
    model = PPO("MlpPolicy", "CartPole-v1", clip_range=lambda left: 0.2 / left, **SMALL)
    file = io.BytesIO()
    model.save(file)
    assert "clip_range is a function: the file keeps 0.2, its first value" in capsys.readouterr().err
    file.seek(0)
    assert PPO.load(file).clip_range == 0.2


def test_a_model_goes_on_with_its_schedules(capsys):
    def made():
        return PPO("MlpPolicy", "CartPole-v1", learning_rate=lambda x: 0.01 * x, clip_range=lambda x: 0.3 * x, **SMALL)

    file, again, model = io.BytesIO(), io.BytesIO(), made()
    model.save(file)
    file.seek(0)
    loaded = PPO.load(file, env="CartPole-v1")
    for one in (model, loaded):
        one.learn(256)
    tensors = [torch.cat([x.detach().flatten() for x in one.policy.parameters()]) for one in (model, loaded)]
    torch.testing.assert_close(*tensors)
    assert loaded.lr_schedule(0.5) == pytest.approx(0.005) and loaded.clip_range(0.5) == pytest.approx(0.15)
    assert float(loaded.algorithm.optimizer.learning_rate) == pytest.approx(
        float(model.algorithm.optimizer.learning_rate)
    )
    loaded.save(again)
    assert capsys.readouterr().err == ""
    again.seek(0)
    twice = PPO.load(again)
    assert twice.clip_range.values == loaded.clip_range.values
    assert twice.learning_rate.__name__ == loaded.learning_rate.__name__ == model.learning_rate.__name__ == "<lambda>"


def test_schedules_of_stable_baselines3_are_read_by_their_texts():
    found = of_text("LinearSchedule(start=0.2, end=0.1, end_fraction=0.5)")
    assert [found(x) for x in (1.0, 0.75, 0.5, 0.0)] == pytest.approx([0.2, 0.15, 0.1, 0.1])
    assert of_text("LinearSchedule(start=1e-3, end=1e-05, end_fraction=1.0)")(0.5) == pytest.approx(5.05e-4)
    assert of_text("FloatSchedule(ConstantSchedule(val=0.2))") == 0.2
    assert of_text("<function <lambda> at 0x7f>") is None
    assert repr(Interpolated([0, 1], [0, 0.5])) == "Interpolated(0.5, 0)"
