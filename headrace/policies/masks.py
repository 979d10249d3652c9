"""Action masks: the actions that an observation allows, and the treatment of the others.

An observation has a mask as a member "action_mask" of a Dict (PettingZoo's convention), or as the last entries of a
FlatDict: one entry for each choice of a Discrete or MultiDiscrete action, 0 where it is forbidden. The logit of a
forbidden choice becomes so low that its probability is 0, and so is its gradient: Huang & Ontañón 2022,
arXiv:2006.14171.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.data.flat_action import component_sizes
from headrace.data.flat_dict import ACTION_MASK, FlatDict
from headrace.data.spaces import Dict, Space

FORBIDDEN = -1e9  # a logit whose probability is 0 in float32; finite, so that 0 times it is 0


def choices(space: Space) -> int | None:
    """Number of choices that a mask covers; None for actions without choices."""
    return sum(component_sizes(space)) or None


def mask_space(space: Space) -> Space | None:
    """The space of the action mask in observations; None without one."""
    if isinstance(space, FlatDict):
        return space.members.get(ACTION_MASK)
    return space.spaces.get(ACTION_MASK) if isinstance(space, Dict) else None


def is_masked(observation_space: Space, action_space: Space) -> bool:
    """Tell whether observations have an action mask. Raises TypeError for one that does not fit the actions."""
    mask = mask_space(observation_space)
    if mask is None:
        return False
    size = choices(action_space)
    if size is None:
        raise TypeError(
            f"an action mask is for Discrete and MultiDiscrete actions, not for {action_space}: leave it out"
        )
    if mask.shape != (size,):
        raise TypeError(
            f"the action mask has shape {mask.shape}, and {action_space} has {size} choices: give ({size},)"
        )
    return True


def mask_of(space: Space | None, observation: Any) -> Tensor:
    """The choices that N observations allow, bool [A, N]."""
    if isinstance(space, FlatDict):
        return (observation[:, space.features :] != 0).t()
    return (getattr(observation, ACTION_MASK) != 0).t()


def forbid(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits or values [A, N] with FORBIDDEN where the mask [A, N] is false."""
    return torch.where(mask, logits, FORBIDDEN)


def best_value(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value [N] of an allowed action, and this action int64 [N]. values: [A, N], in units of return.

    A final observation may allow no action. Then all count, since nothing is learned from it.
    """
    lowest = torch.finfo(values.dtype).min
    return torch.where(or_all(mask), values, lowest).max(0)  # type: ignore[return-value]


def or_all(mask: Tensor) -> Tensor:
    """The mask [A, N], with all actions allowed where it allows none."""
    return mask | ~mask.any(0)


def random_choice(mask: Tensor, random: Tensor) -> Tensor:
    """Draw an allowed action uniformly, int64 [N]. random: uniform in [0, 1), [N]."""
    number = (random * mask.sum(0)).floor()
    return (mask.cumsum(0) <= number).sum(0).clamp(max=len(mask) - 1)
