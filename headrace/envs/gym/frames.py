"""Stacked observations: the last frames of an environment, or of one of its agents, as one observation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete, Space, Tuple
from gymnasium.vector.utils import batch_space

from headrace.core.types import Json
from headrace.data.flat_dict import ACHIEVED_GOAL, ACTION_MASK, DESIRED_GOAL
from headrace.data.spaces import Sample, channels_first, is_image
from headrace.envs.gym.columns import copied

GOALS = {ACHIEVED_GOAL, DESIRED_GOAL}


class StackedFrames(gymnasium.Wrapper):
    """Observations of the last `number` steps as one, the newest last. The first one of an episode fills the stack."""

    def __init__(self, env: gymnasium.Env, number: int) -> None:
        super().__init__(env)
        self.observation_space = stacked_space(env.observation_space, number)
        self.frames: deque[Sample] = deque(maxlen=number)

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Sample, Json]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.frames.clear()
        return pushed(self.frames, self.env.observation_space, observation), info

    def step(self, action: Any) -> tuple[Sample, Any, bool, bool, Json]:
        """A step."""
        observation, *outcome = self.env.step(action)
        return pushed(self.frames, self.env.observation_space, observation), *outcome  # type: ignore[return-value]


def pushed(frames: deque[Sample], space: Space, observation: Sample) -> Sample:
    """Add an observation to a stack, and return the stack. An observation fills an empty stack. Frames are copies,
    since an environment may write its next observation into the same array."""
    frames.extend([copied(observation)] * (1 if frames else frames.maxlen or 1))
    return _stacked(space, frames)


def stacked_space(space: Space, number: int) -> Space:
    """The space of stacks. A Dict or Tuple is stacked member by member. Images with channels become images with more
    channels, [S * C, H, W]; other spaces get another first dimension. See also _of_now()."""
    if isinstance(space, Dict):
        now = _of_now(space)
        return Dict([(key, one if key in now else stacked_space(one, number)) for key, one in space.spaces.items()])
    if isinstance(space, Tuple):
        return Tuple([stacked_space(member, number) for member in space.spaces])
    if _has_channels(space):
        channels, height, width = channels_first(space.shape)[1]  # type: ignore[arg-type]
        return Box(0, 255, (number * channels, height, width), np.uint8)
    if isinstance(space, MultiDiscrete):
        nvec, start = (np.stack([numbers] * number) for numbers in (space.nvec, space.start))
        return MultiDiscrete(nvec, dtype=space.dtype, start=start)  # type: ignore[arg-type]
    return batch_space(space, number)


def _stacked(space: Space, frames: Sequence[Sample]) -> Sample:
    if isinstance(space, Dict):
        now, newest = _of_now(space), frames[-1]
        return {
            key: newest[key] if key in now else _stacked(member, [frame[key] for frame in frames])
            for key, member in space.spaces.items()
        }
    if isinstance(space, Tuple):
        return tuple(_stacked(member, [frame[at] for frame in frames]) for at, member in enumerate(space.spaces))
    if not _has_channels(space):
        return np.stack([np.asarray(frame) for frame in frames])
    in_front = channels_first(space.shape)[0]  # type: ignore[arg-type]
    pictures = [np.asarray(frame) for frame in frames]
    return np.concatenate(pictures if in_front else [picture.transpose(2, 0, 1) for picture in pictures])


def _of_now(space: Dict) -> set[str]:
    """Names of members that are not stacked: the mask of this step's actions, and goals, which rewards need."""
    return {ACTION_MASK} | (GOALS if space.spaces.keys() >= GOALS else set())


def _has_channels(space: Space) -> bool:
    return is_image(space) and len(space.shape) == 3
