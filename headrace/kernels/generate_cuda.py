"""Source -> the text of a Numba module for CUDA: one thread a world.

The module has the kernels `reset(...)`, `step(..., t)`, and two that take many steps in one launch, with the state in
registers: `run(..., first, last)` by the actions that stand in the rollout, `run_random(..., first, last, counter)` by
random ones, which they write there. A launch has few arguments, because each costs the host
time: all numbers of the worlds lie in one float32 and one int32 array, rows of N behind one another:

    floats     float fields of State, the running return; then float parameters: a row each or, if shared, one number
    integers   other fields of State, length, episode; then other parameters likewise; then the seed, the first world

Array fields have the worlds last, so that neighbouring threads read neighbouring places. Columns of the rollout keep
their own shape, [T, N, ...].
"""

from __future__ import annotations

from textwrap import indent

import numpy as np
from gymnasium.spaces import Box

from headrace.kernels.kinds import BOOL, F32, U32
from headrace.kernels.random_actions import bounds
from headrace.kernels.source import Field, Param, Source
from headrace.kernels.words import prelude

DEVICE = "@cuda.jit(device=True)"
KERNEL = "@cuda.jit(cache=True)"
COLUMNS = (
    "observation",
    "valid",
    "action",
    "reward",
    "terminated",
    "truncated",
    "episode_return",
    "episode_length",
)
OWN = """\
from numba import cuda
import math
{product}


@cuda.jit(device=True)
def sqrt(x):
    return F32(math.sqrt(F32(x)))
"""
# mul.rn is never fused with a sum; the simulator has no libdevice, and fuses nothing
PRODUCT = """\
from numba.cuda import libdevice


@cuda.jit(device=True)
def _product(a, b):
    return libdevice.fmul_rn(a, b)"""
SIMULATED_PRODUCT = """

@cuda.jit(device=True)
def _product(a, b):
    return a * b"""


