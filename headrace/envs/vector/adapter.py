"""Vector environments of libraries and simulators behind headrace.envs.base.Env.

Libraries begin new episodes in three ways: at the next step, in the step that ends the old one, or on request. Rollouts
store next-step autoreset (see headrace.data.rollout); the other two modes are converted here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.core.cores import cores
from headrace.core.stopping import close
from headrace.core.text import shown
from headrace.core.types import StateDict
from headrace.data.rollout import Column, Columns, Group, Rollout, Value, tree_map
from headrace.data.spaces import Sample, Space, action_column, observation_column
from headrace.envs.base import Env, Round
from headrace.envs.gym.learned import learned_of
from headrace.envs.gym.unread import IN_OBSERVATIONS, tell_unread, unread_end, unread_mask
from headrace.envs.vector.infos import EndingInfos

SEEDS = 2**31 - 2**20  # libraries take seeds of 31 bits, and many give environment i the seed + i


class Autoreset(Enum):
    """When a library begins the next episode after an ending. Names and values are Gymnasium's."""

    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"
    DISABLED = "Disabled"


class Outcome(NamedTuple):
    """The results of a step of N environments: arrays, tensors, or objects with DLPack; dicts or tuples of these."""

    observation: Sample  # [N, ...]
    reward: Sample  # [N]
    terminated: Sample  # bool [N]
    truncated: Sample  # bool [N]
    final: Sample = None  # [N, ...]: final observations where an episode ended. Only of SAME_STEP; None if not known
    infos: Mapping[str, Sample] | None = None  # arrays [N], as of gymnasium.vector; None from those that give none
    own_reward: Sample = None  # [N], before wrappers changed it, in memory of its own; None where none does


class Source(Protocol):
    """N environments of one library, for a VectorAdapter."""

    name: str
    num_envs: int
    device: torch.device
    observation_space: Space  # of one environment
    action_space: Space  # of one environment
    max_steps: int | None
    autoreset: Autoreset
    resets_some: bool  # whether reset_some() works

    def reset(self, seed: int | None, first: int = 0) -> Sample:
        """Begin an episode in every environment; return observations [N, ...].

        first: number of environment 0 among those of a larger set, which has other seeds.
        """

    def reset_some(self, mask: Tensor) -> Sample:
        """Begin an episode in the environments of a mask, bool [N]; return observations [N, ...], valid for these."""

    def step(self, action: Tensor) -> Outcome:
        """Step every environment. action: [N, ...], a row of the rollout's column."""

    def close(self) -> None:
        """Free what the environments hold."""


