"""The state of N environments as tensors on one device: kept, read, set, saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from headrace.core.device import Device
from headrace.core.rng import MASK
from headrace.data.rollout import Rollout
from headrace.kernels.language.ir import EnvIR, Field
from headrace.kernels.language.kinds import BOOL, STORAGE, U32
from headrace.kernels.targets.episode_text import pack_rows
from headrace.kernels.targets.random_actions import random_actions

DTYPES = {"f32": torch.float32, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8}
DTYPES |= {"bool": torch.bool, "u16": torch.int32, "u32": torch.int64}  # torch cannot count with uint16 and uint32
Array = TypeVar("Array")  # what stands for an array field


class TensorEnvs:
    """Common part of the targets: see headrace.kernels.targets.base.CompiledTarget.

    floats [S + A, N]: fields, the return of each of A agents; integers [S + 2, N]: fields, length, episode; arrays [N,
    *shape]. N: environments. A subclass with another layout of floats and integers overrides packs, set_packs.
    """

    def __init__(
        self, ir: EnvIR, num_envs: int, first_env: int, floats: Tensor, integers: Tensor, arrays: Mapping[str, Tensor]
    ) -> None:
        self.ir, self.floats, self.integers, self.arrays = ir, floats, integers, arrays
        self.num_envs, self.first_env, self.device, self.seed = num_envs, first_env, floats.device, 0

    def packs(self) -> tuple[Tensor, Tensor]:
        """floats and integers as [rows, N]; may be copies."""
        return self.floats, self.integers

    def set_packs(self, floats: Tensor, integers: Tensor) -> None:
        """Copy floats and integers from [rows, N]."""
        self.floats.copy_(floats)
        self.integers.copy_(integers)

    def fields(self, arrays: Mapping[str, Array]) -> tuple[Tensor | Array, ...]:
        """Fields of State in the user's order, as values: u32 in int64, booleans in bool; array fields as given."""
        found: dict[str, Tensor | Array] = dict(arrays)
        floats, integers = self.packs()
        found |= {f.name: floats[k] for k, f in enumerate(self.ir.floats)}
        found |= {f.name: read(integers[k], f.dtype) for k, f in enumerate(self.ir.integers)}
        return tuple(found[f.name] for f in self.ir.state)

    def keep(self, values: Sequence[Tensor | float | None]) -> None:
        """Store the scalar fields, by way of a copy: values may be views of other fields. None for array fields."""
        floats, integers = (pack.clone() for pack in self.packs())
        rows = {f.name: floats[k] for k, f in enumerate(self.ir.floats)}
        rows |= {f.name: integers[k] for k, f in enumerate(self.ir.integers)}
        for field, value in zip(self.ir.state, values, strict=True):
            if field.shape is None and value is not None:
                put(rows[field.name], value)
        self.set_packs(floats, integers)

    def check(self, rollout: Rollout) -> None:
        """Raises ValueError for a rollout of another size or device."""
        expected = self.num_envs * self.ir.num_agents
        if rollout.num_envs != expected:
            raise ValueError(f"the rollout has {rollout.num_envs} envs, the environment {expected}")
        if rollout.device.type != self.device.type:
            raise ValueError(f"the rollout is on {rollout.device}, the environment on {self.device}")

    def state(self) -> dict[str, Tensor]:
        """A copy of State's fields, [N] or [N, *shape], in their own dtype (u32 as int64, u16 as int32)."""
        pairs = zip(self.ir.state, self.fields(self.arrays), strict=True)
        return {f.name: value.to(DTYPES[f.dtype], copy=True) for f, value in pairs}

    def set_state(self, fields: Mapping[str, Tensor]) -> None:
        """Set the fields of State; the episode's number, length and return stay."""
        for name, array in self.arrays.items():
            array.copy_(fields[name])
        self.keep(tuple(fields[f.name].to(self.device) for f in self.ir.state))

    def step(self, rollout: Rollout, t: int) -> None:
        """Same as CompiledTarget.step()."""
        raise NotImplementedError

    def restart(self, rollout: Rollout, t: int, which: Tensor) -> None:
        """Begin the next episode of the environments `which`, bool [N], in row t + 1. The others keep their state.

        Only the environments `which` have a meaningful row t + 1. Overwrites valid[t]; row t needs actions of the
        space. For one agent.
        """
        rollout.valid[t] = ~which
        self.step_some(rollout, t, which)

    def step_some(self, rollout: Rollout, t: int, which: Tensor) -> None:
        """Step the environments `which`, bool [N], from row t to row t + 1. The others keep their state, and their
        outcome has no meaning. Row t needs actions of the space everywhere."""
        before = [pack.clone() for pack in (self.floats, self.integers, *self.arrays.values())]
        self.step(rollout, t)
        packed = self.pack_mask(which)
        torch.where(packed, self.floats, before[0], out=self.floats)
        torch.where(packed, self.integers, before[1], out=self.integers)
        for array, old in zip(self.arrays.values(), before[2:], strict=True):
            array.copy_(torch.where(which.view(-1, *[1] * (array.dim() - 1)), array, old))

    def pack_mask(self, which: Tensor) -> Tensor:
        """A mask of environments [N] in a shape that broadcasts to floats and integers."""
        return which

    def running_episodes(self, envs: Tensor) -> tuple[Tensor, Tensor]:
        """Return and length so far of the present episodes of some environments, given by their numbers [K].

        For one agent."""
        return self.floats[len(self.ir.floats)][envs], self.integers[len(self.ir.integers)][envs]

    def run(self, rollout: Rollout, first: int, last: int) -> None:
        """Step rows `first` .. `last` by the actions in the rollout."""
        for t in range(first, last):
            self.step(rollout, t)

    def run_random(self, rollout: Rollout, first: int, last: int, counter: int) -> None:
        """Step rows `first` .. `last` by random actions, which the rollout then has. counter: steps taken before."""
        shape = last - first, self.num_envs * self.ir.num_agents
        drawn = random_actions(self.ir.action_space, self.seed, counter, *shape, self.device, self.first_env)
        rollout.action[first:last].copy_(drawn)
        self.run(rollout, first, last)

    def _tensors(self) -> dict[str, Tensor]:
        floats, integers = self.packs()
        return {"floats": floats, "integers": integers} | {f"array.{n}": a for n, a in self.arrays.items()}

    def state_dict(self) -> dict[str, Tensor | int]:
        """Tensors and numbers that resume bit for bit. Other backends can load them too."""
        tensors: dict[str, Tensor | int] = {n: tensor.contiguous().clone() for n, tensor in self._tensors().items()}
        return {"seed": self.seed} | tensors

    def load_state_dict(self, state: Mapping[str, Tensor | int]) -> None:
        """Resume from state_dict(). Raises ValueError where it is of other environments."""
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        for name, target in self._tensors().items():
            if name not in tensors or tensors[name].shape != target.shape:
                found = list(tensors[name].shape) if name in tensors else "nothing"
                raise ValueError(
                    f"the saved state is of other environments: {name} is {found}, not {list(target.shape)} "
                    f"({self.num_envs} of {self.ir.name})"
                )
        self.set_packs(tensors["floats"], tensors["integers"])
        for name, array in self.arrays.items():
            array.copy_(tensors[f"array.{name}"])
        self.seed = int(state["seed"])


def empty_packs(ir: EnvIR, num_envs: int, device: Device) -> tuple[Tensor, Tensor]:
    """floats and integers of TensorEnvs, zeros."""
    kinds = zip(pack_rows(ir), (torch.float32, torch.int32), strict=True)
    floats, integers = (torch.zeros(rows, num_envs, dtype=kind, device=device) for rows, kind in kinds)
    return floats, integers


def stored_dtype(field: Field) -> torch.dtype:
    """The dtype an array field is stored in by compiled kernels."""
    dtype: torch.dtype = getattr(torch, STORAGE[field.dtype].__name__.removesuffix("_"))
    return dtype


def read(words: Tensor, dtype: str) -> Tensor:
    """A row of the integer pack as its value: u32 in int64, a boolean in bool."""
    if dtype == U32:
        return words.long() & MASK
    return words != 0 if dtype == BOOL else words


def put(target: Tensor, value: Tensor | float) -> None:
    """Fill a tensor with a tensor or a number, converted."""
    if isinstance(value, Tensor):
        target.copy_(value)
    else:
        target.fill_(value)
