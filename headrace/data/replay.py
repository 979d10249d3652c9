"""The last steps of N environments in a ring, from which off-policy algorithms learn again and again.

Rows are a rollout's; the observation that follows row t is that of row t + 1, so that each is stored once. Nothing
here waits for the device: the write head is a tensor, shapes never depend on data, and what must not be drawn (dead
rows) weighs nothing in a batch.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.data.rollout import Column, Columns, Rollout, tree_map

KEPT = ("observation", "valid", "action", "reward", "terminated", "truncated")
TRIES = 3  # rows looked at for each one drawn, of which the first live one is taken
DRAWS = TRIES + 1  # uniform draws that drawing a row uses
_MIB = 2**20


class Batch(NamedTuple):
    """Transitions of up to n steps. The leading shape, here [B], is that of the rows asked for.

    What a policy with memory learns from has histories in place of observations: see headrace.data.sequences.
    """

    observation: Any  # [B, ...]
    action: Tensor  # [B, ...]
    reward: Tensor  # [B]: sum of gamma^k reward over the steps taken
    discount: Tensor  # [B]: of the value of next_observation: gamma^steps, 0 after a termination
    next_observation: Any  # [B, ...]: after those steps
    weight: Tensor  # [B]: 1, and 0 for masked rows; a loss is sum(weight * x) over the number of those above 0
    rows: Tensor  # int64 [B]: where they lie in the ring, time * N + env

    def __getitem__(self, index: Any) -> Any:
        """Of a batch [G, B]: its part `index`, a Batch [B]."""
        return Batch(*(tree_map(lambda x: x[index], column) for column in self._asdict().values()))


class Replay:
    """A ring of `capacity` steps, in all environments together, on one device.

    like: the rollout whose rows it will keep. extra: names of columns to keep beside those of every algorithm.
    num_steps: n of the n-step returns that will be asked for.
    Raises ValueError where the ring is too short to hold anything that can be drawn.
    """

    def __init__(self, like: Rollout, capacity: int, num_steps: int = 1, extra: tuple[str, ...] = ()) -> None:
        self.num_steps, self.num_envs = num_steps, like.num_envs
        self.columns = kept_columns(like.columns, extra)
        self.length = self.rounded(capacity // like.num_envs)
        least = like.num_steps + self.least
        if self.length < least:
            raise ValueError(
                f"a replay of {capacity} steps is {self.length} steps of {like.num_envs} envs, and at least {least} "
                f"are needed: give a capacity of {least * like.num_envs} or more, or fewer envs"
            )
        self.ring = Rollout(self.length, like.num_envs, self.columns, like.device)
        self.written = torch.zeros((), dtype=torch.int64, device=like.device)  # rows since the beginning

    def rounded(self, length: int) -> int:
        """The longest ring of a length that is this or less."""
        return length

    @property
    def n_step_span(self) -> int:
        """Steps from the first row that is looked at until all is known that learning from it takes."""
        return self.num_steps

    @property
    def least(self) -> int:
        """Rows, beside those of a rollout, without which nothing could be drawn."""
        return self.n_step_span + 1

    def append(self, rollout: Rollout) -> None:
        """Write the T rows of a rollout over the oldest, and what is seen after them as the row that follows."""
        steps = rollout.num_steps
        rows = (self.written + torch.arange(steps + 1, device=self.ring.device)) % self.length
        for name in self.columns:
            # a bootstrap row is written too: the next rollout begins with the same
            tree_map(
                lambda ring, source: ring.index_copy_(0, rows[: len(source)], source),
                getattr(self.ring, name),
                getattr(rollout, name),
            )
        self.written += steps

    def draw(self, random: Tensor) -> Tensor:
        """Rows drawn alike from all that can be, by uniform draws in [0, 1) of [..., DRAWS]: int64 [...].

        Drawn are rows whose n-step successor has been written; there must be one. Of TRIES rows the first live one is
        taken; where none is live, a dead one, whose weight is 0.
        """
        end = self.written - self.num_steps + 1  # one past the last that may be drawn
        oldest = (self.written - self.length + 1).clamp(min=0)
        choices = ((end - oldest) * self.num_envs).clamp(min=1)
        start, size = oldest % self.length * self.num_envs, self.length * self.num_envs
        # float32 cannot tell the rows of a large ring apart: the last draw gives the digits behind those of the others
        fine = random[..., TRIES].double() * 2.0**-24
        valid = self.ring.valid.flatten()

        def pick(which: int) -> Tensor:
            row = ((random[..., which] + fine) * choices).long() + start
            return torch.where(row < size, row, row - size)

        drawn = pick(0)
        for which in range(1, TRIES):
            drawn = torch.where(valid[drawn], drawn, pick(which))
        return drawn

    def gather(self, rows: Tensor, gamma: float) -> Batch:
        """The transitions of n steps that begin at `rows`, of any shape, cut short where an episode ends within them.

        The n-step return of Sutton 1988; after a truncation the value of the final observation goes on.
        """
        reward, discount, steps = self._ahead(rows, gamma)
        after = (rows + steps * self.num_envs) % (self.length * self.num_envs)
        take = self._take
        observation, next_observation = take("observation", rows), take("observation", after)
        weight = take("valid", rows).float()
        return Batch(observation, take("action", rows), reward, discount, next_observation, weight, rows)

    def _ahead(self, rows: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
        """Reward and discount of the transitions that begin at `rows`, and how many steps they take, in its shape."""
        ring = self.ring
        reward_column, terminated_column = ring.reward.flatten(), ring.terminated.flatten()
        truncated_column = ring.truncated.flatten()
        reward = torch.zeros(rows.shape, device=ring.device)
        discount = torch.ones_like(reward)
        at, steps, running = rows, torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
        for _ in range(self.num_steps):
            terminated = terminated_column[at]
            reward += torch.where(running, discount * reward_column[at], 0.0)
            discount = torch.where(running, discount * gamma * ~terminated, discount)
            ended = terminated | truncated_column[at]
            following = (at + self.num_envs) % (self.length * self.num_envs)
            steps = steps + running
            at, running = torch.where(running, following, at), running & ~ended
        return reward, discount, steps

    def _take(self, name: str, rows: Tensor) -> Any:
        """Entries of a column at `rows`, [*rows.shape, ...]."""

        def entries(column: Tensor) -> Tensor:
            return column.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)

        return tree_map(entries, getattr(self.ring, name))

    def state_dict(self) -> dict[str, Any]:
        """The rows that have been written, and the head. Waits for the device.

        Rows are views, because a copy might not fit: they say what is there until the next append().
        """
        rows = min(int(self.written) + 1, self.length)
        columns = {name: tree_map(lambda x: x[:rows], getattr(self.ring, name)) for name in self.columns}
        return {"written": self.written.clone(), **columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(), bit for bit. Raises ValueError where it is of a ring of another size."""
        written, saved = int(state["written"]), state["valid"].shape
        if saved != (min(written + 1, self.length), self.num_envs):
            raise ValueError(
                f"the saved replay has {saved[0]} rows of {saved[1]} envs after {written} steps of each, and a ring of "
                f"{self.length} rows of {self.num_envs} envs cannot go on from it: buffer_size and num_envs must stay"
            )
        self.written.fill_(written)
        for name in self.columns:
            tree_map(lambda ring, source: ring[: len(source)].copy_(source), getattr(self.ring, name), state[name])


