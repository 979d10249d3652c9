"""Wrappers of vector environments: statistics of episodes, the infos of Gymnasium 0.29, and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from torch import Tensor

from headrace.core.types import Json
from headrace.data.spaces import Sample


class Delegating:
    """A vector wrapper's access to the environments, which Gymnasium's wrappers lack."""

    env: Any

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute, and return the results."""
        return self.env.call(name, *args, **kwargs)  # type: ignore[no-any-return]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""
        return self.env.get_attr(name)  # type: ignore[no-any-return]

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple has one value for each environment, anything else is for all."""
        self.env.set_attr(name, values)


class FinalEpisodes(Delegating, VectorWrapper):
    """Gives the statistics in `final_info` as `episode`, too: where every vector has those of ended episodes."""

    def step(self, actions: Sample) -> tuple[Sample, Sample, Sample, Sample, Json]:
        """A step of all environments."""
        *outcome, infos = self.env.step(actions)
        final = infos.get("final_info", {})
        return (*outcome, infos | {name: final[name] for name in ("episode", "_episode") if name in final})


class Gymnasium029Infos(Delegating, VectorWrapper):
    """Infos of a vector in SAME_STEP mode under the names of Gymnasium 0.29, for scripts that were written for it.

        envs = hr.Gymnasium029Infos(hr.make_vec("CartPole-v1", 8, autoreset_mode="SameStep", episode_statistics=True))

    Where episodes end, infos have `final_observation` and `final_info`: object arrays [N] of observations and of dicts,
    None for the other environments; and their masks. Raises ValueError for a vector in another mode.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        mode = (env.metadata or {}).get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"Gymnasium 0.29 reset environments in the step that ended their episode, and this vector is in "
                f"{mode}: make it with autoreset_mode='SameStep'"
            )

    def step(self, actions: Sample) -> tuple[Sample, Sample, Sample, Sample, Json]:
        """A step of all environments."""
        *outcome, infos = self.env.step(actions)
        if "_final_obs" not in infos:
            return (*outcome, infos)
        ended = np.asarray(infos.pop("_final_obs"))
        observations, found = (np.full(self.num_envs, None, dtype=object) for _ in range(2))
        final, own = infos.pop("final_obs"), infos.pop("final_info", {})
        for name in ("_final_info", "episode", "_episode"):
            infos.pop(name, None)
        for number in np.flatnonzero(ended):
            observations[number] = (
                {k: x[number] for k, x in final.items()} if isinstance(final, dict) else final[number]
            )
            found[number] = _of_one(own, int(number))
        infos |= {"final_observation": observations, "_final_observation": ended}
        return (*outcome, infos | {"final_info": found, "_final_info": ended})


def _of_one(infos: Json, number: int) -> Json:
    """One environment's info, from infos in Gymnasium's form. Numbers of `episode` are arrays [1], as in 0.29."""
    found: Json = {}
    for name, values in infos.items():
        is_mask, mask = name.startswith("_") and name[1:] in infos, infos.get(f"_{name}")
        if is_mask or (mask is not None and not mask[number]):
            continue
        found[name] = _of_one(values, number) if isinstance(values, dict) else values[number]
    if isinstance(found.get("episode"), dict):
        found["episode"] = {name: np.atleast_1d(value) for name, value in found["episode"].items()}
    return found


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
