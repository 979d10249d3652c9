"""Vector environments of libraries and simulators behind headrace.envs.base.Env.

Libraries begin new episodes in three ways: at the next step, in the step that ends the old one, or on request. Rollouts
store next-step autoreset (see headrace.data.rollout); the other two modes are converted here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
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
from headrace.data.spaces import Dict, Sample, Space, action_column, observation_column
from headrace.envs.base import Env, Round
from headrace.envs.gym.learned import learned_of
from headrace.envs.gym.unread import IN_OBSERVATIONS, tell_unread, unread_end, unread_mask
from headrace.envs.gym.wrapping import members_left
from headrace.envs.vector.infos import EndingInfos

SEEDS = 2**31 - 2**20  # libraries take seeds of 31 bits, and many use seed + i for environment i


class Autoreset(Enum):
    """The time at which a library begins the next episode. Names and values are Gymnasium's."""

    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"
    DISABLED = "Disabled"


class Outcome(NamedTuple):
    """The results of a step of N environments: arrays, tensors, or objects with DLPack; dicts or tuples of these."""

    observation: Sample  # [N, ...]
    reward: Sample  # [N]
    terminated: Sample  # bool [N]
    truncated: Sample  # bool [N]
    final: Sample = None  # [N, ...]: final observations of ended episodes. Only with SAME_STEP; None if unknown
    infos: Mapping[str, Sample] | None = None  # arrays [N], as in gymnasium.vector; None if there are none
    own_reward: Sample = None  # [N], a copy from before wrappers changed it; None if none does


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
    # Optional: `single`: whether a process can have these environments only once; `terms`: numbers to log
    # (headrace.envs.vector.terms)

    def reset(self, seed: int | None, first: int = 0) -> Sample:
        """Begin an episode in every environment; return observations [N, ...].

        first: number of environment 0 in a larger set, which determines the seeds.
        """

    def reset_some(self, mask: Tensor) -> Sample:
        """Begin an episode in the environments of a mask, bool [N]; return observations [N, ...], valid for these."""

    def step(self, action: Tensor) -> Outcome:
        """Step every environment. action: [N, ...], a row of the rollout's column."""

    def close(self) -> None:
        """Free what the environments hold."""


