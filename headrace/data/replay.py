"""Replay buffers: the last steps of N environments in a ring buffer, for off-policy algorithms.

Rows are those of rollouts. The observation after row t is that of row t + 1, so each observation is stored once. Each
environment has its own write position, since asynchronous actors deliver steps of some environments more often than of
others. No operation waits for the device: write positions are a tensor, shapes do not depend on data, and masked rows
have weight 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.core.types import StateDict
from headrace.data import pieces
from headrace.data.pieces import Piece, Rows
from headrace.data.rollout import (
    Column,
    Columns,
    Index,
    Rollout,
    SomeTree,
    column_map,
    each_column,
    named_tensors,
    tree_map,
)

KEPT = ("observation", "valid", "action", "reward", "terminated", "truncated")
TRIES = 3  # candidates for each row drawn, of which the first valid one is taken
DRAWS = TRIES + 1  # uniform random numbers per row drawn
_MIB = 2**20


class Batch(NamedTuple):
    """Transitions of up to n steps. The leading shape, here [B], is that of the rows.

    For recurrent policies the observations are histories: see headrace.data.sequences.
    """

    observation: Any  # [B, ...]
    action: Tensor  # [B, ...]
    reward: Tensor  # [B]: sum of gamma^k reward over the steps taken
    discount: Tensor  # [B]: factor of next_observation's value: gamma^steps, 0 after a termination
    next_observation: Any  # [B, ...]: the observation after those steps
    weight: Tensor  # [B]: 1, and 0 for masked rows; a loss is sum(weight * x) over the number of those above 0
    rows: Tensor  # int64 [B]: positions in the ring buffer, time * N + env

    def __getitem__(self, index: Index) -> Batch:  # type: ignore[override]
        """Minibatch `index` of a batch [G, B]: a Batch [B]."""
        return Batch(*(tree_map(lambda x: x[index], column) for column in self._asdict().values()))


class Replay:
    """A ring buffer of `capacity` steps, over all environments, on one device.

    like: the rollout whose rows it stores. extra: names of columns to store besides those of every algorithm.
    num_steps: n of the n-step returns.
    Raises ValueError where the ring is too short for a row to be drawn.
    """

    draws = DRAWS  # uniform random numbers that sample() takes for a row

    def __init__(self, like: Rollout, capacity: int, num_steps: int = 1, extra: tuple[str, ...] = ()) -> None:
        self.num_steps, self.num_envs = num_steps, like.num_envs
        self.columns = kept_columns(like.columns, extra)
        self.length = self.rounded(capacity // like.num_envs)
        least = like.num_steps + self.least
        if self.length < least:
            raise ValueError(
                f"the replay buffer is too small: it holds {self.length} steps of each of {like.num_envs} environments "
                f"and at least {least} are needed: let buffer_size be {least * like.num_envs} or more"
            )
        self.ring = Rollout(self.length, like.num_envs, self.columns, like.device)
        # rows of each environment since the beginning
        self.written = torch.zeros(like.num_envs, dtype=torch.int64, device=like.device)
        self.alike = True  # whether `written` is the same for all environments
        self._envs = torch.arange(like.num_envs, device=like.device)

    def rounded(self, length: int) -> int:
        """The longest ring of at most this length."""
        return length

    @property
    def n_step_span(self) -> int:
        """Steps from the first row used for a transition to the last one."""
        return self.num_steps

    @property
    def least(self) -> int:
        """Number of rows, in addition to those of one rollout, that must fit before a row can be drawn."""
        return self.n_step_span + 1

    def append(self, rollout: Rollout) -> None:
        """Write the T rows of a rollout over the oldest, and its bootstrap row after them.

        `rollout.env` has the environment of each column. A column that begins with a masked row although the episode
        before it had not ended is of an environment that was lost or could not be saved. Its earlier episode is
        truncated, so that no n-step return reaches into the next one. Raises ValueError for columns that the ring has
        no room for.
        """
        self._write(rollout, *self._begin(rollout))

    def _begin(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """The environment of each column, and the number of rows that the environment has before it, int64 [N] each.
        Adds the new rows to `written`."""
        steps = rollout.num_steps
        if rollout.env is None:
            begin = self.written.clone()
            self.written += steps
            return self._envs, begin
        self.alike, env = False, rollout.env.to(self.written.device)
        ordered, order = env.sort(stable=True)
        earlier = torch.empty_like(env)  # number of earlier columns of the same environment
        earlier[order] = self._envs - torch.searchsorted(ordered, ordered)
        self._check_room(env, steps * (int(earlier.max()) + 1))
        begin = self.written[env] + earlier * steps
        self.written.index_add_(0, env, torch.full_like(env, steps))
        return env, begin

    def _check_room(self, env: Tensor, rows: int) -> None:
        if not 0 <= int(env.min()) <= int(env.max()) < self.num_envs:
            raise ValueError(f"rollout.env has values {int(env.min())} to {int(env.max())}, of {self.num_envs} envs")
        if rows + self.least > self.length:
            least = (rows + self.least) * self.num_envs
            raise ValueError(
                f"a rollout has {rows} rows of one environment, and the replay's ring {self.length} rows of each: give "
                f"a buffer_size of {least} or more"
            )

    def _write(self, rollout: Rollout, env: Tensor, begin: Tensor) -> None:
        """Write columns of environments `env` after `begin` rows, int64 [N] each."""
        steps, ring = rollout.num_steps, self.ring
        times = begin + torch.arange(-1, steps + 1, device=ring.device).unsqueeze(1)
        rows = times % self.length * self.num_envs + env
        before, body, after = rows[0], rows[1:-1].flatten(), rows[-1]

        def write(target: Tensor, source: Tensor) -> Tensor:
            target = target.flatten(0, 1)
            if len(source) > steps:  # first, since the environment's next column may begin at this bootstrap row
                target.index_copy_(0, after, source[steps])
            return target.index_copy_(0, body, source[:steps].flatten(0, 1))

        for name in self.columns:
            tree_map(write, getattr(ring, name), getattr(rollout, name))
        valid, terminated, truncated = (x.flatten() for x in (ring.valid, ring.terminated, ring.truncated))
        cut_off = valid[before] & ~rollout.valid[0] & ~terminated[before]
        truncated.index_copy_(0, before, truncated[before] | cut_off)

    def draw(self, random: Tensor) -> Tensor:
        """Draw rows uniformly, int64 [...]. random: uniform numbers in [0, 1), [..., DRAWS].

        Rows are drawn from those whose n-step successor has been written; there must be at least one. The first valid
        one of TRIES candidates is taken. If none is valid, a masked one is taken, which has weight 0.
        """
        oldest = self.oldest()
        counts = (self.written - self.num_steps + 1 - oldest).clamp(min=0)  # rows of each environment to draw from
        # float32 is too coarse for the rows of a large ring: the last number adds lower digits to the others
        fine = random[..., TRIES:].double() * 2.0**-24
        number = ((random[..., :TRIES] + fine) * counts.sum()).long()
        if self.alike:  # as below, without divisions
            rows, size = number + oldest[0] % self.length * self.num_envs, self.length * self.num_envs
            rows = torch.where(rows < size, rows, rows - size)
        else:
            step, env = spread(number, counts)
            rows = (oldest[env] + step) % self.length * self.num_envs + env
        valid, drawn = self.ring.valid.flatten(), rows[..., 0]
        for which in range(1, TRIES):
            drawn = torch.where(valid[drawn], drawn, rows[..., which])
        return drawn

    def sample(self, random: Tensor, gamma: float) -> Batch:
        """Transitions drawn uniformly. random: as draw() takes it."""
        return self.gather(self.draw(random), gamma)

    def gather(self, rows: Tensor, gamma: float) -> Batch:
        """The n-step transitions that begin at `rows`, of any shape, shorter where an episode ends within them.

        n-step return: Sutton 1988; after a truncation it bootstraps from the value of the final observation.
        """
        reward, discount, steps = self._ahead(rows, gamma)
        after = (rows + steps * self.num_envs) % (self.length * self.num_envs)
        ring, weight = self.ring, take(self.ring.valid, rows).float()
        observation, next_observation = take(ring.observation, rows), take(ring.observation, after)
        return Batch(observation, take(ring.action, rows), reward, discount, next_observation, weight, rows)

    def _ahead(self, rows: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
        """Reward, discount and number of steps of the transitions that begin at `rows`, in the shape of `rows`."""
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

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return bytes_needed(self.columns, 1)

    @property
    def steps_per_piece(self) -> int:
        """Steps of all environments in a piece of a checkpoint."""
        return max(1, min(pieces.ROWS, pieces.PIECE // self.row_bytes) // self.num_envs)

    def oldest(self) -> Tensor:
        """The first row of each environment that has not been overwritten, int64 [N]."""
        return (self.written - self.length + 1).clamp(min=0)

    def read_rows(self, start: Tensor, stop: Tensor) -> Piece:
        """A copy of rows `start` to `stop` of each environment, int64 [N], at most `length` of each: a piece.

        Has "start", "stop", and each column [R, ...] under its path, such as "observation.position". Rows are in the
        order of spread(). The row at `written` is the bootstrap row. Waits for the device.
        """
        times, env = self._rows(start, stop)
        rows = times % self.length * self.num_envs + env
        columns = {name: column.flatten(0, 1).index_select(0, rows) for name, column in self._stored()}
        return {"start": start, "stop": stop, **columns}

    def write_rows(self, piece: Mapping[str, Tensor]) -> None:
        """Write a piece of read_rows() back to its rows of the ring."""
        device = self.ring.device
        times, env = self._rows(piece["start"].to(device), piece["stop"].to(device))
        rows = times % self.length * self.num_envs + env
        for name, column in self._stored():
            column.flatten(0, 1).index_copy_(0, rows, piece[name].to(device, column.dtype))

    def _rows(self, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """The time and the environment of each row of a piece, int64 [R]."""
        counts = stop - start
        step, env = spread(torch.arange(int(counts.sum()), device=self.ring.device), counts)
        return start[env] + step, env

    def _stored(self) -> Iterator[tuple[str, Tensor]]:
        """The path and the ring [length, N, ...] of each column."""
        return named_tensors({name: getattr(self.ring, name) for name in self.columns})

    def state_dict(self) -> StateDict:
        """The stored rows, as a sequence of pieces, and the number of rows written of each environment.

        Rows are read from the ring when a piece is accessed, since a copy of all might not fit into memory.
        """
        rows = Rows(self, self.oldest(), self.written + 1)
        return {"length": self.length, "written": self.written.clone(), "rows": rows}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(), bit for bit. Raises ValueError for a ring of another size."""
        written, num_envs = int(state["written"].max()), len(state["written"])
        saved = min(written + 1, state["length"])
        if (saved, num_envs) != (min(written + 1, self.length), self.num_envs):
            raise ValueError(
                f"the saved replay has {saved} rows of {num_envs} envs after {written} steps of each, and a ring of "
                f"{self.length} rows of {self.num_envs} envs cannot continue from it: keep buffer_size and num_envs"
            )
        for piece in state["rows"]:
            self.write_rows(piece)
        self.written.copy_(state["written"])
        self.alike = bool((self.written == self.written[0]).all())


