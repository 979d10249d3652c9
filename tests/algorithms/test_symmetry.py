"""PPO with mirrored rows, an example of docs/own-algorithm.md: the loss and the steps of a minibatch that has both."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.documents import ROOT, blocks

import headrace as hr
from headrace.algorithms.ppo import PPOConfig, ppo_loss
from headrace.core import fused

ROWS = 12


@pytest.fixture(scope="module")
def example() -> dict:
    """What the example defines."""
    (text,) = (block for block in blocks(ROOT / "docs" / "own-algorithm.md") if "class Symmetric" in block)
    found: dict = {"text": text}
    exec(text, found)
    return found


def batch_of(policy: hr.ActorCritic) -> dict:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 3, generator=generator)
    random = torch.rand(ROWS, policy.num_draws, generator=generator)
    with torch.no_grad():
        action, log_prob, value, _ = policy.act(inputs, None, random)
    numbers = torch.randn(2, ROWS, generator=generator)
    weight = (torch.rand(ROWS, generator=generator) < 0.8).float()
    return {
        **{"inputs": inputs, "action": action, "log_prob": log_prob - 0.1 * numbers[0].abs(), "value": value},
        **{"advantage": numbers[0], "returns": numbers[1], "weight": weight / weight.sum()},
    }


def test_the_loss_is_that_of_a_batch_with_mirrored_rows(example):
    space = hr.Box(-2, 2, (1,))
    policy = hr.ActorCritic(hr.Box(-8, 8, (3,)), space, hidden=(8,), seed=0)
    other, config = copy.deepcopy(policy), PPOConfig(value_clip=0.2, entropy_coef=0.01)
    batch = batch_of(policy)
    loss, _ = example["symmetric"](policy, batch, config)
    doubled = {name: torch.cat([column, column]) for name, column in batch.items()}
    sign = torch.tensor([1.0, -1.0, -1.0])  # of cos, sin and speed
    doubled["inputs"] = torch.cat([batch["inputs"], batch["inputs"] * sign])
    doubled["action"] = torch.cat([batch["action"], -batch["action"]])
    doubled["weight"] = doubled["weight"] / 2
    expected, _ = ppo_loss(other, doubled, config)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for mine, theirs in zip(policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert abs(loss - ppo_loss(policy, batch, config)[0]) > 1e-4


def test_it_is_compiled_and_learns_what_plain_pytorch_learns(example, tmp_path, capfd):
    file, found = tmp_path / "mirrors.py", []
    file.write_text(example["text"])
    options = {"num_envs": 8, "num_steps": 16, "hidden": (8,), "device": "cpu", "epochs": 2, "minibatch_size": 64}
    for plain in (False, True):
        trainer = hr.Trainer(f"{file}:Symmetric", "Pendulum-v1", registered=False, **options)
        with fused.plain_only(plain):
            metrics = trainer.iterate().metrics
        found.append(trainer.policy.state_dict())
        assert metrics["approx_kl"] > 0
        trainer.close()
    for mine, other in zip(*(state.values() for state in found), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
    assert "plain PyTorch" not in capfd.readouterr().err