class VectorAdapter(Env):
    """An Env (headrace.envs.base) of a library's environments.

    clip_reward: bounds of the rewards for learning, such as (-1, 1) for Atari; reported returns are not clipped.
    ignore: members of a Dict observation that are left out.

    Each episode is reset once: by the library, or with DISABLED by reset_some() at its masked row. All environments of
    a library are stepped together. So with SAME_STEP and DISABLED the first step of an episode falls into the masked
    row if another environment is stepped there. That step is not learned from, but counts in the return.
    For a library without final observations there is a warning, and truncated episodes use the observation before.
    Environments cannot be saved: after load_state_dict() each begins a new episode.
    Raises TypeError for spaces that are not supported.
    """

    backend = "vector"

    def __init__(
        self, source: Source, clip_reward: tuple[float, float] | None = None, ignore: Sequence[str] = ()
    ) -> None:
        seen = source.observation_space
        if ignore:
            seen = Dict({name: seen[name] for name in members_left(seen, ignore, source.name)})  # type: ignore[index]
        self._column = observation_column(seen)
        action_column(source.action_space)
        self.source, self.clip_reward = source, clip_reward
        self.name, self.num_envs, self.device = source.name, source.num_envs, torch.device(source.device)
        self.observation_space, self.action_space, self._ignored = seen, source.action_space, tuple(ignore)
        self.max_steps, self.single = source.max_steps, bool(getattr(source, "single", False))
        self.made_with = {"ignore": self._ignored} if ignore else {}
        self._on_cpu = self.device.type == "cpu"
        # whether each row is searched for masked environments, which have to be reset with DISABLED
        self._looks = self._on_cpu or source.autoreset is Autoreset.DISABLED
        self.learned, self._terms = learned_of(getattr(source, "env", None)), getattr(source, "terms", None)
        self._reset_all = self._warned = False
        self._fresh: Sample = None  # first observations of episodes without a step so far
        self._looked = self.device.type != "cpu"  # for unread infos; on other devices that would wait for them
        self._clear()

    def _clear(self) -> None:
        """No episode has begun."""
        self._returns = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int32, device=self.device)
        # environments whose episode ended at the last step: NEXT_STEP resets them at the next step, SAME_STEP has
        # already
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._infos, self._every = EndingInfos(self.num_envs), torch.arange(self.num_envs)

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode in every environment; write observation[0] and valid[0]. Same seed, same episodes."""
        self._begin_all(rollout, seed, self.first_env)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        """See Env. An episode depends only on its number, if the library uses seed + i for environment i."""
        self._begin_all(rollout, seed, self.first_env + episodes.first)

    def _begin_all(self, rollout: Rollout, seed: int, first: int) -> None:
        self._clear()
        self._reset_all = False
        self._fresh = self.source.reset(seed, first)
        rollout.observation[0].copy_(self._observed(self._fresh, "the observation"))
        rollout.valid[0] = True

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""
        fresh, self._fresh = self._fresh, None
        if t == 0 and self._terms is not None:
            self._terms.clear()
        if self._reset_all:
            self._reset_all = rollout.valid[t] = False
            self._start_over(rollout, t, self.source.reset(None) if fresh is None else fresh)
            return
        valid, source = rollout.valid[t], self.source
        some = not self._looks or not bool(valid.all())
        if some and source.autoreset is Autoreset.DISABLED:
            if not bool(valid.any()):  # no environment is left to be stepped
                self._start_over(rollout, t, source.reset_some(~valid))
                return
            if bool((due := ~valid & self._ended).any()):  # they must be reset before a step
                source.reset_some(due)
        outcome = source.step(rollout.action[t])
        reward = self._numbers(outcome.reward, "the reward")
        terminated = self._numbers(outcome.terminated, "terminated").bool()
        truncated = self._numbers(outcome.truncated, "truncated").bool()
        ended = terminated | truncated
        if not self._looked:
            self._look(rollout, outcome.infos or {}, bool(ended.any()))
        if "info" in rollout.columns:
            self._infos.put(rollout, t, self._every)
            self._infos.keep(outcome.infos, ended & valid, self._every)
        rollout.observation[t + 1].copy_(self._last_seen(rollout, t, outcome, ended & valid, truncated & valid))
        if some:
            # a reset may write into the library's arrays
            reward, terminated, truncated = (x.clone() for x in (reward, terminated, truncated))
            self._account_for_some(rollout, t, self._counted(outcome, reward), ended)
            reward = torch.where(valid, reward, 0)  # drops the library's values there, also NaN
            terminated, truncated = terminated & valid, truncated & valid
        else:
            rollout.valid[t + 1] = ~ended
            self._ended = ended
            self._returns += self._counted(outcome, reward)
            self._lengths += 1
        rollout.reward[t] = reward if self.clip_reward is None else reward.clamp(*self.clip_reward)
        rollout.terminated[t], rollout.truncated[t] = terminated, truncated

    def _counted(self, outcome: Outcome, reward: Tensor) -> Tensor:
        """The rewards whose sums are returns."""
        return reward if outcome.own_reward is None else self._numbers(outcome.own_reward, "the reward")

    def _look(self, rollout: Rollout, infos: Mapping[str, Sample], ended: bool) -> None:
        """Report unread entries of infos, once, in a training (its rollouts have additional columns)."""
        if not (training := not rollout.columns.keys() <= {*self.columns(), "info"}) or ended:
            self._looked = True
        self._infos.numbers.quiet = not training
        if not training:
            return
        tell_unread(self.name, unread_mask(infos, self.observation_space, self.action_space, IN_OBSERVATIONS))
        if ended and "is_success" in infos.get("final_info", infos) and "info" not in rollout.columns:
            tell_unread(self.name, unread_end({"is_success": True}, False))

    def _account_for_some(self, rollout: Rollout, t: int, reward: Tensor, ended: Tensor) -> None:
        """Returns, lengths and the next row's `valid` at a row with masked environments."""
        masked = ~rollout.valid[t]
        reset = self._reset_some(rollout, t, masked, ended)
        over = masked & (reset | self._ended)  # others could not be reset, and continue
        rollout.episode_return[t] = self._returns
        rollout.episode_length[t] = self._lengths * over
        if self.source.autoreset is Autoreset.NEXT_STEP:
            unseen = reset | masked & self._ended  # the library resets in this step
            rollout.valid[t + 1], self._ended = reset | ~ended, ended & ~reset
        else:
            unseen = reset | masked & ended  # the next episode has begun
            rollout.valid[t + 1], self._ended = masked | ~ended, ended & ~masked
        self._returns = torch.where(unseen, 0.0, torch.where(over, 0.0, self._returns) + reward)
        self._lengths = torch.where(unseen, 0, torch.where(over, 0, self._lengths) + 1)

    def _reset_some(self, rollout: Rollout, t: int, masked: Tensor, ended: Tensor) -> Tensor:
        """Reset masked environments after their step, which is not used. Returns the mask of those reset, bool [N].

        They are environments that were cut off between two rollouts (headrace.parallel.stagger), and with DISABLED also
        those whose episode ended in this step.
        """
        source, due = self.source, masked & ~self._ended
        if source.autoreset is Autoreset.SAME_STEP:
            due = due & ~ended
        elif source.autoreset is Autoreset.DISABLED:
            due = due | masked & ended
        if not source.resets_some:
            return torch.zeros_like(due)
        if (self._looks or t == 0) and bool(due.any()):  # on another device, asking waits for it
            row = rollout.observation[t + 1]
            row.copy_(_where(due, self._observed(source.reset_some(due), "the observation"), row))
        return due

    def _last_seen(self, rollout: Rollout, t: int, outcome: Outcome, ended: Tensor, truncated: Tensor) -> Value:
        """Observations after a step. For ended episodes, the final ones or, without these, those before the step."""
        seen, final = self._observed(outcome.observation, "the observation"), outcome.final
        if final is None and self.source.autoreset is not Autoreset.SAME_STEP:
            return seen
        if self._on_cpu and not bool(ended.any()):
            return seen
        if final is not None:
            return _where(ended, self._observed(final, "the final observation"), seen)
        self._warn(truncated)
        return _where(ended, rollout.observation[t], seen)

    def _start_over(self, rollout: Rollout, t: int, first: Sample) -> None:
        """Begin an episode in every environment at row t, which is masked. first: their observations [N, ...]."""
        rollout.valid[t + 1] = True
        rollout.episode_return[t], rollout.episode_length[t] = self._returns, self._lengths
        rollout.reward[t], rollout.terminated[t], rollout.truncated[t] = 0.0, False, False
        if "info" in rollout.columns:
            self._infos.put(rollout, t, self._every)
        self._clear()
        rollout.observation[t + 1].copy_(self._observed(first, "the observation"))

    def _observed(self, values: Sample, what: str) -> Value:
        """Observations of all environments as tensors; see _tensors(). Raises ValueError for another shape, since an
        assignment would broadcast one observation to all environments."""
        if self._ignored and isinstance(values, dict):
            values = {name: member for name, member in values.items() if name not in self._ignored}
        seen = self._tensors(values, what)
        self._check_shape(seen, self._column, what)
        return seen

    def _check_shape(self, value: Value, column: Column | Columns, what: str) -> None:
        if isinstance(value, Tensor) and isinstance(column, Column):
            self._check(value, (self.num_envs, *column.shape), what)
            return
        if isinstance(value, Tensor) or isinstance(column, Column):
            given, due = ("one array", "is not") if isinstance(value, Tensor) else ("a dict or tuple", "is one array")
            raise TypeError(
                f"{what} of {self.name} is {given}, and its observation_space {due}: give what the space has, and no "
                "info beside it"
            )
        for name, member in column.items():
            self._check_shape(getattr(value, name), member, f"{what} {name!r}")

    def _numbers(self, values: Sample, what: str) -> Tensor:
        """A number for each environment; raises as _observed() does."""
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
        """An array of a library as a tensor, which shares its memory. Raises ValueError for one on another device,
        TypeError unless it is an array of numbers."""
        try:
            tensor = _as_tensor(values)
        except (TypeError, ValueError) as error:  # of text, of objects, of lists of these
            raise TypeError(f"{what} of {self.name} is {shown(values, 60)}, which is no array of numbers") from error
        if tensor.device != self.device:
            raise ValueError(f"{what} of {self.name} is on {tensor.device}, but its environments are on {self.device}")
        return tensor

    def _warn(self, truncated: Tensor) -> None:
        if not self._warned and not (self._on_cpu and not bool(truncated.any())):
            self._warned = True
            warnings.warn(
                f"{self.name} gives no final observations: the return of an episode that its time limit ends is "
                "completed by the value of the last observation that was seen, the one before its last step",
                stacklevel=4,
            )

    def metrics(self) -> dict[str, float]:
        """Means over the last rollout of the numbers that a simulator logs."""
        return {} if self._terms is None else self._terms.mean()

    def state_dict(self) -> StateDict:
        """Return an empty state: libraries have no common way to save their environments."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Begin a new episode everywhere: the next row is masked."""
        self._reset_all = True

    def close(self) -> None:
        """Close the library's environments."""
        close(self.source, f"the environments of {self.name}")


def _as_tensor(values: Sample) -> Tensor:
    """A tensor of an array, which shares its memory."""
    if type(values) is np.ndarray and values.flags.writeable:
        return torch.from_numpy(values)  # in a third of the time that as_tensor() takes
    known = isinstance(values, Tensor | np.ndarray) or not hasattr(values, "__dlpack__")
    return torch.as_tensor(values) if known else torch.from_dlpack(values)


def _where(mask: Tensor, values: Value, others: Value) -> Value:
    """`values` where the mask [N] is True, `others` elsewhere, member by member for a Dict."""
    return tree_map(lambda x, y: torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, y), values, others)


def threads(num_envs: int) -> int:
    """The number of threads: that of cores for this process, at most one per environment."""
    return min(cores(), num_envs)
