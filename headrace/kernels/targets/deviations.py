"""Comparison of two backends of one environment by single steps from the same states, never by trajectories.

Two trajectories of an unstable environment in float32 drift apart; a single step agrees to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.kernels.targets.base import CompiledTarget
from headrace.kernels.targets.random_actions import random_actions

EXACT = ("terminated", "truncated", "episode_length")
CLOSE = ("reward", "episode_return")
MISJUDGED = 1e-3  # share of rows that may end a step sooner or later: a state may be just at the limit


class Deviation(NamedTuple):
    """Largest difference between two backends, its column, and the largest difference that rounding explains."""

    column: str
    worst: float  # of numbers relative to max(1, |x|); of flags and counts the share of rows that differ
    allowed: float

    @property
    def passed(self) -> bool:
        """True if the difference is only rounding; NaN is not."""
        return self.worst <= self.allowed


def deviation(
    envs: CompiledTarget, reference: CompiledTarget, num_steps: int, seed: int, allowed: float = 1e-5
) -> Deviation:
    """Step both from the reference's states by random actions, and find the column with the largest deviation.

    environments may be on any device; the reference is on the CPU, and has as many environments of the same source.
    """
    ir = reference.ir
    num_envs = reference.num_envs * ir.num_agents
    columns = env_columns(ir.observation_space) | {"action": action_column(ir.action_space)}
    ours, theirs = (Rollout(num_steps, num_envs, columns, x.device) for x in (envs, reference))
    theirs.action.copy_(random_actions(ir.action_space, seed, 0, num_steps, num_envs, "cpu"))
    ours.action.copy_(theirs.action)
    for each, rollout in ((envs, ours), (reference, theirs)):
        each.reset(rollout, seed)
    for t in range(num_steps):
        envs.load_state_dict(reference.state_dict())
        ours.valid[t].copy_(theirs.valid[t])
        envs.step(ours, t)
        reference.step(theirs, t)
    found = [Deviation(name, _share(getattr(ours, name), getattr(theirs, name)), MISJUDGED) for name in EXACT]
    found += [Deviation(name, _apart(getattr(ours, name), getattr(theirs, name)), allowed) for name in CLOSE]
    if ir.frames:  # where states differ by rounding, a few bytes are rounded up in one and down in the other
        found.append(Deviation("observation", _share(ours.observation, theirs.observation), MISJUDGED))
    else:
        found.append(Deviation("observation", _apart(ours.observation, theirs.observation), allowed))
    return max(found, key=lambda one: (not one.passed, one.worst / one.allowed))


def _share(ours: Tensor, theirs: Tensor) -> float:
    return (ours.cpu() != theirs).float().mean().item()


def _apart(ours: Tensor, theirs: Tensor) -> float:
    theirs = theirs.double()
    difference = (ours.cpu().double() - theirs).abs() / theirs.abs().clamp(min=1)
    return difference.nan_to_num(nan=torch.inf).max().item()
