"""Rewards for other goals than an environment's own, for hindsight experience replay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.stopping import close
from headrace.core.text import shown
from headrace.core.types import Json
from headrace.data.flat_dict import ACHIEVED_GOAL, DESIRED_GOAL, FlatDict
from headrace.data.hindsight import Goals, OfGoals
from headrace.envs import sources
from headrace.envs.base import Env, EnvWrapper
from headrace.envs.gym.columns import NUMBERS
from headrace.envs.gym.inline import InlineEnv


def goals_of(env: Env, factory: Callable[[], Any] | None, stack: ExitStack | None = None) -> Goals:
    """Find the goals of an environment. Rewards come from a KernelEnv's compute_reward(achieved, desired), of tensors
    [B, g], or a Gymnasium environment's compute_reward(achieved, desired, info), of arrays. Likewise for
    compute_terminated, if any. A function that returns one number for a batch is called for each goal, since it may be
    written for one goal, or be a constant.

    The functions belong to the first environment if it is in this process, otherwise to one that is made here. factory:
    makes one of the environments, or is their KernelEnv; None if unknown. stack: closes an environment that is made
    here.
    Raises ValueError if observations are not a Dict of vectors with achieved_goal and desired_goal of one size, or
    without compute_reward.
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
    one = _one(env, factory, stack)
    reward = _function(env.name, one, "compute_reward")
    if reward is None:
        raise ValueError(f"hindsight needs rewards of other goals: give {env.name} a compute_reward(achieved, desired)")
    return Goals(achieved, desired, reward, _function(env.name, one, "compute_terminated"))


def _one(env: Env, factory: Callable[[], Any] | None, stack: ExitStack | None) -> Any:
    """A KernelEnv, or a function that returns one environment, the same at each call unless it was replaced; None if
    there is neither."""
    inside = env
    while isinstance(inside, EnvWrapper):
        inside = inside.env
    if isinstance(inside, InlineEnv):
        return lambda: inside.envs[0]
    if factory is None or sources.is_kernel(factory):
        return factory
    made = factory()
    if stack is not None:
        stack.callback(close, made, f"the environment of {env.name} that gives the rewards of goals")
    return lambda: made


def _function(env: str, one: Any, name: str) -> OfGoals | None:
    """An environment's function of goals; None if it has none."""
    of_tensors = sources.is_kernel(one)
    if one is None or not (getattr(one, name, None) if of_tensors else one().has_wrapper_attr(name)):
        return None

    def of_goals(achieved: Tensor, desired: Tensor) -> Tensor:
        own = getattr(one, name) if of_tensors else one().get_wrapper_attr(name)
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
    """Convert the result of a function of goals to a tensor. Raises TypeError unless it consists of numbers."""
    if isinstance(found, Tensor):
        return found
    array = np.array(found)  # a copy: the array may be used again
    if array.dtype.kind not in NUMBERS:
        raise TypeError(f"{what} gave {shown(found, 60)}: let it give a number for each goal")
    return torch.as_tensor(array)