def spread(number: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Step and environment of row `number` of all rows, int64 [...], if environments have `counts` rows, int64 [N].

    Rows are ordered by step, and within a step by environment: with equal counts, row r is step r // N of environment r
    % N.
    """
    counts, order = counts.sort(stable=True)
    fewer = torch.cat((counts.new_zeros(1), counts[:-1]))  # steps of the previous environment in this order
    more = torch.arange(len(counts), 0, -1, device=counts.device)  # environments that have further steps
    rows = (counts - fewer) * more  # from step `fewer` on, until the next environment has no more
    end = rows.cumsum(0)
    part = torch.searchsorted(end, number.contiguous(), right=True).clamp(max=len(counts) - 1)
    left = number - (end - rows)[part]
    return fewer[part] + left // more[part], order[part + left % more[part]]


def take(column: SomeTree, rows: Tensor) -> SomeTree:
    """Entries of a column of a ring buffer at `rows`, [*rows.shape, ...]."""
    return tree_map(lambda x: x.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape), column)


def plan(like: Rollout, capacity: int, extra: tuple[str, ...] = (), extra_bytes: int = 0) -> str:
    """Describe the memory that a Replay takes, for users.

    like, capacity, extra: as the Replay's. extra_bytes: per step, in addition to the columns, such as priorities.
    Raises MemoryError, with the numbers, where that is more than the device has free.
    """
    steps = capacity // like.num_envs * like.num_envs
    each = bytes_needed(kept_columns(like.columns, extra), 1) + extra_bytes
    words = f"replay: {steps:,} steps x {each:,} bytes = {_size(steps * each)}"
    free = free_memory(like.device)
    if free is not None and steps * each > free:
        raise MemoryError(
            f"{words}, and {_size(free)} are free on {like.device}: set buffer_size to {free // each:,} or less"
        )
    return words


def kept_columns(columns: Columns, extra: tuple[str, ...] = ()) -> dict[str, Column | Columns]:
    """Columns as a ring buffer stores them: row by row, since rows are drawn one by one, and without bootstrap rows."""
    kept = partial(replace, bootstrap=False, feature_major=False)
    return {name: column_map(kept, columns[name]) for name in (*KEPT, *extra)}


def bytes_needed(columns: Columns, capacity: int) -> int:
    """Bytes of a ring buffer of `capacity` steps with these columns."""
    return capacity * sum(prod(column.shape) * column.dtype.itemsize for (column,) in each_column(columns))


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
