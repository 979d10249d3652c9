"""The rewards of other goals than the one an environment was given, for hindsight experience replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.text import shown
from headrace.core.types import Json
from headrace.data.flat_dict import ACHIEVED_GOAL, DESIRED_GOAL, FlatDict
from headrace.data.hindsight import Goals, OfGoals
from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.gym.columns import NUMBERS


def goals_of(env: Env, factory: Callable[[], Any] | None) -> Goals:
    """The goals of an environment: a KernelEnv's compute_reward(achieved, desired), of tensors [B, g], or that of a
    Gymnasium environment, compute_reward(achieved, desired, info), of arrays; and likewise compute_terminated, if any.
    What gives one number for a batch is called for each goal: it may be written for one, or be a constant.

    factory: makes one of the environments, or is their KernelEnv; None where that is not known.
    Raises ValueError where observations are no Dict of vectors with achieved_goal and desired_goal of one size, or
    there is no compute_reward.
    """
    space = env.observation_space
    slices = space.slices if isinstance(space, FlatDict) else {}
    if not {ACHIEVED_GOAL, DESIRED_GOAL} <= {*slices}:
        raise ValueError(
            f"hindsight is for goals, and observations of {env.name} are {space}: give a Dict of vectors with "
            f"{ACHIEVED_GOAL} and {DESIRED_GOAL}, or leave hindsight out"
        )
    achieved, desired = slices[ACHIEVED_GOAL], slices[DESIRED_GOAL]
    if achieved.stop - achieved.start != desired.stop - desired.start:
        raise ValueError(f"{env.name} has goals of different sizes: {space}")
    reward = _function(env.name, factory, "compute_reward")
    if reward is None:
        raise ValueError(f"hindsight needs rewards of other goals: give {env.name} a compute_reward(achieved, desired)")
    return Goals(achieved, desired, reward, _function(env.name, factory, "compute_terminated"))


def _function(env: str, factory: Callable[[], Any] | None, name: str) -> OfGoals | None:
    """An environment's function of goals; None where it has none."""
    if factory is None:
        return None
    of_tensors = sources.is_kernel(factory)
    own = getattr(factory, name, None) if of_tensors else _own(factory(), name)
    if own is None:
        return None

    def of_goals(achieved: Tensor, desired: Tensor) -> Tensor:
        given = [x if of_tensors else x.cpu().numpy() for x in (achieved, desired)]
        more: tuple[Json, ...] = () if of_tensors else ({},)
        found = _numbers(own(*given, *more), f"{name} of {env}")
        if len(achieved) > 1 and found.numel() == 1:  # it is of one goal, or a constant
            each = [own(*pair, *more) for pair in zip(*given, strict=True)]
            found = torch.stack([_numbers(one, f"{name} of {env}").reshape(()) for one in each])
        if found.numel() != len(achieved):
            raise ValueError(
                f"{name} of {env} gave shape {tuple(found.shape)} for {len(achieved)} goals: let it take batches "
                "[B, g] and give [B], or take one goal [g] and give a number"
            )
        return found.reshape(-1).to(achieved.device)

    return of_goals


def _numbers(found: Any, what: str) -> Tensor:
    """What a function of goals gave, as a tensor. Raises TypeError for what are no numbers."""
    if isinstance(found, Tensor):
        return found
    array = np.array(found)  # a copy: the array may be used again
    if array.dtype.kind not in NUMBERS:
        raise TypeError(f"{what} gave {shown(found, 60)}: let it give a number for each goal")
    return torch.as_tensor(array)


def _own(made: Any, name: str) -> Any:
    """A method of an environment or of one that it wraps; None where there is none."""
    return made.get_wrapper_attr(name) if made.has_wrapper_attr(name) else None
