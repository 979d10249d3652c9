"""bfloat16 rounds what goes into layers, and nothing else; training still reaches the return."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import TINY, Walk
from torch import nn
from torch.nn import functional

import headrace as hr
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.core.precision import computing, resolve
from headrace.data.spaces import Box, Discrete
from headrace.training.config import read_toml
from headrace.training.trainer import Trainer

CPU = torch.device("cpu")


def test_bfloat16_rounds_the_factors_of_layers():
    x, weight, bias = torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)
    plain = functional.linear(x, weight, bias)
    with computing("bfloat16", CPU):
        rounded, product = functional.linear(x, weight, bias), weight @ x.t()
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, functional.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).float())
    assert not torch.equal(rounded, plain)
    assert torch.equal(product, weight @ x.t())  # other products are as they were
    with computing("float32", CPU):
        assert torch.equal(functional.linear(x, weight, bias), plain)


def test_a_policy_in_bfloat16_is_near_itself_in_float32():
    policy = PPO.build(PPOConfig(), Box(-1, 1, (6,)), Discrete(3), 0, "cpu").policy
    seen = torch.randn(64, 6)
    with torch.no_grad(), fused.plain_only():
        plain = policy.act(seen, None, None)
        with computing("bfloat16", CPU):
            rounded = policy.act(seen, None, None)
    assert rounded.value.dtype == torch.float32
    difference = (rounded.value - plain.value).abs().max()
    assert 1e-5 < difference < 0.1


def test_gradients_pass_and_weights_stay_float32():
    trainer = Trainer("ppo", Walk(), precision="bfloat16", **TINY)
    before = trainer.algorithm.optimizer.flat.clone()
    trainer.iterate()
    assert trainer.algorithm.optimizer.flat.dtype == torch.float32
    assert not torch.equal(trainer.algorithm.optimizer.flat, before)
    plain = Trainer("ppo", Walk(), **TINY)
    plain.iterate()
    assert not torch.equal(trainer.algorithm.optimizer.flat, plain.algorithm.optimizer.flat)


def test_what_there_is_not_is_refused():
    with pytest.raises(ValueError, match="precision 'tf32' is for CUDA devices, and the device is cpu"):
        Trainer("ppo", Walk(), precision="tf32", **TINY)
    with pytest.raises(ValueError, match="one of float32, tf32, bfloat16, auto, got 'float16'"):
        Trainer("ppo", Walk(), precision="float16", **TINY)
    with pytest.raises(ValueError, match="got 'half'"), computing("half", CPU):
        pass


def test_auto_is_bfloat16_for_convolutions_where_they_are_multiplied_in_it(monkeypatch):
    for amx, avx512 in ((True, True), (True, False), (False, True), (False, False)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has=amx: has, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=avx512: has, raising=False)
        assert resolve("auto", nn.Conv2d(1, 1, 3), CPU) == ("bfloat16" if amx or avx512 else "float32")
        assert resolve("auto", nn.Sequential(nn.Linear(1, 1)), CPU) == "float32"
        assert resolve("float32", nn.Conv2d(1, 1, 3), CPU) == "float32"


def test_a_line_says_what_bfloat16_means_on_a_cpu(capsys):
    assert resolve("bfloat16", nn.Linear(2, 2), CPU) == "bfloat16"
    assert "acts and learns in plain PyTorch" in capsys.readouterr().err
    resolve("float32", nn.Linear(2, 2), CPU)
    assert not capsys.readouterr().err


def test_a_run_says_what_auto_came_to(tmp_path):
    options = TINY | {"progress": "none", "total_steps": 64}
    run = hr.train("ppo", Walk(), precision="auto", log_folder=str(tmp_path), **options)
    assert read_toml(run.path / "config.toml")["precision"] == "float32"


@pytest.mark.slow
def test_catch_from_pixels_is_learned_in_bfloat16(tmp_path):
    run = hr.train("ppo", "PixelCatch", precision="bfloat16", seed=1, log_folder=str(tmp_path), progress="none")
    assert run.evaluate(100).mean >= 0.9


@pytest.mark.slow
def test_cartpole_is_solved_in_bfloat16(tmp_path):
    run = hr.train("ppo", "CartPole-v1", precision="bfloat16", seed=1, log_folder=str(tmp_path), progress="none")
    assert run.reason == "target_return" and run.metrics["return"] >= 475
