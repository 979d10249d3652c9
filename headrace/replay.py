"""The last steps of N environments in a ring, from which off-policy algorithms learn again and again.

Rows are a rollout's; the observation that follows row t is that of row t + 1, so that each is stored once. Nothing
here waits for the device: the write head is a tensor, shapes never depend on data, and what must not be drawn (dead
rows) weighs nothing in a batch.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.rollout import Column, Columns, Rollout, tree_map

KEPT = ("observation", "valid", "action", "reward", "terminated", "truncated")
TRIES = 4  # rows looked at for each one drawn, of which the first live one is taken


class Batch(NamedTuple):
    """B transitions of up to n steps."""

    observation: Any  # [B, ...]
    action: Tensor  # [B, ...]
    reward: Tensor  # [B]: sum of gamma^k reward over the steps taken
    discount: Tensor  # [B]: of the value of next_observation: gamma^steps, 0 after a termination
    next_observation: Any  # [B, ...]: after those steps
    weight: Tensor  # [B]: 1, and 0 for rows that do not count; the loss is sum(weight * x) / sum(weight)
    rows: Tensor  # int64 [B]: where they lie in the ring, time * N + env


class Replay:
    """A ring of `capacity` steps, in all environments together, on one device.

    like: the rollout whose rows it will keep. extra: names of columns to keep beside those of every algorithm.
    num_steps: n of the n-step returns that will be asked for.
    Raises ValueError where the ring is too short to hold anything that can be drawn.
    """

    def __init__(self, like: Rollout, capacity: int, num_steps: int = 1, extra: tuple[str, ...] = ()) -> None:
        self.num_steps, self.num_envs = num_steps, like.num_envs
        self.columns = kept_columns(like.columns, extra)
        self.length = capacity // like.num_envs
        least = like.num_steps + num_steps + 1
        if self.length < least:
            raise ValueError(
                f"a replay of {capacity} steps is {self.length} steps of {like.num_envs} envs, and at least {least} "
                f"are needed: give a capacity of {least * like.num_envs} or more, or fewer envs"
            )
        self.ring = Rollout(self.length, like.num_envs, self.columns, like.device)
        self.written = torch.zeros((), dtype=torch.int64, device=like.device)  # rows since the beginning

    def append(self, rollout: Rollout) -> None:
        """Write the T rows of a rollout over the oldest, and what is seen after them as the row that follows."""
        steps = rollout.num_steps
        rows = (self.written + torch.arange(steps + 1, device=self.ring.device)) % self.length
        for name in self.columns:
            # an edge row is written too: the next rollout begins with the same
            tree_map(
                lambda ring, source: ring.index_copy_(0, rows[: len(source)], source),
                getattr(self.ring, name),
                getattr(rollout, name),
            )
        self.written += steps

    def draw(self, noise: Tensor) -> Tensor:
        """Rows drawn alike from all that can be, by uniform draws in [0, 1) of [B, TRIES]: int64 [B].

        Drawn are rows whose n-step successor has been written. Of TRIES rows the first live one is taken.
        """
        newest = self.written - self.num_steps  # one past the last that may be drawn
        oldest = (self.written - self.length + 1).clamp(min=0)
        # in whole numbers: float32 cannot tell the rows of a large ring apart
        choices = (newest - oldest) * self.num_envs
        pick = (noise.double() * choices).long() + oldest * self.num_envs
        pick %= self.length * self.num_envs
        live = self.ring.valid.flatten()[pick]
        first = live.int().argmax(1, keepdim=True)
        return pick.gather(1, first).flatten()

    def gather(self, rows: Tensor, gamma: float) -> Batch:
        """The transitions of n steps that begin at `rows` [B], cut short where an episode ends within them."""
        ring, size = self.ring, self.length * self.num_envs
        reward = torch.zeros(len(rows), device=ring.device)
        discount = torch.ones_like(reward)
        at, running = rows, torch.ones_like(rows)
        for _ in range(self.num_steps):
            reward += discount * running * ring.reward.flatten()[at]
            terminated, truncated = ring.terminated.flatten()[at], ring.truncated.flatten()[at]
            discount = torch.where(running.bool(), discount * gamma * ~terminated, discount)
            at = (at + running * self.num_envs) % size
            running = running * ~(terminated | truncated)
        take = self._take
        return Batch(
            take("observation", rows),
            take("action", rows),
            reward,
            discount,
            take("observation", at),
            ring.valid.flatten()[rows].float(),
            rows,
        )

    def _take(self, name: str, rows: Tensor) -> Any:
        return tree_map(lambda column: column.flatten(0, 1).index_select(0, rows), getattr(self.ring, name))

    def state_dict(self) -> dict[str, Any]:
        """The ring and its head."""
        return {"written": self.written.clone(), **{name: getattr(self.ring, name) for name in self.columns}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(), bit for bit."""
        self.written.copy_(state["written"])
        for name in self.columns:
            tree_map(lambda ring, saved: ring.copy_(saved), getattr(self.ring, name), state[name])


def kept_columns(columns: Columns, extra: tuple[str, ...] = ()) -> dict[str, Column | Columns]:
    """Columns as a ring has them: row by row in memory, since rows are drawn one by one, and no edge."""
    return {name: _kept(columns[name]) for name in (*KEPT, *extra)}


def _kept(column: Column | Columns) -> Column | Columns:
    if isinstance(column, Column):
        return replace(column, edge=False, feature_major=False)
    return {name: _kept(member) for name, member in column.items()}


def bytes_needed(columns: Columns, capacity: int) -> int:
    """Memory of a ring of `capacity` steps with these columns, in bytes."""
    return capacity * sum(_bytes(column) for column in columns.values())


def _bytes(column: Column | Columns) -> int:
    if isinstance(column, Column):
        return prod(column.shape) * column.dtype.itemsize
    return sum(_bytes(member) for member in column.values())