class VectorAdapter(Env):
    """An Env (headrace.envs.base) of a library's environments.

    clip_reward: bounds of the rewards to learn from, as (-1, 1) for Atari; reported returns are not clipped.

    At a masked row, environments that the library does not reset itself are stepped with the others, unseen, and then
    reset. Where a library cannot reset some of its environments, the first step of an episode of SAME_STEP falls into
    the masked row: it is not learned from, and counts in the return.
    A library without final observations gets a warning, and its truncations count as terminations.
    Environments cannot be saved: after load_state_dict() each begins a new episode.
    Raises TypeError for spaces that are not supported.
    """

    backend = "vector"

    def __init__(self, source: Source, clip_reward: tuple[float, float] | None = None) -> None:
        self._column = observation_column(source.observation_space)
        action_column(source.action_space)
        self.source, self.clip_reward = source, clip_reward
        self.name, self.num_envs, self.device = source.name, source.num_envs, torch.device(source.device)
        self.observation_space, self.action_space = source.observation_space, source.action_space
        self.max_steps = source.max_steps
        self._on_cpu = self.device.type == "cpu"
        self.learned = learned_of(getattr(source, "env", None))
        self._reset_all = self._warned = False
        self._looked = self.device.type != "cpu"  # at infos that nothing reads: elsewhere that would wait for them
        self._clear()

    def _clear(self) -> None:
        """No episode has begun."""
        self._returns = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int32, device=self.device)
        # those whose episode ended at the last step: NEXT_STEP resets them at the next step, SAME_STEP already has
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._infos, self._every = EndingInfos(self.num_envs), torch.arange(self.num_envs)

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode in every environment; write observation[0] and valid[0]. Same seed, same episodes."""
        self._begin_all(rollout, seed, 0)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        """See Env. An episode depends on its number alone where the library gives environment i the seed + i."""
        self._begin_all(rollout, seed, episodes.first)

    def _begin_all(self, rollout: Rollout, seed: int, first: int) -> None:
        self._clear()
        self._reset_all = False
        rollout.observation[0].copy_(self._observed(self.source.reset(seed, first), "the observation"))
        rollout.valid[0] = True

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""
        if self._reset_all:
            self._start_over(rollout, t)
            return
        valid = rollout.valid[t]
        # on another device, asking would wait for it: there reset_some() is called with an empty mask as well
        some = not self._on_cpu or not bool(valid.all())
        if some and self.source.autoreset is Autoreset.DISABLED:
            self.source.reset_some(~valid)  # they may not be stepped as they are
        outcome = self.source.step(rollout.action[t])
        reward = self._numbers(outcome.reward, "the reward")
        terminated = self._numbers(outcome.terminated, "terminated").bool()
        truncated = self._numbers(outcome.truncated, "truncated").bool()
        ended = terminated | truncated
        if not self._looked:
            self._look(rollout, outcome.infos or {}, bool(ended.any()))
        if "info" in rollout.columns:
            self._infos.put(rollout, t, self._every)
            self._infos.keep(outcome.infos, ended & valid, self._every)
        if self.source.autoreset is Autoreset.SAME_STEP and outcome.final is None:
            self._warn(truncated)
            terminated, truncated = ended, torch.zeros_like(truncated)
        if some:
            # reset_some() may write into the library's arrays
            reward, terminated, truncated = (x.clone() for x in (reward, terminated, truncated))
            reset = self._see_some(rollout, t, outcome, ended)
            self._account_for_some(rollout, t, self._counted(outcome, reward), ended, reset)
            reward, terminated, truncated = (x * valid for x in (reward, terminated, truncated))
        else:
            rollout.observation[t + 1].copy_(self._last_seen(outcome, ended))
            rollout.valid[t + 1] = ~ended
            self._ended = ended
            self._returns += self._counted(outcome, reward)
            self._lengths += 1
        rollout.reward[t] = reward if self.clip_reward is None else reward.clamp(*self.clip_reward)
        rollout.terminated[t], rollout.truncated[t] = terminated, truncated

    def _counted(self, outcome: Outcome, reward: Tensor) -> Tensor:
        """The rewards that returns are sums of."""
        return reward if outcome.own_reward is None else self._numbers(outcome.own_reward, "the reward")

    def _look(self, rollout: Rollout, infos: Mapping[str, Sample], ended: bool) -> None:
        """Say what infos have that is not read: once, in a training, whose rollouts have more columns than these."""
        if not (training := rollout.columns.keys() > self.columns().keys()) or ended:
            self._looked = True
        if not training:
            return
        tell_unread(self.name, unread_mask(infos, self.observation_space, self.action_space, IN_OBSERVATIONS))
        if ended and "is_success" in infos.get("final_info", infos) and "info" not in rollout.columns:
            tell_unread(self.name, unread_end({"is_success": True}, False))

    def _see_some(self, rollout: Rollout, t: int, outcome: Outcome, ended: Tensor) -> Tensor:
        """Write the row after one with masked environments; return those that were reset here, bool [N]."""
        source, valid = self.source, rollout.valid[t]
        next_step = source.autoreset is Autoreset.NEXT_STEP
        row = rollout.observation[t + 1]
        row.copy_(self._last_seen(outcome, ended & valid))  # before reset_some() may write into the same arrays
        reset = ~valid & ~self._ended if next_step else ~valid
        if not source.resets_some:
            reset = torch.zeros_like(reset)
        elif not self._on_cpu or bool(reset.any()):
            row.copy_(_where(reset, self._observed(source.reset_some(reset), "the observation"), row))
        # environments that the library reset in this row have begun an episode
        rollout.valid[t + 1] = reset | ~ended if next_step else ~valid | ~ended
        return reset

    def _account_for_some(self, rollout: Rollout, t: int, reward: Tensor, ended: Tensor, reset: Tensor) -> None:
        """Returns and lengths at a row with masked environments."""
        masked = ~rollout.valid[t]
        over = masked & (reset | self._ended)  # else the environment could not be reset, and continues
        rollout.episode_return[t] = self._returns
        rollout.episode_length[t] = self._lengths * over
        stepped = ~over
        if self.source.autoreset is Autoreset.SAME_STEP:
            stepped = ~masked | ~reset & ~ended
            over = over | masked & ended
        self._returns = torch.where(over, 0.0, self._returns) + reward * stepped
        self._lengths = torch.where(over, 0, self._lengths) + stepped.int()
        self._ended = ended & ~reset if self.source.autoreset is Autoreset.NEXT_STEP else ended & ~masked

    def _last_seen(self, outcome: Outcome, ended: Tensor) -> Value:
        """Observations after a step; of episodes that ended, the final ones."""
        seen = self._observed(outcome.observation, "the observation")
        if outcome.final is None or (self._on_cpu and not bool(ended.any())):
            return seen
        return _where(ended, self._observed(outcome.final, "the final observation"), seen)

    def _start_over(self, rollout: Rollout, t: int) -> None:
        """Reset every environment at row t, which is masked."""
        self._reset_all = False
        rollout.valid[t], rollout.valid[t + 1] = False, True
        rollout.episode_return[t], rollout.episode_length[t] = self._returns, self._lengths
        rollout.reward[t], rollout.terminated[t], rollout.truncated[t] = 0.0, False, False
        if "info" in rollout.columns:
            self._infos.put(rollout, t, self._every)
        self._clear()
        rollout.observation[t + 1].copy_(self._observed(self.source.reset(None), "the observation"))

    def _observed(self, values: Sample, what: str) -> Value:
        """Observations of all environments as tensors; see _tensors(). Raises ValueError for another shape, which an
        assignment would stretch: one observation to those of all environments."""
        seen = self._tensors(values, what)
        self._check_shape(seen, self._column, what)
        return seen

    def _check_shape(self, value: Value, column: Column | Columns, what: str) -> None:
        if isinstance(value, Tensor):
            assert isinstance(column, Column)
            self._check(value, (self.num_envs, *column.shape), what)
            return
        assert isinstance(column, dict)
        for name, member in column.items():
            self._check_shape(getattr(value, name), member, f"{what} {name!r}")

    def _numbers(self, values: Sample, what: str) -> Tensor:
        """One number of each environment; raises as _observed() does."""
        tensor = self._tensor(values, what)
        self._check(tensor, (self.num_envs,), what)
        return tensor

    def _check(self, value: Tensor, shape: tuple[int, ...], what: str) -> None:
        if value.shape != shape:
            raise ValueError(
                f"{what} of {self.name} has the shape {list(value.shape)}: give that of {self.num_envs} environments, "
                f"{list(shape)}"
            )

    def _tensors(self, values: Sample, what: str) -> Value:
        """Arrays of a library as tensors, member by member for a dict or tuple; see _tensor()."""
        if isinstance(values, tuple):
            values = {str(place): member for place, member in enumerate(values)}
        if isinstance(values, dict):
            return Group({name: self._tensors(member, f"{what} {name!r}") for name, member in values.items()})
        return self._tensor(values, what)

    def _tensor(self, values: Sample, what: str) -> Tensor:
        """An array of a library as a tensor, which shares its memory. Raises ValueError for one of another device,
        TypeError for what is no array of numbers."""
        known = isinstance(values, Tensor | np.ndarray) or not hasattr(values, "__dlpack__")
        try:
            tensor = torch.as_tensor(values) if known else torch.from_dlpack(values)
        except (TypeError, ValueError) as error:  # of text, of objects, of lists of these
            raise TypeError(f"{what} of {self.name} is {shown(values, 60)}, which is no array of numbers") from error
        if tensor.device != self.device:
            raise ValueError(f"{what} of {self.name} is on {tensor.device}, but its environments are on {self.device}")
        return tensor

    def _warn(self, truncated: Tensor) -> None:
        if not self._warned and not (self._on_cpu and not bool(truncated.any())):
            self._warned = True
            warnings.warn(
                f"{self.name} gives no final observations of episodes that end at the time limit: such endings "
                "count as terminations, and values are learned a little too low",
                stacklevel=3,
            )

    def state_dict(self) -> StateDict:
        """Empty: libraries have no common way to save their environments."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Begin a new episode everywhere: the next row is masked."""
        self._reset_all = True

    def close(self) -> None:
        """Close the library's environments."""
        close(self.source, f"the environments of {self.name}")


def _where(mask: Tensor, values: Value, others: Value) -> Value:
    """`values` where the mask [N] is set, `others` elsewhere, member by member for a Dict."""
    return tree_map(lambda x, y: torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, y), values, others)


def threads(num_envs: int) -> int:
    """The number of threads: that of cores for this process, at most one per environment."""
    return min(cores(), num_envs)
