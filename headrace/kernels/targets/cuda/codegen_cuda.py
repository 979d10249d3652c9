"""EnvIR -> the text of a Numba module for CUDA: one thread per environment.

The module has the kernels `reset(...)`, `step(..., t)`, and two that take many steps in one launch, with the state in
registers: `run(..., first, last)` by the actions in the rollout, `run_random(..., first, last, counter)` by random
ones, which they write into it. A launch has few arguments, because each costs time on the host: all numbers of the
environments are in one float32 and one int32 array, rows of N one after another:

    floats     float fields of State, the running returns; then float parameters: a row each or, if shared, one number
    integers   other fields of State, length, episode; then other parameters likewise; then the seed, and the number of
               the first environment

Array fields have the environments last, so that neighbouring threads read neighbouring places. Columns of the rollout
keep their own shape, [T, N, ...]; of several agents, number k's are the columns i + k * n of the n environments. Pixel
observations are drawn by another module (codegen_pixels_cuda).
"""

from __future__ import annotations

from gymnasium.spaces import Box

from headrace.kernels.language.ir import EnvIR, Field
from headrace.kernels.language.kinds import F32
from headrace.kernels.language.ops import prelude
from headrace.kernels.targets.episode_text import (
    EpisodeText,
    block,
    bound,
    constants,
    decorated,
    function,
    pack_rows,
    title,
    tuple_of,
    value_of,
)
from headrace.kernels.targets.random_actions import bounds

DEVICE = "@cuda.jit(device=True)"
KERNEL = "@cuda.jit(cache=True)"
COLUMNS = ("observation", "valid", "action", "reward", "terminated", "truncated", "episode_return", "episode_length")
OPS = """\
from numba import cuda
import math
{imports}

@cuda.jit(device=True)
def _product(a, b):
    return {product}


@cuda.jit(device=True)
def sqrt(x):
    return F32(math.sqrt(F32(x)))


# Python's, as on other targets: CUDA's own min and max of floats drop NaN
@cuda.jit(device=True)
def min(a, b):
    return b if b < a else a


@cuda.jit(device=True)
def max(a, b):
    return b if b > a else a
"""


def cuda_ops(simulated: bool) -> str:
    """CUDA's own versions of some ops. simulated: for Numba's CUDA simulator."""
    if simulated:  # it has no libdevice, and fuses nothing
        return OPS.format(imports="", product="a * b")
    # mul.rn is never fused with a sum
    return OPS.format(imports="from numba.cuda import libdevice\n", product="libdevice.fmul_rn(a, b)")


class CudaText(EpisodeText):
    """Lines about environment i of n. Between the steps of one launch, s and the counters are in registers."""

    env_number = "env_number"

    def __init__(self, ir: EnvIR, per_env: bool) -> None:
        super().__init__(ir, per_env)
        self._stored = [*self.returns, self.length, self.episode]
        self.returns = [f"return{agent}" for agent in self.agents]
        self.length, self.episode = "length", "episode_number"
        self._counters = [*self.returns, self.length, self.episode]

    def scalar(self, is_float: bool, row: int) -> str:
        """An entry of a pack."""
        return f"{'floats' if is_float else 'integers'}[np.uint64({row}) * n + i]"

    def array(self, field: Field) -> str:
        """A view of the field."""
        return f"array_{field.name}[{':, ' * len(field.shape or ())}i]"

    def param(self, is_float: bool, row: int) -> str:
        """An entry behind the pack."""
        first = pack_rows(self.ir)[not is_float]
        if self.per_env:
            return self.scalar(is_float, first + row)
        return f"{'floats' if is_float else 'integers'}[np.uint64({first}) * n + np.uint64({row})]"

    def column(self, name: str, agent: int) -> str:
        """An entry of the column itself."""
        return f"{name}[{'after' if name == 'valid' else 'now'}, {_index(agent)}]"

    def action_entry(self, agent: int, entry: int | None) -> str:
        """An entry of the column itself."""
        return f"action[now, {_index(agent)}" + ("]" if entry is None else f", {entry}]")

    def observation(self, agent: int, entry: int | None) -> str:
        """An entry of the column itself, or a view."""
        rest = ", :" * len(self.ir.observation_space.shape) if entry is None else f", {entry}"
        return f"observation[after, {_index(agent)}{rest}]"

    def keep(self, state: str) -> list[str]:
        """s: as it would be read again after it was stored."""
        items = [f"{state}[{k}]" if f.shape is None else f"s[{k}]" for k, f in enumerate(self.ir.state)]
        for k, field in enumerate(self.ir.state):
            if field.shape is None:
                is_float = field.dtype == F32
                items[k] = f"F32({items[k]})" if is_float else value_of(f"I32({items[k]})", field.dtype)
        return [f"s = {tuple_of(items)}"]

    def known(self) -> list[str]:
        """Lines that load what every kernel needs: parameters, seed, number of the environment, state."""
        extra = sum(param.dtype != F32 for param in self.ir.params)
        rows = pack_rows(self.ir)[1] + (extra if self.per_env else 0)
        return [
            self.params(),
            f"seed_at = np.uint64({rows}) * n + np.uint64({0 if self.per_env else extra})",
            "seed = U32(integers[seed_at])",
            "env_number = U32(U32(integers[seed_at + np.uint64(1)]) + U32(i))",
            self.state(),
        ]

    def load_counters(self) -> list[str]:
        """Lines that load the counters of the episode."""
        return [f"{name} = {place}" for name, place in zip(self._counters, self._stored, strict=True)]

    def save(self) -> list[str]:
        """Lines that store the counters of the episode and s."""
        pairs = zip(self._counters, self._stored, strict=True)
        return [*(f"{place} = {name}" for name, place in pairs), *self.store("s")]


