"""Gymnasium's VectorEnv as a Source of headrace.envs.vector.adapter."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from torch import Tensor

from headrace.core.rng import env_seed
from headrace.core.types import Json
from headrace.data.flat_action import flat_action
from headrace.data.spaces import Sample
from headrace.envs.gym.columns import action_caster
from headrace.envs.vector.adapter import SEEDS, Autoreset, Outcome
from headrace.envs.vector.vector_rewards import watched_vector

RESET_SOME = (SyncVectorEnv, AsyncVectorEnv)  # classes that take a reset mask, whatever their mode


class GymnasiumSource:
    """A gymnasium.vector.VectorEnv, with the autoreset mode in its metadata.

    One whose spaces are those of one environment, as SuperSuit's, has no such mode: it gives a list of infos, and
    resets an environment in the step that ends its episode, whose info has its "terminal_observation".
    Raises ValueError for one without that, or that steps only a part of its environments at a time.
    """

    device = torch.device("cpu")

    def __init__(self, env: VectorEnv, name: str | None = None) -> None:
        self.env = env
        spec = getattr(env, "spec", None)
        self.name = name or getattr(spec, "id", None) or type(env.unwrapped).__name__
        size = getattr(env.unwrapped, "batch_size", env.num_envs)
        if size != env.num_envs:
            raise ValueError(
                f"{self.name} steps {size} of {env.num_envs} environments at a time, and a row of a rollout has all of "
                "them: leave batch_size out"
            )
        self.num_envs: int = env.num_envs
        of_one = "single_" if hasattr(env, "single_observation_space") else ""
        self.observation_space, acted = (getattr(env, f"{of_one}{kind}_space") for kind in ("observation", "action"))
        self.action_space = flat_action(acted)
        self.max_steps: int | None = getattr(spec, "max_episode_steps", None)
        self.autoreset = _mode(env, self.name) if of_one else Autoreset.SAME_STEP
        self.single = bool(getattr(env.unwrapped, "single", False))
        takes_a_mask = isinstance(env.unwrapped, RESET_SOME) or type(env.unwrapped).__module__.startswith("ale_py")
        self.resets_some = self.autoreset is Autoreset.DISABLED or takes_a_mask
        self._actions = action_caster(self.action_space)
        self._own_rewards = watched_vector(env)

    def reset(self, seed: int | None, first: int = 0) -> Sample:
        return self.env.reset(seed=None if seed is None else env_seed(seed, 0) % SEEDS + first)[0]

    def reset_some(self, mask: Tensor) -> Sample:
        return self.env.reset(options={"reset_mask": mask.numpy()})[0]

    def step(self, action: Tensor) -> Outcome:
        actions = self._actions(action.numpy())
        actions = np.ascontiguousarray(actions) if isinstance(actions, np.ndarray) else actions
        observation, reward, terminated, truncated, info = self.env.step(actions)
        if isinstance(info, list):
            info = self._together(info)
        final, own = None, None if self._own_rewards is None else self._own_rewards(reward)
        if self.autoreset is Autoreset.SAME_STEP:
            final = _finals(observation, info, np.logical_or(terminated, truncated))
        return Outcome(observation, reward, terminated, truncated, final, info, own)

    def _together(self, infos: list[Json]) -> Json:
        """A list of infos in Gymnasium's form."""
        together: Json = {}
        for number, info in enumerate(infos):
            named = {"final_obs" if name == "terminal_observation" else name: info[name] for name in info}
            together = self.env._add_info(together, named, number)
        return together

    def close(self) -> None:
        self.env.close()


def _mode(env: VectorEnv, name: str) -> Autoreset:
    mode = env.metadata.get("autoreset_mode")
    try:
        return Autoreset(getattr(mode, "value", mode))
    except ValueError as error:
        raise ValueError(
            f"{name} does not say when it resets its environments: metadata['autoreset_mode'] is {mode!r}; set it to "
            "gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
        ) from error


def _finals(observation: Sample, info: Json, ended: np.ndarray) -> Sample:
    """Observations with the final ones of episodes that ended; None where the library does not give them.

    Libraries give them as a batch, or as an array of single observations, with None for episodes that continue.
    """
    if not ended.any():
        return observation
    finals = info.get("final_obs", info.get("final_observation"))
    if not isinstance(finals, np.ndarray) or finals.dtype != object:
        return finals
    places = [
        place for place in np.flatnonzero(ended).tolist() if finals[place] is not None
    ]  # others are not reset yet
    return _replaced(observation, places, [finals[place] for place in places])


def _replaced(observation: Sample, places: list[int], values: list[Sample]) -> Sample:
    """A copy of observations with those at `places` replaced, member by member for a Dict or Tuple."""
    if isinstance(observation, dict):
        return {key: _replaced(member, places, [v[key] for v in values]) for key, member in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_replaced(member, places, [v[k] for v in values]) for k, member in enumerate(observation))
    replaced = np.array(observation)
    for place, value in zip(places, values, strict=True):
        replaced[place] = value
    return replaced