def cuda_module(source: Source, per_env: bool, simulated: bool) -> str:
    """The text of the module. per_env: each parameter has a value per world. simulated: for Numba's CUDA simulator."""
    own = OWN.format(product=SIMULATED_PRODUCT if simulated else PRODUCT)
    tables = [f"{name} = np.array({a.tolist()!r}, np.{a.dtype})" for name, a in source.constants.items()]
    names = ["floats", "integers", *(f"array_{f.name}" for f in source.arrays), *COLUMNS]
    parts = [
        f'"""{source.name}, compiled for CUDA. Generated; the environment\'s own file is the source."""',
        prelude(DEVICE, own),
        *tables,
        source.code.replace("def env_", f"{DEVICE}\ndef env_"),
        _kernel(f"reset({', '.join(names)})", [*_known(source, per_env), "after = np.uint64(0)", *_reset(source)]),
        _kernel(f"step({', '.join(names)}, t)", [*_known(source, per_env), *_step(source)]),
        _kernel(f"run({', '.join(names)}, first, last)", [*_known(source, per_env), *_steps(source, [])]),
        _kernel(
            f"run_random({', '.join(names)}, first, last, counter)",
            [*_known(source, per_env), *_steps(source, _draw_action(source))],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def rows(source: Source) -> tuple[int, int]:
    """Rows of worlds in the float and in the integer pack, without parameters."""
    return len(source.floats) + 1, len(source.integers) + 2


def params(source: Source) -> tuple[list[Param], list[Param]]:
    """Parameters in the float and in the integer pack."""
    return [p for p in source.params if p.dtype == F32], [p for p in source.params if p.dtype != F32]


def _kernel(head: str, body: list[str]) -> str:
    lines = ["i = np.uint64(cuda.grid(1))", "n = np.uint64(valid.shape[1])", "if i < n:", *_in(body)]
    return f"{KERNEL}\ndef {head}:\n" + indent("\n".join(lines), "    ")


def _in(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _known(source: Source, per_env: bool) -> list[str]:
    """Lines that load what every call knows: parameters, seed, number of the world, state."""
    items = []
    for param in source.params:
        real = param.dtype == F32
        k = params(source)[not real].index(param)
        first = rows(source)[not real]
        place = f"np.uint64({first + k}) * n + i" if per_env else f"np.uint64({first}) * n + np.uint64({k})"
        items.append(_read(f"{'floats' if real else 'integers'}[{place}]", param.dtype))
    extra = len(params(source)[1])
    tail = f"np.uint64({rows(source)[1] + (extra if per_env else 0)}) * n + np.uint64({0 if per_env else extra})"
    return [
        f"p = {_tuple(items)}",
        f"tail = {tail}",
        "seed = U32(integers[tail])",
        "world = U32(U32(integers[tail + np.uint64(1)]) + U32(i))",
        f"s = {_tuple([_read(_place(source, f), f.dtype) for f in source.state])}",
    ]


def _read(place: str, dtype: str) -> str:
    return {U32: f"U32({place})", BOOL: f"{place} != I32(0)"}.get(dtype, place)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _row(pack: str, k: int) -> str:
    return f"{pack}[np.uint64({k}) * n + i]"


def _place(source: Source, field: Field) -> str:
    """Where a field of world i is kept."""
    if field.shape is not None:
        return f"array_{field.name}[{':, ' * len(field.shape)}i]"
    if field.dtype == F32:
        return _row("floats", source.floats.index(field))
    return _row("integers", source.integers.index(field))


def _counters(source: Source) -> tuple[str, str, str]:
    """Where the episode's return, length and number are kept: behind the fields of State."""
    whole = len(source.integers)
    return _row("floats", len(source.floats)), _row("integers", whole), _row("integers", whole + 1)


def _store(source: Source, name: str) -> list[str]:
    """Lines that keep a new state; array fields have been changed in place."""
    scalars = [(k, f) for k, f in enumerate(source.state) if f.shape is None]
    return [f"{_place(source, f)} = {'F32' if f.dtype == F32 else 'I32'}({name}[{k}])" for k, f in scalars]


def _observe(source: Source, name: str) -> list[str]:
    """Lines that write the observation of a state into row `after`."""
    if source.observes_into:
        everything = ", :" * len(source.observation_space.shape)
        return [f"env_observe({name}, p, observation[after, i{everything}])"]
    count = source.observation_space.shape[0]
    return [f"seen = env_observe({name}, p)", *(f"observation[after, i, {k}] = seen[{k}]" for k in range(count))]


def _reset(source: Source, episode: str = "I32(0)") -> list[str]:
    """Lines that begin an episode, seen in row `after`."""
    total, length, number = _counters(source)
    return [
        f"episode = {episode}",
        "fresh = env_reset(s, p, (seed, U32(0), world, U32(episode), U32(0)))",
        f"{total} = F32(0.0)",
        f"{length} = I32(0)",
        f"{number} = episode",
        "valid[after, i] = True",
        *_store(source, "fresh"),
        *_observe(source, "fresh"),
    ]


def _step(source: Source) -> list[str]:
    total, length, number = _counters(source)
    late = f"steps >= I32({source.max_steps})" if source.max_steps else "False"  # maybe both, as in Gymnasium
    alive = [
        f"new, gain, over = env_step(s, p, {_action(source)}, (seed, U32(1), world, U32({number}), U32({length})))",
        f"steps = I32({length} + I32(1))",
        f"late = {late}",
        "reward[now, i] = gain",
        "terminated[now, i] = over",
        "truncated[now, i] = late",
        "valid[after, i] = (over | late) ^ True",
        "episode_return[now, i] = F32(0.0)",
        "episode_length[now, i] = I32(0)",
        f"{total} = F32({total} + gain)",
        f"{length} = steps",
        *_store(source, "new"),
        *_observe(source, "new"),
    ]
    ended = [
        "reward[now, i] = F32(0.0)",
        "terminated[now, i] = False",
        "truncated[now, i] = False",
        f"episode_return[now, i] = {total}",
        f"episode_length[now, i] = {length}",
        *_reset(source, f"I32({number} + I32(1))"),
    ]
    rows_of_time = ["now = np.uint64(t)", "after = now + np.uint64(1)"]
    return [*rows_of_time, "if valid[now, i]:", *_in(alive), "else:", *_in(ended)]


def _steps(source: Source, draw: list[str]) -> list[str]:
    """Lines for rows first .. last - 1, with the state in registers from the first to the last."""
    late = f"length >= I32({source.max_steps})" if source.max_steps else "False"
    alive = [
        f"new, gain, over = env_step(s, p, {_action(source)}, (seed, U32(1), world, U32(number), U32(length)))",
        "length = I32(length + I32(1))",
        f"late = {late}",
        "reward[now, i] = gain",
        "terminated[now, i] = over",
        "truncated[now, i] = late",
        "episode_return[now, i] = F32(0.0)",
        "episode_length[now, i] = I32(0)",
        "total = F32(total + gain)",
        "alive = (over | late) ^ True",
        f"s = {_kept(source, 'new')}",
    ]
    ended = [
        "reward[now, i] = F32(0.0)",
        "terminated[now, i] = False",
        "truncated[now, i] = False",
        "episode_return[now, i] = total",
        "episode_length[now, i] = length",
        "number = I32(number + I32(1))",
        "fresh = env_reset(s, p, (seed, U32(0), world, U32(number), U32(0)))",
        "total = F32(0.0)",
        "length = I32(0)",
        "alive = True",
        f"s = {_kept(source, 'fresh')}",
    ]
    body = [
        "after = now + np.uint64(1)",
        *draw,
        "if alive:",
        *_in(alive),
        "else:",
        *_in(ended),
        "valid[after, i] = alive",
        *_observe(source, "s"),
    ]
    total, length, number = _counters(source)
    return [
        f"total, length, number = {total}, {length}, {number}",
        "alive = valid[np.uint64(first), i]",
        "for now in range(np.uint64(first), np.uint64(last)):",
        *_in(body),
        f"{total} = total",
        f"{length} = length",
        f"{number} = number",
        *_store(source, "s"),
    ]


def _kept(source: Source, name: str) -> str:
    """A new state as it would be read again after it was stored."""
    items = []
    for k, field in enumerate(source.state):
        value = f"{name}[{k}]" if field.shape is None else f"s[{k}]"
        if field.shape is None:
            value = f"F32({value})" if field.dtype == F32 else _read(f"I32({value})", field.dtype)
        items.append(value)
    return _tuple(items)


def _draw_action(source: Source) -> list[str]:
    """Lines that write a random action of world i: the same bits as headrace.kernels.random_actions."""
    size = source.action_size
    lines = [
        "step = np.uint64(counter) + (now - np.uint64(first))",
        "key = (seed, U32(2), world, U32(step >> np.uint64(32)), U32(step))",
    ]
    for k, (low, high) in enumerate(zip(*bounds(source.action_space), strict=True)):
        place = "action[now, i]" if size is None else f"action[now, i, {k}]"
        if isinstance(source.action_space, Box):
            lines.append(f"{place} = uniform(key, {k}, {_bound(low)}, {_bound(high)})")
        else:
            count = int(high) - int(low)
            drawn = f"I32(_product(uniform(key, {k}, 0.0, 1.0), F32({count})))"
            lines.append(f"{place} = I32({int(low)}) + min({drawn}, I32({count - 1}))")
    return lines


def _action(source: Source) -> str:
    """action: of world i; a Box's clipped to its bounds."""
    size, space = source.action_size, source.action_space
    if size is None:
        return "action[now, i]"
    places = [f"action[now, i, {k}]" for k in range(size)]
    if isinstance(space, Box):
        bounds = zip(np.ravel(space.low), np.ravel(space.high), strict=True)
        places = [f"clip({x}, {_bound(low)}, {_bound(high)})" for x, (low, high) in zip(places, bounds, strict=True)]
    return _tuple(places)


def _bound(value: np.floating) -> str:
    return f"F32({float(value)!r})" if np.isfinite(value) else f"F32({'-' if value < 0 else ''}np.inf)"