def cuda_module(ir: EnvIR, per_env: bool, simulated: bool) -> str:
    """The text of the module. per_env: each parameter has a value per environment. simulated: for Numba's CUDA
    simulator."""
    text = CudaText(ir, per_env)
    names = ", ".join(["floats", "integers", *(f"array_{f.name}" for f in ir.arrays), *COLUMNS])
    parts = [
        title(ir, "compiled for CUDA"),
        prelude(DEVICE, cuda_ops(simulated)),
        *constants(ir),
        decorated(ir.code, DEVICE),
        _kernel(text, f"reset({names})", _reset(text)),
        _kernel(text, f"step({names}, t)", _step(text)),
        _kernel(text, f"run({names}, first, last)", _steps(text, [])),
        _kernel(text, f"run_random({names}, first, last, counter)", _steps(text, _draw_action(text))),
    ]
    return "\n\n".join(parts) + "\n"


def _kernel(text: CudaText, head: str, body: list[str]) -> str:
    agents = f" // np.uint64({text.ir.num_agents})" if text.ir.num_agents > 1 else ""
    count = f"n = np.uint64(valid.shape[1]){agents}"
    return function(KERNEL, head, ["i = np.uint64(cuda.grid(1))", count, *block("if i < n", [*text.known(), *body])])


def _index(agent: int) -> str:
    """The index of an agent's column."""
    return f"i + np.uint64({agent}) * n" if agent else "i"


def _reset(text: CudaText) -> list[str]:
    begin = text.begin("I32(0)")
    return ["after = np.uint64(0)", *begin, *text.each("valid", "True"), *text.observe("s"), *text.save()]


def _row(text: CudaText) -> list[str]:
    """Lines for a step from row `now` to row `after`; is_valid: of row `now`, then of row `after`."""
    valid = [*text.valid_step(), "is_valid = (is_terminated | is_truncated) ^ True"]
    masked = [*text.masked_step(), "is_valid = True"]
    return [*block("if is_valid", valid), *block("else", masked), *text.observe("s")]


def _step(text: CudaText) -> list[str]:
    rows = ["now = np.uint64(t)", "after = now + np.uint64(1)", "is_valid = valid[now, i]"]
    return [*rows, *text.load_counters(), *_row(text), *text.save()]


def _steps(text: CudaText, draw: list[str]) -> list[str]:
    """Lines for rows first .. last - 1."""
    rows = "for now in range(np.uint64(first), np.uint64(last))"
    return [
        *text.load_counters(),
        "is_valid = valid[np.uint64(first), i]",
        *block(rows, ["after = now + np.uint64(1)", *draw, *_row(text)]),
        *text.save(),
    ]


def _draw_action(text: CudaText) -> list[str]:
    """Lines that write a random action: the same bits as headrace.kernels.targets.random_actions."""
    lines = ["step = np.uint64(counter) + (now - np.uint64(first))"]
    space = text.ir.action_space
    for agent in text.agents:
        number = f"U32(U64(env_number) + U64({_index(agent)} - i))" if agent else "env_number"
        lines.append(f"key = (seed, U32(2), {number}, U32(step >> np.uint64(32)), U32(step))")
        for k, (low, high) in enumerate(zip(*bounds(space), strict=True)):
            place = text.action_entry(agent, None if text.ir.action_size is None else k)
            if isinstance(space, Box):
                lines.append(f"{place} = uniform(key, {k}, {bound(low)}, {bound(high)})")
            else:
                count = int(high) - int(low)
                drawn = f"I32(_product(uniform(key, {k}, 0.0, 1.0), F32({count})))"
                lines.append(f"{place} = I32({int(low)}) + min({drawn}, I32({count - 1}))")
    return lines
