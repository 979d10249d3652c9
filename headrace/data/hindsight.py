"""Hindsight experience replay: replaces the desired goal by goals that were reached in the same episode.

Andrychowicz et al. 2017, arXiv:1707.01495, section 3.2 and 4.5: strategies "future", "final" and "episode".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.types import StateDict
from headrace.data.replay import DRAWS, Batch, Replay, take
from headrace.data.rollout import Rollout

OfGoals = Callable[[Tensor, Tensor], Tensor]  # of achieved and desired goals, [B, g] each -> [B]


@dataclass(frozen=True)
class Goals:
    """Positions of the goals in a vector observation, and the environment's reward and termination for a goal.

    reward: a function of achieved and desired goals, float32 [B]. terminated: the same for the end of the episode, bool
    [B]; None if the end does not depend on goals.
    """

    achieved: slice
    desired: slice
    reward: OfGoals
    terminated: OfGoals | None = None


class GoalReplay(Replay):
    """A Replay that replaces the desired goal in k of k + 1 transitions by a goal that was achieved in the same
    episode.

    like, capacity: as the Replay's, with vector observations. hindsight: k. which: "future" draws uniformly from the
    goals achieved later in the episode, "episode" from all of its goals; "final" takes the last goal, once the episode
    has ended. A row keeps its goal if the first rows of its episode have been overwritten. append() raises ValueError
    for rows of asynchronous actors, since several rollouts of one environment may then arrive at once.
    """

    draws = DRAWS + 2  # whether the goal is replaced, and by which one

    def __init__(self, like: Rollout, capacity: int, goals: Goals, hindsight: int, which: str = "future") -> None:
        super().__init__(like, capacity)
        self.goals, self.fraction, self.which = goals, hindsight / (hindsight + 1), which
        shape, device = (self.length * self.num_envs,), like.device
        self._began = torch.full(shape, -1, dtype=torch.int64, device=device)  # step at which a row's episode began
        self._last = torch.full(shape, -1, dtype=torch.int64, device=device)  # at first rows: the episode's last step
        self._running = torch.full((self.num_envs,), -1, dtype=torch.int64, device=device)  # of the present episode

    def _write(self, rollout: Rollout, env: Tensor, begin: Tensor) -> None:
        if rollout.env is not None:
            raise ValueError("hindsight is for rollouts that continue the one before: leave out collection='async'")
        before = self.ring.valid.flatten()[self._row(begin - 1, env)]
        super()._write(rollout, env, begin)
        times = begin + torch.arange(rollout.num_steps, device=begin.device).unsqueeze(1)
        self._trace(rollout.valid[: rollout.num_steps], times, before)

    def _row(self, time: Tensor, env: Tensor) -> Tensor:
        """The row of the ring in which a step of an environment is stored."""
        return time % self.length * self.num_envs + env

    def _trace(self, valid: Tensor, times: Tensor, before: Tensor) -> None:
        """Record the episode of each row. valid: [T, N]; times: their steps; before: `valid` of the row before them."""
        starts = valid & ~torch.cat((before.unsqueeze(0), valid[:-1]))
        began = torch.where(starts, times, -1)
        began[0] = torch.where(starts[0], times[0], self._running)
        began = began.cummax(0).values
        self._running.copy_(began[-1])
        self._began.index_copy_(0, self._row(times, self._envs).flatten(), began.flatten())
        known = torch.where(valid & (began >= 0), times, -1)
        first = self._row(began.clamp(min=0), self._envs)
        self._last.scatter_reduce_(0, first.flatten(), known.flatten(), "amax")

    def sample(self, random: Tensor, gamma: float) -> Batch:
        """Transitions drawn uniformly, with their desired goals replaced. random: [..., draws]."""
        rows = self.draw(random[..., :DRAWS])
        batch, (replaced, goal) = self.gather(rows, gamma), self._later(rows, random[..., DRAWS:])
        after, chosen = batch.next_observation, replaced.unsqueeze(-1)
        for observation in (batch.observation, after):
            desired = observation[..., self.goals.desired]
            desired.copy_(torch.where(chosen, goal, desired))
        achieved = after[..., self.goals.achieved]
        reward = torch.where(replaced, self._of_goals(self.goals.reward, achieved, goal), batch.reward)
        discount = batch.discount
        if self.goals.terminated is not None:
            terminated = self._of_goals(self.goals.terminated, achieved, goal).bool()
            discount = torch.where(replaced, gamma * ~terminated, discount)
        return batch._replace(reward=reward, discount=discount)

    def _later(self, rows: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the rows whose goal is replaced, and for each row a goal that was achieved in its episode."""
        env = rows % self.num_envs
        newest = self.written[env] - 1
        time = newest - (newest - rows // self.num_envs) % self.length
        began, oldest = self._began[rows], self.oldest()[env]
        last = self._last[self._row(began.clamp(min=0), env)]
        whole = (began >= 0) & ((began > oldest) | (oldest == 0)) & (last >= time)
        if self.which == "final":
            whole = whole & (last < newest)
        first = {"future": time, "episode": began, "final": last}[self.which]
        later = first + ((last - first + 1) * random[..., 1]).long().clamp(min=0)
        later = torch.where(whole, torch.minimum(later, last), time)
        goal = take(self.ring.observation, self._row(later + 1, env))[..., self.goals.achieved]
        return whole & (random[..., 0] < self.fraction), goal

    def _of_goals(self, function: OfGoals, achieved: Tensor, desired: Tensor) -> Tensor:
        found = function(achieved.reshape(-1, achieved.shape[-1]), desired.reshape(-1, desired.shape[-1]))
        return found.reshape(achieved.shape[:-1]).to(achieved.dtype)

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        first, stop = int(self.oldest()[0]), int(self.written[0])
        for table in (self._began, self._last, self._running):
            table.fill_(-1)
        if stop > first:
            times = torch.arange(first, stop, device=self.ring.device).unsqueeze(1)
            valid = self.ring.valid[times[:, 0] % self.length]
            # the beginning of the oldest row's episode is no longer known
            before = torch.full_like(valid[0], first > 0)
            self._trace(valid, times.expand_as(valid), before)
