"""Environments on the CPU with rollouts on another device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headrace.core.device import transfer
from headrace.core.types import StateDict
from headrace.data.rollout import Columns, Group, Rollout, Value, tree_map
from headrace.envs.base import Env, EnvWrapper, Round

LINE = 64  # bytes: parts of a block begin on a cache line, which suits every dtype
NEXT_ROW = ("observation", "valid")  # what a step writes into row t + 1 ...
THIS_ROW = ("reward", "terminated", "truncated", "episode_return", "episode_length")  # ... and into row t


class DeviceEnv(EnvWrapper):
    """Wraps an Env on the CPU as an Env whose rollouts are on `device`.

    A step takes two copies, for any number of columns. It waits for a block of bytes with the actions and `valid` to
    the CPU. It does not wait for the block with the outcome back, which is copied from pinned memory in the device's
    current stream; the policy's next operations are queued behind it. The env itself steps a rollout on the CPU with
    the same number of rows, in shared memory for worker processes.

    Raises ValueError for an env that is not on the CPU.
    """

    def __init__(self, env: Env, device: torch.device | str) -> None:
        if env.device.type != "cpu":
            raise ValueError(f"{env.name} runs on {env.device} already: DeviceEnv is for environments of the CPU")
        super().__init__(env)
        self.device = torch.empty(0, device=device).device  # "cuda" becomes cuda:0
        row = Rollout(1, self.num_envs, env.columns())
        self._inputs = _Block(row, ("action", "valid"), self.device)
        self._outcome = _Block(row, (*NEXT_ROW, *THIS_ROW), self.device)
        self._mirrors: dict[int, Rollout] = {}  # on the CPU, by their number of steps
        self._written: tuple[Rollout, int] | None = None  # the row that the env itself wrote last
        self._resets_all = False

    def rollout(self, num_steps: int, columns: Columns) -> Rollout:
        """A rollout on the device."""
        return Rollout(num_steps, self.num_envs, columns, self.device)

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode in every environment; write observation[0] and valid[0]. Same seed, same episodes."""
        mirror = self._mirror(rollout)
        self.env.reset(mirror, seed)
        self._begun(mirror, rollout)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        mirror = self._mirror(rollout)
        self.env.begin(mirror, seed, episodes)
        self._begun(mirror, rollout)

    def _begun(self, mirror: Rollout, rollout: Rollout) -> None:
        """Copy the first row to the device."""
        for name in NEXT_ROW:
            tree_map(transfer, getattr(mirror, name)[0], getattr(rollout, name)[0])
        self._written, self._resets_all = (rollout, 0), False

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""
        mirror = self._mirror(rollout)
        self._read(rollout, mirror, t)
        self.env.step(mirror, t)
        self._write(rollout, mirror, t)
        if self._resets_all:  # the env has changed valid[t]
            transfer(mirror.valid[t], rollout.valid[t])
        self._written, self._resets_all = (rollout, t + 1), False

    def _read(self, rollout: Rollout, mirror: Rollout, t: int) -> None:
        """Copy what the env reads in row t. The device has finished all queued operations when this returns."""
        there, here = self._inputs.there, self._inputs.here
        for name, part in there:
            tree_map(lambda packed, column: packed.copy_(column), part, getattr(rollout, name)[t])
        self._inputs.down()
        mirror.action[t], mirror.valid[t] = here.action, here.valid
        if self._written is None or self._written[0] is not rollout or self._written[1] != t:
            tree_map(transfer, rollout.observation[t], mirror.observation[t])

    def _write(self, rollout: Rollout, mirror: Rollout, t: int) -> None:
        """Copy the outcome of the step to the rollout."""
        there, here = self._outcome.there, self._outcome.here
        for name, part in here:
            row = t + (name in NEXT_ROW)
            tree_map(lambda packed, column: packed.copy_(column), part, getattr(mirror, name)[row])
        self._outcome.up()
        for name, part in there:
            row = t + (name in NEXT_ROW)
            tree_map(lambda packed, column: column.copy_(packed), part, getattr(rollout, name)[row])

    def _mirror(self, rollout: Rollout) -> Rollout:
        """The rollout on the CPU for one on the device."""
        steps = rollout.num_steps
        if steps not in self._mirrors:
            self._mirrors[steps] = self.env.rollout(steps, self.columns())
        return self._mirrors[steps]

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). The caller restores the rollout's bootstrap row."""
        self.env.load_state_dict(state)
        self._written, self._resets_all = None, True


class _Block:
    """A row of some columns as one block of bytes, on the CPU (`here`: pinned for a GPU) and on a device (`there`).

    A GPU copies contiguous memory in one operation; columns of a rollout are not contiguous.
    """

    def __init__(self, rollout: Rollout, names: Iterable[str], device: torch.device) -> None:
        row = Group({name: tree_map(lambda column: column[0], getattr(rollout, name)) for name in names})
        self.device = device
        self._here = torch.zeros(_size(row), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._there = torch.zeros(_size(row), dtype=torch.uint8, device=device)
        self.here: Any = _parts(row, self._here)
        self.there: Any = _parts(row, self._there)

    def up(self) -> None:
        """Copy to the device, without waiting."""
        transfer(self._here, self._there, self._stream())

    def down(self) -> None:
        """Copy from the device, after all operations that were queued before."""
        stream = self._stream()
        transfer(self._there, self._here, stream)
        if stream is not None:
            stream.synchronize()

    def _stream(self) -> torch.cuda.Stream | None:
        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None


def _size(row: Value) -> int:
    """Bytes of a block."""
    if isinstance(row, Group):
        return sum(_size(part) for _, part in row)
    return -(-row.nbytes // LINE) * LINE


def _parts(row: Value, block: Tensor) -> Value:
    """Views of a block, in the shapes and dtypes of a row's parts."""
    if not isinstance(row, Group):
        return block[: row.nbytes].view(row.dtype).view(row.shape)
    parts = {}
    for name, part in row:
        parts[name], block = _parts(part, block), block[_size(part) :]
    return Group(parts)
