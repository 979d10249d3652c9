"""Wrappers of vector environments that are stepped in Python: statistics of episodes, and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor

from headrace.core.types import Json
from headrace.data.spaces import Sample


class Delegating:
    """A vector wrapper's access to the environments, which Gymnasium's wrappers lack."""

    env: Any

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What a method of each environment returns; or an attribute."""
        return self.env.call(name, *args, **kwargs)  # type: ignore[no-any-return]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""
        return self.env.get_attr(name)  # type: ignore[no-any-return]

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple has one value for each environment, anything else is for all."""
        self.env.set_attr(name, values)


class EpisodeStatistics(Delegating, RecordEpisodeStatistics):
    """Adds the statistics of episodes that end to the infos."""


class ToTorch(Delegating, VectorWrapper):
    """Takes and gives tensors, which share the memory of the arrays: observations, rewards, flags, numbers in infos."""

    def reset(self, *, seed: Any = None, options: Json | None = None) -> tuple[Sample, Json]:
        observation, infos = self.env.reset(seed=seed, options=options)
        return tensors(observation), tensors(infos)

    def step(self, actions: Sample) -> tuple[Sample, Tensor, Tensor, Tensor, Json]:  # type: ignore[override]
        return tensors(self.env.step(arrays(actions)))  # type: ignore[no-any-return]


def tensors(value: Sample) -> Sample:
    """Arrays of numbers, in dicts and tuples too, as tensors in the same memory. Everything else as it is."""
    if isinstance(value, dict):
        return {key: tensors(member) for key, member in value.items()}
    if isinstance(value, tuple):
        return tuple(map(tensors, value))
    is_number = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    return torch.from_numpy(value) if is_number else value


def arrays(value: Sample) -> Sample:
    """Tensors, in dicts and tuples too, as arrays; those of the CPU in the same memory."""
    if isinstance(value, dict):
        return {key: arrays(member) for key, member in value.items()}
    if isinstance(value, tuple):
        return tuple(map(arrays, value))
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
