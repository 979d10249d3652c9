"""A gymnasium.vector.VectorEnv whose arrays are tensors of torch, on its device, as a Simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headrace.data.spaces import Space


class TorchVector:
    """A Simulator (envs.vector.simulators) of environments that begin the next episode in the step that ends one.

    seen: what the policy sees of an observation. finals: the name of final observations in infos, if there are any.
    """

    autoreset = "SameStep"

    def __init__(self, env: Any, name: str, space: Space, seen: Any = None, finals: str = "") -> None:
        self.env, self.name, self._seen, self._finals = env, name, seen or (lambda groups: groups), finals
        self.num_envs, self.device = env.num_envs, torch.device(env.unwrapped.device)
        self.observation_space, self.action_space = space, env.single_action_space
        self.max_steps: int | None = None
        self.log: Mapping[str, Any] = {}

    def reset(self, seed: int | None) -> Any:
        return self._seen(self.env.reset(seed=seed)[0])

    def step(self, action: Tensor) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, infos = self.env.step(action)
        finals = infos.get(self._finals) if isinstance(infos, Mapping) and self._finals else None
        self.log = infos.get("log", {}) if isinstance(infos, Mapping) else {}
        seen = self._seen(observation)
        if not self._finals:
            return seen, reward, terminated, truncated
        return seen, reward, terminated, truncated, seen if finals is None else self._seen(finals)

    def close(self) -> None:
        self.env.close()
