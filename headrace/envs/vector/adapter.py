"""Worlds that come many at once, from vector libraries and simulators, behind headrace.envs.base.Env.

Libraries begin new episodes in three ways: at the next step, in the same step that ends the old one, or when told. A
rollout knows the first alone (see headrace.data.rollout); this is the one place that makes it of the others.
"""

from __future__ import annotations

import warnings
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.core.cores import cores
from headrace.data.rollout import Group, Rollout, tree_map
from headrace.data.spaces import Space, action_column, observation_column
from headrace.envs.base import Env, State

SEEDS = 2**31 - 2**20  # libraries take seeds of 31 bits, and many give world i the seed + i


class Autoreset(Enum):
    """When a library begins the next episode of a world whose last has ended. Names and values are Gymnasium's."""

    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"
    DISABLED = "Disabled"


class Outcome(NamedTuple):
    """What a step of N worlds gave: arrays, tensors, or whatever speaks DLPack; dicts or tuples of these."""

    observation: Any  # [N, ...]
    reward: Any  # [N]
    terminated: Any  # bool [N]
    truncated: Any  # bool [N]
    final: Any = (
        None  # [N, ...], read where an episode ended: what was seen last. Of SAME_STEP alone, None if not known
    )


class Source(Protocol):
    """N worlds of one library, as VectorAdapter asks for them."""

    name: str
    num_envs: int
    device: torch.device
    observation_space: Space  # of one world
    action_space: Space  # of one world
    max_steps: int | None
    autoreset: Autoreset
    resets_some: bool  # whether reset_some() works

    def reset(self, seed: int | None) -> Any:
        """Begin an episode in every world; give what is seen, [N, ...]."""

    def reset_some(self, mask: Tensor) -> Any:
        """Begin an episode in the worlds of a mask, bool [N]; give observations [N, ...], of which those count."""

    def step(self, action: Tensor) -> Outcome:
        """Step every world. action: [N, ...], a row of the rollout's column."""

    def close(self) -> None:
        """Free what the worlds hold."""


