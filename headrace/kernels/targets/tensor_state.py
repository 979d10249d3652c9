"""The state of N environments as tensors on one device: kept, read, set, saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headrace.core.rng import MASK
from headrace.data.rollout import Rollout
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.kinds import BOOL, U32

DTYPES = {"f32": torch.float32, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8}
DTYPES |= {"bool": torch.bool, "u16": torch.int32, "u32": torch.int64}  # torch cannot count with uint16 and uint32


class TensorEnvs:
    """What TorchEnvs and CudaEnvs share of headrace.kernels.targets.base.CompiledTarget."""

    def __init__(self, ir: EnvIR, floats: Tensor, integers: Tensor, arrays: Mapping[str, Tensor]) -> None:
        """floats [S + A, N]: fields, the return of each of A agents; integers [S + 2, N]: fields, length, episode;
        arrays [N, *shape]. N: environments."""
        self.ir, self.floats, self.integers, self.arrays = ir, floats, integers, arrays
        self.device, self.num_envs, self.seed = floats.device, floats.shape[1], 0

    def fields(self, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        """Fields of State in the user's order, as values: u32 in int64, booleans in bool; array fields as given."""
        found = dict(arrays)
        found |= {f.name: self.floats[k] for k, f in enumerate(self.ir.floats)}
        found |= {f.name: read(self.integers[k], f.dtype) for k, f in enumerate(self.ir.integers)}
        return tuple(found[f.name] for f in self.ir.state)

    def keep(self, values: tuple[Any, ...]) -> None:
        """Store the scalar fields, by way of a copy: values may be views of other fields."""
        floats, integers = self.floats.clone(), self.integers.clone()
        rows = {f.name: floats[k] for k, f in enumerate(self.ir.floats)}
        rows |= {f.name: integers[k] for k, f in enumerate(self.ir.integers)}
        for field, value in zip(self.ir.state, values, strict=True):
            if field.shape is None:
                put(rows[field.name], value)
        self.floats.copy_(floats)
        self.integers.copy_(integers)

    def check(self, rollout: Rollout) -> None:
        """Raises ValueError for a rollout of another size or device."""
        expected = self.num_envs * self.ir.num_agents
        if rollout.num_envs != expected:
            raise ValueError(f"the rollout has {rollout.num_envs} envs, the environment {expected}")
        if rollout.device.type != self.device.type:
            raise ValueError(f"the rollout is on {rollout.device}, the environment on {self.device}")

    def state(self) -> dict[str, Tensor]:
        """A copy of State's fields, [N] or [N, *shape], in their own dtype (u32 as int64, u16 as int32)."""
        found = dict(zip((f.name for f in self.ir.state), self.fields(self.arrays), strict=True))
        return {f.name: found[f.name].to(DTYPES[f.dtype], copy=True) for f in self.ir.state}

    def set_state(self, fields: Mapping[str, Tensor]) -> None:
        """Set the fields of State; the episode's number, length and return stay."""
        for name, array in self.arrays.items():
            array.copy_(fields[name])
        self.keep(tuple(fields[f.name].to(self.device) for f in self.ir.state))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers that resume bit for bit. Other backends can load them too."""
        tensors = {"floats": self.floats, "integers": self.integers} | {f"array.{n}": a for n, a in self.arrays.items()}
        return {"seed": self.seed} | {name: tensor.contiguous().clone() for name, tensor in tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from state_dict(). Raises ValueError where it is of other environments."""
        targets = {"floats": self.floats, "integers": self.integers} | {f"array.{n}": a for n, a in self.arrays.items()}
        for name, target in targets.items():
            if name not in state or state[name].shape != target.shape:
                found = list(state[name].shape) if name in state else "nothing"
                raise ValueError(
                    f"the saved state is of other environments: {name} is {found}, not {list(target.shape)} "
                    f"({self.num_envs} of {self.ir.name})"
                )
        for name, target in targets.items():
            target.copy_(state[name])
        self.seed = int(state["seed"])


def read(words: Tensor, dtype: str) -> Tensor:
    """A row of the integer pack as its value: u32 in int64, a boolean in bool."""
    if dtype == U32:
        return words.long() & MASK
    return words != 0 if dtype == BOOL else words


def put(target: Tensor, value: Any) -> None:
    """Fill a tensor with a tensor or a number, converted."""
    if isinstance(value, Tensor):
        target.copy_(value)
    else:
        target.fill_(value)