def plan(like: Rollout, capacity: int, extra: tuple[str, ...] = (), beside: int = 0) -> str:
    """The memory that a Replay will take, in words for users.

    like, capacity, extra: as the Replay's. beside: bytes a step takes beside the columns, such as priorities.
    Raises MemoryError, with the numbers, where that is more than the device has free.
    """
    steps = capacity // like.num_envs * like.num_envs
    each = bytes_needed(kept_columns(like.columns, extra), 1) + beside
    words = f"replay: {steps:,} steps x {each:,} bytes = {_size(steps * each)}"
    free = free_memory(like.device)
    if free is not None and steps * each > free:
        raise MemoryError(
            f"{words}, and {_size(free)} are free on {like.device}: set buffer_size to {free // each:,} or less"
        )
    return words


def kept_columns(columns: Columns, extra: tuple[str, ...] = ()) -> dict[str, Column | Columns]:
    """Columns as a ring buffer stores them: row by row in memory, since rows are drawn one by one, no bootstrap."""
    return {name: _kept(columns[name]) for name in (*KEPT, *extra)}


def _kept(column: Column | Columns) -> Column | Columns:
    if isinstance(column, Column):
        return replace(column, bootstrap=False, feature_major=False)
    return {name: _kept(member) for name, member in column.items()}


def bytes_needed(columns: Columns, capacity: int) -> int:
    """Memory of a ring of `capacity` steps with these columns, in bytes."""
    return capacity * sum(_bytes(column) for column in columns.values())


def _bytes(column: Column | Columns) -> int:
    if isinstance(column, Column):
        return prod(column.shape) * column.dtype.itemsize
    return sum(_bytes(member) for member in column.values())


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if device.type != "cpu" or not meminfo.exists():
        return None
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    if os.access(limit, os.R_OK) and (most := limit.read_text().strip()).isdecimal():
        free = min(free, int(most) - int(limit.with_name("memory.current").read_text()))
    return max(free, 0)


def _size(count: int) -> str:
    return f"{count / _MIB / 1024:.1f} GiB" if count >= 1024 * _MIB else f"{count / _MIB:.1f} MiB"
