"""A seed of a model decides all that its training draws."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from headrace.sb3 import A2C


def weights(model: Any) -> torch.Tensor:
    return torch.cat([x.detach().flatten() for x in model.policy.parameters()])


class Drawing(gymnasium.Env):
    """Observations drawn from the action space, which reset(seed=...) leaves as it is."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.action_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return self.action_space.sample(), float(action.sum()), False, self.steps == 20, {}


def test_a_seed_seeds_the_action_space_that_environments_draw_from():
    def made(seed: int | None) -> A2C:
        return A2C("MlpPolicy", Drawing(), seed=seed, device="cpu")

    one, same, other, free = (made(seed).learn(60) for seed in (0, 0, 1, None))
    assert torch.equal(weights(one), weights(same)) and not torch.equal(weights(one), weights(other))
    assert not torch.equal(weights(one), weights(free))
    drawn = []
    for _ in range(2):
        one.set_random_seed(5)
        drawn.append(one.get_env().reset())
    assert np.array_equal(*drawn)
