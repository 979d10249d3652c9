"""A new PPO or A2C acts on Box actions in their own units, as Stable-Baselines3's: mean 0, standard deviation 1."""

from __future__ import annotations

import json
import zipfile
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from headrace.policies.heads import GaussianHead
from headrace.sb3 import A2C, PPO

LOW, HIGH = np.array([-30, 1, -0.02, -np.inf], np.float32), np.array([90, 3, 0.02, np.inf], np.float32)


class Unequal(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(LOW, HIGH)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return np.zeros(3, np.float32), float(-action[0]), False, self.np_random.random() < 0.1, {}


def made(kind: type, **arguments: Any) -> Any:
    return kind("MlpPolicy", Unequal(), n_steps=32, seed=0, device="cpu", **arguments)


@pytest.mark.parametrize("kind", [PPO, A2C])
@pytest.mark.parametrize("start", [0.0, -1.0])
def test_exploration_is_in_the_units_of_actions(kind, start):
    model = made(kind, policy_kwargs={"log_std_init": start})
    with torch.no_grad():
        distribution, _ = model.policy(torch.full((5, 3), 0.3))
    np.testing.assert_allclose(distribution.log_std.exp().expand(4, 5), np.exp(start), rtol=1e-5)
    assert distribution.mean.abs().max() < 0.05
    drawn = np.stack([model.predict(np.full(3, 0.3, np.float32))[0] for _ in range(500)])
    assert (
        drawn[:, 0].std() == pytest.approx(np.exp(start), rel=0.15) and (drawn >= LOW).all() and (drawn <= HIGH).all()
    )
    assert drawn[:, 3].std() == pytest.approx(np.exp(start), rel=0.15)
    model.learn(64)
    assert (model._trainer.collector.rollout.action[:, :, 0].std() / np.exp(start)).item() == pytest.approx(1, rel=0.3)


def test_files_keep_the_units_and_older_ones_are_converted(tmp_path):
    model = made(PPO, policy_kwargs={"log_std_init": -0.5})
    model.learn(64)
    model.save(tmp_path / "model")
    seen = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    expected = model.predict(seen, deterministic=True)[0]
    np.testing.assert_array_equal(PPO.load(tmp_path / "model").predict(seen, deterministic=True)[0], expected)
    with zipfile.ZipFile(tmp_path / "model.zip") as file:
        about, state = json.loads(file.read("headrace.json")), torch.load(file.open("state.pth"), weights_only=True)
    head, policy = GaussianHead(Unequal.action_space, squash=False), state["policy"]
    policy["actor_out.weight"] /= head.half_range
    policy["actor_out.bias"] = (policy["actor_out.bias"] - head.center[:, 0]) / head.half_range[:, 0]
    policy["head.log_std"] -= head.half_range[:, 0].log()
    with zipfile.ZipFile(tmp_path / "older.zip", "w") as file:
        file.writestr("headrace.json", json.dumps(about | {"format": 1}))
        with file.open("state.pth", "w") as member:
            torch.save(state, member)
    older = PPO.load(tmp_path / "older", env=Unequal())
    np.testing.assert_allclose(older.predict(seen, deterministic=True)[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(older.policy.head.log_std, model.policy.head.log_std)
