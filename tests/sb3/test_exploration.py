"""State-dependent exploration and the deviation of actions, by the arguments of Stable-Baselines3."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path

import pytest
import torch

from headrace.sb3 import A2C, PPO, SAC
from headrace.sb3.assignment import check_unread

FILES = Path(__file__).parent / "files"


def test_arguments_are_settings():
    config = SAC("MlpPolicy", "Pendulum-v1", use_sde=True, sde_sample_freq=4, use_sde_at_warmup=True).algorithm.config
    assert (config.use_sde, config.sde_sample_freq, config.use_sde_at_warmup) == (True, 4, True)
    assert config.initial_std == pytest.approx(math.exp(-3)) and not config.use_expln
    kwargs = {"log_std_init": -2, "ortho_init": False, "use_expln": True, "squash_output": True}
    for kind in (PPO, A2C):
        config = kind("MlpPolicy", "Pendulum-v1", use_sde=True, policy_kwargs=kwargs).algorithm.config
        assert (config.use_sde, config.sde_sample_freq, config.ortho_init) == (True, -1, False)
        assert config.initial_std == pytest.approx(math.exp(-2))
        assert config.use_expln and config.distribution == "squashed"
    with pytest.raises(AssertionError, match="squash_output=True is for use_sde=True"):
        PPO("MlpPolicy", "Pendulum-v1", policy_kwargs={"squash_output": True})


def test_a_deviation_that_nothing_reads_is_said(capsys):
    SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"log_std_init": -2})
    assert "log_std_init=-2 is without effect" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "kind"), [("ppo", PPO), ("sac", SAC)])
def test_files_with_a_noise_matrix_are_read(name, kind):
    with zipfile.ZipFile(FILES / f"{name}.zip") as archive:
        data = json.loads(archive.read("data")) | {"use_sde": True, "sde_sample_freq": 4}
        weights = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    if name == "ppo":
        matrix = torch.randn(weights["action_net.weight"].shape[1], 1)
        weights["log_std"] = matrix
    else:
        matrix = torch.randn(weights["actor.mu.weight"].shape[1], 1)
        for part in ("weight", "bias"):
            weights[f"actor.mu.0.{part}"] = weights.pop(f"actor.mu.{part}")
            del weights[f"actor.log_std.{part}"]
        weights["actor.log_std"] = matrix
    tensors, file = io.BytesIO(), io.BytesIO()
    torch.save(weights, tensors)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", tensors.getvalue())
    model = kind.load(file, env="Pendulum-v1")
    check_unread(model.policy)
    found = model.policy.head if name == "ppo" else model.policy.noise_matrix
    assert torch.equal(found.log_std, matrix) and found.sample_freq == 4