class VectorAdapter(Env):
    """An Env (headrace.envs.base) of a library's worlds.

    clip_reward: bounds of what is learned from, as (-1, 1) for Atari; returns that are reported stay as they are.

    Worlds whose row is dead and which the library does not reset at that row of its own accord are stepped with the
    others, which nobody sees, and then reset. Where a library has no way to reset some of its worlds, the first step of
    an episode of SAME_STEP falls into the dead row: nothing is learned from it, and it counts in the return.
    A library that does not say what was seen last gets a warning, and its truncations count as terminations.
    Worlds cannot be saved: after load_state_dict() each begins a new episode.
    Raises TypeError for spaces that are not supported.
    """

    backend = "vector"

    def __init__(self, source: Source, clip_reward: tuple[float, float] | None = None) -> None:
        observation_column(source.observation_space)
        action_column(source.action_space)
        self.source, self.clip_reward = source, clip_reward
        self.name, self.num_envs, self.device = source.name, source.num_envs, torch.device(source.device)
        self.observation_space, self.action_space = source.observation_space, source.action_space
        self.max_steps = source.max_steps
        self._on_cpu = self.device.type == "cpu"
        self._begin_anew = self._warned = False
        self._clear()

    def _clear(self) -> None:
        """No episode has begun."""
        self._returns = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int32, device=self.device)
        # whose episode ended at the last step: NEXT_STEP resets them at the next, SAME_STEP has
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode in every world; write observation[0] and valid[0]. Same seed, same episodes."""
        self._clear()
        self._begin_anew = False
        self._see(rollout, 0, self._tensors(self.source.reset(seed), "the observation"))
        rollout.valid[0] = True

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every world from row t to row t + 1; where valid[t] is false, reset it instead."""
        if self._begin_anew:
            self._start_over(rollout, t)
            return
        live = rollout.valid[t]
        # on another device to ask would be to wait: there the worlds of an empty mask are reset
        some = not self._on_cpu or not bool(live.all())
        if some and self.source.autoreset is Autoreset.DISABLED:
            self.source.reset_some(~live)  # they may not be stepped as they are
        outcome = self.source.step(rollout.action[t])
        reward = self._tensors(outcome.reward, "the reward")
        terminated = self._tensors(outcome.terminated, "terminated").bool()
        truncated = self._tensors(outcome.truncated, "truncated").bool()
        ended = terminated | truncated
        if self.source.autoreset is Autoreset.SAME_STEP and outcome.final is None:
            self._warn(truncated)
            terminated, truncated = ended, torch.zeros_like(truncated)
        if some:
            anew = self._see_some(rollout, t, outcome, ended)
            self._account_for_some(rollout, t, reward, ended, anew)
            reward, terminated, truncated = (x * live for x in (reward, terminated, truncated))
        else:
            self._see(rollout, t + 1, self._last_seen(outcome, ended))
            rollout.valid[t + 1] = ~ended
            self._ended = ended
            self._returns += reward
            self._lengths += 1
        rollout.reward[t] = reward if self.clip_reward is None else reward.clamp(*self.clip_reward)
        rollout.terminated[t], rollout.truncated[t] = terminated, truncated

    def _see_some(self, rollout: Rollout, t: int, outcome: Outcome, ended: Tensor) -> Tensor:
        """Write the row after one with dead worlds; give which of those the adapter has reset, bool [N]."""
        source, live = self.source, rollout.valid[t]
        next_step = source.autoreset is Autoreset.NEXT_STEP
        seen = self._last_seen(outcome, ended & live)
        anew = ~live & ~self._ended if next_step else ~live
        if not source.resets_some:
            anew = torch.zeros_like(anew)
        elif not self._on_cpu or bool(anew.any()):
            seen = _where(anew, self._tensors(source.reset_some(anew), "the observation"), seen)
        self._see(rollout, t + 1, seen)
        # what the library reset in this very row has begun, whatever it was
        rollout.valid[t + 1] = anew | ~ended if next_step else ~live | ~ended
        return anew

    def _account_for_some(self, rollout: Rollout, t: int, reward: Tensor, ended: Tensor, anew: Tensor) -> None:
        """Returns and lengths at a row with dead worlds."""
        dead = ~rollout.valid[t]
        over = dead & (anew | self._ended)  # else the world could not be reset, and goes on
        rollout.episode_return[t] = self._returns
        rollout.episode_length[t] = self._lengths * over
        stepped = ~over
        if self.source.autoreset is Autoreset.SAME_STEP:
            stepped = ~dead | ~anew & ~ended
            over = over | dead & ended
        self._returns = torch.where(over, 0.0, self._returns) + reward * stepped
        self._lengths = torch.where(over, 0, self._lengths) + stepped.int()
        self._ended = ended & ~anew if self.source.autoreset is Autoreset.NEXT_STEP else ended & ~dead

    def _last_seen(self, outcome: Outcome, ended: Tensor) -> Any:
        """Observations after a step, of episodes that ended the last ones."""
        seen = self._tensors(outcome.observation, "the observation")
        if outcome.final is None or (self._on_cpu and not bool(ended.any())):
            return seen
        return _where(ended, self._tensors(outcome.final, "the final observation"), seen)

    def _start_over(self, rollout: Rollout, t: int) -> None:
        """Reset every world at row t, which is dead."""
        self._begin_anew = False
        rollout.valid[t], rollout.valid[t + 1] = False, True
        rollout.episode_return[t], rollout.episode_length[t] = self._returns, self._lengths
        rollout.reward[t], rollout.terminated[t], rollout.truncated[t] = 0.0, False, False
        self._clear()
        self._see(rollout, t + 1, self._tensors(self.source.reset(None), "the observation"))

    def _see(self, rollout: Rollout, row: int, seen: Any) -> None:
        tree_map(lambda column, values: column[row].copy_(values), rollout.observation, seen)

    def _tensors(self, values: Any, what: str) -> Any:
        """Arrays of a library as tensors, which share their memory. Raises ValueError for those of another device."""
        if isinstance(values, tuple):
            values = {str(place): member for place, member in enumerate(values)}
        if isinstance(values, dict):
            return Group({name: self._tensors(member, f"{what} {name!r}") for name, member in values.items()})
        if isinstance(values, Tensor):
            tensor = values
        elif isinstance(values, np.ndarray) or not hasattr(values, "__dlpack__"):
            tensor = torch.as_tensor(values)
        else:
            tensor = torch.from_dlpack(values)
        if tensor.device != self.device:
            raise ValueError(f"{what} of {self.name} is on {tensor.device}, and its worlds say that {self.device} is")
        return tensor

    def _warn(self, truncated: Tensor) -> None:
        if not self._warned and not (self._on_cpu and not bool(truncated.any())):
            self._warned = True
            warnings.warn(
                f"{self.name} does not say what was seen last of an episode that its time limit ended: such endings "
                "count as terminations, and values are learned a little too low",
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Nothing: libraries have no common way to save their worlds."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Begin a new episode everywhere: the next row is dead."""
        self._begin_anew = True

    def close(self) -> None:
        """Close the library's worlds."""
        self.source.close()


def _where(mask: Tensor, values: Any, others: Any) -> Any:
    """`values` where the mask [N] is set, `others` elsewhere, member by member for a Dict."""
    return tree_map(lambda x, y: torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, y), values, others)


def threads(num_envs: int) -> int:
    """As many threads as there are cores for this process, and no more than worlds."""
    return min(cores(), num_envs)
