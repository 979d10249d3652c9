"""symmetric() and its example in docs/own-algorithm.md: the loss and the steps of a minibatch with mirrored rows."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from helpers.documents import ROOT, blocks

import headrace as hr
from headrace.algorithms import a2c
from headrace.algorithms.ppo import PPO, PPOConfig, ppo_loss
from headrace.core import fused
from headrace.symmetry import symmetric

ROWS = 12
SIGNS = torch.tensor([1.0, -1.0, -1.0])  # of Pendulum's cosine, sine and speed
CONFIG = PPOConfig(value_clip=0.2, entropy_coef=0.01)


def mirror(observation, action):
    return observation * SIGNS, -action


def turn(observation, action):
    return observation[:, [2, 0, 1]], action * 0.5


def made() -> tuple[hr.ActorCritic, dict]:
    policy = hr.ActorCritic(hr.Box(-8, 8, (3,)), hr.Box(-2, 2, (1,)), hidden=(8,), seed=0)
    return policy, batch_of(policy, torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1)))


def batch_of(policy, inputs) -> dict:
    generator = torch.Generator().manual_seed(2)
    random = torch.rand(ROWS, policy.num_draws, generator=generator)
    with torch.no_grad():
        action, log_prob, value, _ = policy.act(inputs, None, random)
    numbers = torch.randn(2, ROWS, generator=generator)
    weight = (torch.rand(ROWS, generator=generator) < 0.8).float()
    return {
        **{"inputs": inputs, "action": action, "log_prob": log_prob - 0.1 * numbers[0].abs(), "value": value},
        **{"advantage": numbers[0], "returns": numbers[1], "weight": weight / weight.sum()},
    }


def assert_same_gradients(policy, other) -> None:
    for mine, theirs in zip(policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mirrors", [(mirror,), (mirror, turn)])
def test_the_loss_is_that_of_a_batch_with_mirrored_rows(mirrors):
    policy, batch = made()
    other, copies = copy.deepcopy(policy), 1 + len(mirrors)
    loss, _ = symmetric(*mirrors)(policy, batch, CONFIG)
    whole = {name: torch.cat([column] * copies) for name, column in batch.items()}
    pairs = [one(batch["inputs"], batch["action"]) for one in mirrors]
    whole["inputs"] = torch.cat([batch["inputs"], *(seen for seen, _ in pairs)])
    whole["action"] = torch.cat([batch["action"], *(action for _, action in pairs)])
    whole["weight"] = whole["weight"] / copies
    expected, _ = ppo_loss(other, whole, CONFIG)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert_same_gradients(policy, other)
    assert abs(loss - ppo_loss(policy, batch, CONFIG)[0]) > 1e-4


def test_the_mirror_loss_is_a_mean_square_of_likeliest_actions():
    policy, batch = made()
    other = copy.deepcopy(policy)
    loss, metrics = symmetric(mirror, augment=False, mirror_coef=0.5)(policy, batch, CONFIG)
    with torch.no_grad():
        target = -other.distribution(batch["inputs"]).mode()  # no gradient, as in rsl_rl
    apart = other.distribution(batch["inputs"] * SIGNS).mode() - target
    expected = (apart.square().sum(1) * batch["weight"]).sum()
    torch.testing.assert_close(metrics["symmetry_loss"], expected.detach())
    whole = ppo_loss(other, batch, CONFIG)[0] + 0.5 * expected
    torch.testing.assert_close(loss, whole)
    loss.backward()
    whole.backward()
    assert_same_gradients(policy, other)


def test_the_mirror_loss_makes_a_policy_symmetric():
    policy, batch = made()
    optimizer, loss = torch.optim.Adam(policy.parameters(), 0.01), symmetric(mirror, augment=False, mirror_coef=100.0)
    found = []
    for _ in range(150):
        total, metrics = loss(policy, batch | {"advantage": torch.zeros(ROWS)}, CONFIG)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        found.append(float(metrics["symmetry_loss"]))
    assert found[-1] < found[0] / 4


@pytest.mark.parametrize("arguments", ["mirror", "mirror, mirror_coef=0.5"])
def test_the_example_is_compiled_and_learns_what_plain_pytorch_learns(arguments, tmp_path, capfd):
    (text,) = (block for block in blocks(ROOT / "docs" / "own-algorithm.md") if "class Symmetric" in block)
    file, found = tmp_path / "mirrors.py", []
    file.write_text(text.replace("symmetric(mirror)", f"symmetric({arguments})"))
    options = {"num_envs": 8, "num_steps": 16, "hidden": (8,), "device": "cpu", "epochs": 2, "minibatch_size": 64}
    for plain in (False, True):
        trainer = hr.Trainer(f"{file}:Symmetric", "Pendulum-v1", registered=False, **options)
        with fused.plain_only(plain):
            metrics = trainer.iterate().metrics
        found.append(trainer.policy.state_dict())
        assert metrics["approx_kl"] > 0 and ("symmetry_loss" in metrics) == ("coef" in arguments)
        trainer.close()
    for mine, other in zip(*(state.values() for state in found), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
    assert "plain PyTorch" not in capfd.readouterr().err


class HiddenLength(gymnasium.ObservationWrapper):
    """Pendulum with a length that the critic alone sees."""

    def __init__(self):
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.observation_space = Dict(policy=self.env.observation_space, length=Box(0, 2, (1,)))

    def observation(self, seen):
        return {"policy": seen, "length": np.array([self.unwrapped.l], np.float32)}


def test_the_critic_s_members_are_mirrored_too(monkeypatch):
    seen = []

    def mirror_all(observation, action):
        seen.append(dict(observation))
        return {"policy": observation.policy * SIGNS}, -action

    monkeypatch.setattr(PPO, "loss", staticmethod(symmetric(mirror_all, mirror_coef=0.1)))
    options = {"num_envs": 2, "num_steps": 8, "critic_members": ("length",), "hidden": (8,), "device": "cpu"}
    with fused.plain_only():
        trainer = hr.Trainer("ppo", HiddenLength, **options)
        assert trainer.iterate().metrics["symmetry_loss"] >= 0
        trainer.close()
    assert all(rows["policy"].shape[1] == 3 for rows in seen) and any((rows["length"] == 1).all() for rows in seen)


def test_another_loss_may_be_mirrored():
    policy, batch = made()
    loss, _ = symmetric(mirror, loss=a2c.a2c_loss)(policy, batch, a2c.A2CConfig())
    inputs, action = mirror(batch["inputs"], batch["action"])
    rows = (batch, batch | {"inputs": inputs, "action": action})
    torch.testing.assert_close(loss, sum(a2c.a2c_loss(policy, each, a2c.A2CConfig())[0] for each in rows) / 2)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (
            lambda seen, action: (seen[:, :2], action),
            ValueError,
            r"gave observations \(12, 2\) for \(12, 3\): keep",
        ),
        (lambda seen, action: (seen, action[:, 0]), ValueError, "gave actions .* keep names and shapes"),
        (lambda seen, action: seen, ValueError, r"gave Tensor: return \(observation, action\)"),
        (lambda seen, action: (None, action), ValueError, "gave observations NoneType for"),
    ],
)
def test_mirrors_of_other_shapes_are_refused(wrong, error, said):
    policy, batch = made()
    with pytest.raises(error, match=said):
        symmetric(wrong)(policy, batch, CONFIG)


def test_what_cannot_be_mirrored_is_refused():
    for given in ((), ("mirror",), (mirror, None)):
        with pytest.raises(TypeError, match="takes functions"):
            symmetric(*given)
    policy = hr.RecurrentActorCritic(hr.Box(-8, 8, (3,)), hr.Box(-2, 2, (1,)), hidden=(8,), seed=0)
    with pytest.raises(TypeError, match="recurrent='none'"):
        symmetric(mirror, loss=lambda *_: (torch.zeros(()), {}))(policy, made()[1], CONFIG)


def test_choices_have_no_mirror_loss():
    policy, batch = made()
    with pytest.raises(TypeError, match="mirror_coef is for actions of a Box"):
        symmetric(mirror, mirror_coef=1.0)(policy, batch | {"action": batch["action"].long()}, CONFIG)
