"""Actions drawn evenly from a space: for measuring environments, and for the first steps of off-policy learning."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from torch import Tensor

from headrace.core import rng
from headrace.core.device import Device
from headrace.data.spaces import unit_bounds


def bounds(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Lower bound of each entry of a random action, and upper bound, which is not included. float32 for a Box, -1 .. 1
    where it has no bounds; int64 otherwise. Raises TypeError for other spaces."""
    if isinstance(space, Discrete):
        return np.array([space.start]), np.array([space.start + space.n])
    if isinstance(space, MultiDiscrete):
        return space.start.ravel(), (space.start + space.nvec).ravel()
    if isinstance(space, Box):
        low, high = (np.ravel(side).astype(np.float32) for side in unit_bounds(space))
        return low, high
    raise TypeError(f"no random actions of {space}: use Discrete, MultiDiscrete or Box")


def no_action(space: Space) -> np.ndarray:
    """The action of an entity that is no agent: the first of a Discrete one, zeros of a Box, clipped to its bounds."""
    if isinstance(space, Box):
        return np.clip(np.zeros(space.shape, np.float32), space.low, space.high)
    return np.asarray(space.start)  # type: ignore[attr-defined]


def random_actions(
    space: Space, seed: int, first_step: int, num_steps: int, num_envs: int, device: Device, first_env: int = 0
) -> Tensor:
    """Random actions as a rollout holds them, [T, N] or [T, N, K]: a function of seed, step, environment and entry.

    first_step: steps taken before. first_env: number of the first environment.
    """
    low, high = (torch.from_numpy(side.copy()).to(device) for side in bounds(space))
    drawn = rng.uniform(seed, rng.Purpose.ACTION, first_step, num_steps, num_envs, len(low), device, first_env)
    if isinstance(space, Box):
        return drawn * (high - low) + low
    count = high - low
    chosen = torch.minimum((drawn * count.float()).long(), count - 1) + low
    return chosen.int() if space.shape else chosen.int().squeeze(2)
