"""Conversion between users' NumPy arrays and a policy's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.fused import is_traced
from headrace.core.text import shown
from headrace.data.flat_action import FlatAction, FlatBox
from headrace.data.flat_dict import FlatDict
from headrace.data.rollout import Group, tree_map
from headrace.data.spaces import Box, Dict, Space, Tuple, members, observation_column


def to_batch(space: Space, observation: Any, device: torch.device) -> tuple[Any, bool]:
    """Convert observations to tensors [N, ...]. Returns them, and whether there was a single one. Raises ValueError for
    a wrong shape."""
    if isinstance(space, FlatDict) and isinstance(observation, Mapping):
        observation = space.join(observation)
    if isinstance(space, Dict | Tuple):
        _check_members(space, observation)
        parts = {name: to_batch(member, observation[key], device) for name, key, member in members(space)}
        if len({single for _, single in parts.values()}) > 1:
            raise ValueError("some members of the observation are single, others are batches")
        sizes = {name: batch_size(batch) for name, (batch, _) in parts.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"members of the observation are batches of different sizes: {sizes}")
        return Group({name: batch for name, (batch, _) in parts.items()}), next(iter(parts.values()))[1]
    array = np.asarray(observation)
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")  # tensors have no others
    shape = space.shape or ()
    single = array.ndim == len(shape)
    if array.shape[0 if single else 1 :] != shape:
        raise ValueError(f"expected an observation of shape {shape} or a batch [N, {shape}], got {array.shape}")
    tensor = torch.tensor(array, dtype=observation_column(space).dtype, device=device)  # type: ignore[union-attr]
    return (tensor.unsqueeze(0) if single else tensor), single


def _check_members(space: Dict | Tuple, observation: Any) -> None:
    """Raise ValueError if members of the space are missing in an observation."""
    if isinstance(space, Tuple):
        if not isinstance(observation, Sequence) or len(observation) != len(space):
            raise ValueError(f"expected a tuple of {len(space)} arrays, got {shown(observation)}")
        return
    if not isinstance(observation, Mapping):
        raise ValueError(f"expected a dict of {', '.join(space)}, got {type(observation).__name__}")
    missing = [name for name in space if name not in observation]
    if missing:
        raise ValueError(f"the observation lacks {', '.join(missing)}: it needs {', '.join(space)}")


def to_state(state: Any, episode_start: Any, shape: tuple[int, int], device: torch.device) -> Tensor | None:
    """Convert a recurrent state to a tensor of a shape, [N, W], with zeros where an episode starts. Raises ValueError
    for another shape, TypeError for an episode_start that is no array. W is 0 for a policy without a state."""
    if isinstance(episode_start, bool):
        raise TypeError(
            f"episode_start is {episode_start}: give a bool for each of the {shape[0]} observations, as in "
            f"np.array([{episode_start}]); deterministic is given by its name"
        )
    if state is None:
        return None
    if not shape[1]:
        raise ValueError(f"state is {shown(state, 60)}, and the policy is not recurrent: give None, which it returns")
    given = torch.as_tensor(state, dtype=torch.float32, device=device)
    if given.shape != shape:
        raise ValueError(
            f"state has shape {(*given.shape,)}, and {shape[0]} observations have one of {shape}: give the state that "
            "predict() returned for as many observations, or None at the start of an episode"
        )
    if episode_start is None:
        return given
    starts = torch.as_tensor(episode_start, dtype=torch.bool, device=device)
    if starts.shape != shape[:1]:
        raise ValueError(f"episode_start has shape {(*starts.shape,)}: give a bool for each of {shape[0]} observations")
    return given.masked_fill(starts.unsqueeze(1), 0)


def to_action(space: Space, action: np.ndarray, single: bool) -> Any:
    """Convert a policy's actions to [N, ...] in the space's dtype and bounds, or [...] for a single one. Actions of
    several parts or dimensions get the form of the environment's space."""
    if isinstance(space, FlatBox | FlatAction):
        return space.each(action)[0] if single else space.batch(action)
    if isinstance(space, Box):
        action = np.minimum(np.maximum(action, space.low), space.high)  # np.clip() takes four times as long for one
        action = action if space.dtype.kind == "f" else np.rint(action)
    action = np.ascontiguousarray(action, dtype=space.dtype)
    return action[0] if single else action


def batch_size(observation: Any) -> int:
    """The number N of observations [N, ...]. Raises TypeError unless they are tensors, or Groups of tensors."""
    while isinstance(observation, Group):
        _, observation = next(iter(observation))
    if not isinstance(observation, Tensor):
        raise TypeError(
            f"act() and value() take tensors [N, ...], got {type(observation).__name__}: predict() takes NumPy arrays, "
            "and torch.tensor(observation, dtype=torch.float32) makes a tensor of one"
        )
    return observation.shape[0]  # a tensor to a tracer, where len() is a constant


def needs_padding(rows: int, block: int) -> bool:
    """Tell whether a batch is padded to whole blocks. It is not while operations are recorded, since compiled code
    computes each row alone."""
    return rows % block != 0 and not is_traced()


def pad(block: int, *parts: Any) -> list[Any]:
    """Pad parts [N, ...], such as observations and recurrent states, with copies of their first rows to a multiple of
    `block` rows. Raises ValueError if their N differs."""
    sizes: set[int] = set()

    def padded(x: Tensor) -> Tensor:
        sizes.add(len(x))
        return torch.cat((x, x[:1].expand(-len(x) % block, *x.shape[1:])))

    found = [tree_map(padded, part) for part in parts]
    if len(sizes) > 1:
        numbers = " and ".join(map(str, sorted(sizes)))
        raise ValueError(f"observations, recurrent states and random draws are of as many rows each, got {numbers}")
    return found
