"""Layout of the environments' numbers on the CPU, as text and as arrays.

Scalar fields are kept in a pack of float32 and one of int32, in blocks of ENVS_PER_BLOCK environments. A block is
feature-major: each row has one number per environment. An environment with entities has a block of its own, since its
loops are over entities. Rows of the float32 pack are fields of State and each agent's running return. Rows of the int32
pack are the other fields, the length and the number of the episode. Environment lo + i of a block that begins at
environment lo is called i.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headrace.kernels.language.ir import EnvIR, Field
from headrace.kernels.language.kinds import F32
from headrace.kernels.targets.episode_text import EpisodeText, of_agent, pack_rows

ENVS_PER_BLOCK = 1024  # environments whose columns fit the first-level cache together


def envs_per_block(ir: EnvIR) -> int:
    """Number of environments in a block."""
    return 1 if ir.entities else ENVS_PER_BLOCK


class CpuText(EpisodeText):
    """Lines about environment i of a block. Columns are named COLUMN_now and COLUMN_after, agent 1's with _of1 behind:
    they begin at the block's first environment."""

    env_number = "U32(np.uint64(first + lo) + i)"

    def __init__(self, ir: EnvIR, per_env: bool) -> None:
        self.size = envs_per_block(ir)
        super().__init__(ir, per_env)
        self.load = [self.params(), self.state()] if per_env else [self.state()]

    def scalar(self, is_float: bool, row: int) -> str:
        """An entry of the block's pack."""
        return self._in_block("fs" if is_float else "ns", row)

    def array(self, field: Field) -> str:
        """A view of the field."""
        return f"array_{field.name}[np.uint64(lo) + i]"

    def param(self, is_float: bool, row: int) -> str:
        """An entry of the parameters' pack."""
        if self.per_env:
            return self._in_block("fp" if is_float else "ip", row)
        return f"{'float' if is_float else 'integer'}_params[{row}]"

    def column(self, name: str, agent: int) -> str:
        """An entry of a column's part."""
        return of_agent("valid_after" if name == "valid" else f"{name}_now", agent) + "[i]"

    def action_entry(self, agent: int, entry: int | None) -> str:
        """An entry of the action's part."""
        return of_agent(f"action{'' if entry is None else entry}_now", agent) + "[i]"

    def observation(self, agent: int, entry: int | None) -> str:
        """An entry of an observation's part, or a view of the observation."""
        if entry is not None:
            return of_agent(f"observed{entry}", agent) + "[i]"
        vector, image = f"np.uint64(after{plane(agent)}) + i::plane", f"t + 1, np.uint64(lo{plane(agent)}) + i"
        return f"observation[{vector if len(self.ir.observation_space.shape) == 1 else image}]"

    def keep(self, state: str) -> list[str]:
        """Stored at once."""
        return self.store(state)

    def packs(self) -> list[str]:
        """Lines that find the block in each pack, and define p where all environments share it."""
        floats, integers = pack_rows(self.ir)
        lines = [f"fs = floats[{self._block_start(floats)}:]", f"ns = integers[{self._block_start(integers)}:]"]
        if not self.per_env:
            return [*lines, self.params()]
        size = sum(param.dtype == F32 for param in self.ir.params)
        rest = len(self.ir.params) - size
        return [
            *lines,
            f"fp = float_params[{self._block_start(size)}:]",
            f"ip = integer_params[{self._block_start(rest)}:]",
        ]

    def _in_block(self, pack: str, row: int) -> str:
        """Environment i's entry of a row of a block."""
        return f"{pack}[np.uint64({row * self.size}) + i]"

    def _block_start(self, rows: int) -> str:
        """Index of environment lo's first entry in a pack of so many rows, as text."""
        return f"lo // {self.size} * {self.size * rows} + lo % {self.size}"

    def arguments(self) -> str:
        """Names of the arrays that hold the environments, in the order in which the kernels take them."""
        arrays = [f"array_{f.name}" for f in self.ir.arrays]
        return ", ".join(["floats, integers, float_params, integer_params, masked", *arrays])


def plane(agent: int) -> str:
    """Distance of an agent's columns from those of the first agent, as text."""
    return f" + {agent} * agent_plane" if agent else ""


def to_blocks(pack: Tensor, per_block: int) -> Tensor:
    """[S, N] -> [blocks, S, per_block], padded with zeros: LLVM knows the distance between rows."""
    size, num_envs = pack.shape
    count = -(-num_envs // per_block)
    padded = pad(pack, (0, count * per_block - num_envs))
    return padded.reshape(size, count, per_block).transpose(0, 1).contiguous()


def from_blocks(pack: Tensor, num_envs: int) -> Tensor:
    """[blocks, S, per_block] -> a copy [S, N]."""
    return pack.transpose(0, 1).flatten(1)[:, :num_envs].clone(memory_format=torch.contiguous_format)


def flat(column: Tensor) -> np.ndarray:
    """The memory of a column from its first entry to its last, also what lies between its entries; not a copy."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(column.shape, column.stride(), strict=True))
    return column.as_strided((size,), (1,)).numpy()
