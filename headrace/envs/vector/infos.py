"""Infos of vector libraries that log_info names: numbers of the last step of each environment's last episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.data.rollout import Rollout
from headrace.envs.gym.columns import EndNumbers


class EndingInfos:
    """Keeps numbers of the infos of steps that end episodes, until the masked row after them."""

    def __init__(self, num_envs: int) -> None:
        self._last: dict[str, Tensor] = {}  # float32 [N]
        self._num_envs, self.numbers = num_envs, EndNumbers()

    def put(self, rollout: Rollout, place: Any, envs: Tensor) -> None:
        """Write the numbers of the last episodes of environments [k] into the columns of infos, at rollout[place]."""
        for name, column in rollout.info:
            if name not in self._last:  # no episode has ended
                self._last[name] = torch.zeros(self._num_envs)
            column[place] = self._last[name][envs]

    def keep(self, infos: Mapping[str, Any] | None, ended: Tensor, envs: Tensor) -> None:
        """Keep the numbers of environments [k] whose episode ended, bool [k]. infos: of the step of these environments.

        Raises ValueError for a name that infos lack or infos that are None, TypeError for what is no number.
        """
        if infos is None:
            raise ValueError(
                f"log_info names {', '.join(self._last)}, and these environments give no infos: leave it out"
            )
        if not ended.any():
            return
        if "final_info" in infos:  # of steps that end an episode and begin the next
            infos = infos["final_info"]
        for number in np.flatnonzero(ended.numpy()).tolist():
            values = self.numbers.of(_of_one(infos, number, len(envs)), self._last)
            for name, value in zip(self._last, values, strict=True):
                self._last[name][envs[number]] = value


def _of_one(infos: Mapping[str, Any], number: int, count: int) -> dict[str, Any]:
    """One environment's info of those of `count`: arrays by name, and by "_NAME" whether an environment has it."""
    found, all_have = {}, np.ones(count, bool)
    for name, values in infos.items():
        is_mask = name.startswith("_") and name[1:] in infos
        if np.shape(values)[:1] == (count,) and infos.get(f"_{name}", all_have)[number] and not is_mask:
            found[name] = values[number]
    return found
