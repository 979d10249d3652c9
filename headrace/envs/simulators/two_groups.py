"""Observations of simulators in two groups: one for the actor, and one that only the critic sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.data.spaces import Box, Dict, Space

PRIVILEGED = "privileged_state"  # the member that only the critic sees in a training


class TwoGroups:
    """sizes: the shape of each group. actor, critic: their names; the second need not be there."""

    def __init__(self, sizes: Mapping[str, Any], actor: str, critic: str) -> None:
        self._names = {"policy": actor} | ({PRIVILEGED: critic} if critic in sizes and critic != actor else {})
        spaces: dict[str, Space] = {
            name: Box(-np.inf, np.inf, _shape(sizes[group])) for name, group in self._names.items()
        }
        self.space: Space = Dict(spaces) if len(spaces) > 1 else spaces["policy"]

    def __call__(self, groups: Mapping[str, Any]) -> Any:
        """The observations, of the simulator's groups."""
        seen = {name: groups[group] for name, group in self._names.items()}
        return seen if len(seen) > 1 else seen["policy"]


def _shape(size: Any) -> tuple[int, ...]:
    return tuple(map(int, size)) if isinstance(size, tuple | list) else (int(size),)
