"""EnvIR -> the text of a Numba module for CUDA: one thread a world.

The module has the kernels `reset(...)`, `step(..., t)`, and two that take many steps in one launch, with the state in
registers: `run(..., first, last)` by the actions that stand in the rollout, `run_random(..., first, last, counter)` by
random ones, which they write there. A launch has few arguments, because each costs the host
time: all numbers of the worlds lie in one float32 and one int32 array, rows of N behind one another:

    floats     float fields of State, the running returns; then float parameters: a row each or, if shared, one number
    integers   other fields of State, length, episode; then other parameters likewise; then the seed, the first world

Array fields have the worlds last, so that neighbouring threads read neighbouring places. Columns of the rollout keep
their own shape, [T, N, ...]; of several agents, number k's are the columns i + k * n of the n worlds. Where
observations are pictures, another module draws them (generate_pictures).
"""

from __future__ import annotations

from textwrap import indent

import numpy as np
from gymnasium.spaces import Box

from headrace.kernels.language.ir import EnvIR, Field, Param
from headrace.kernels.language.kinds import BOOL, F32, U32
from headrace.kernels.language.ops import prelude
from headrace.kernels.targets.random_actions import bounds

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


def own(simulated: bool) -> str:
    """Words that CUDA has its own of. simulated: for Numba's CUDA simulator."""
    return OWN.format(product=SIMULATED_PRODUCT if simulated else PRODUCT)


def cuda_module(source: EnvIR, per_env: bool, simulated: bool) -> str:
    """The text of the module. per_env: each parameter has a value per world. simulated: for Numba's CUDA simulator."""
    tables = [f"{name} = np.array({a.tolist()!r}, np.{a.dtype})" for name, a in source.constants.items()]
    names = ["floats", "integers", *(f"array_{f.name}" for f in source.arrays), *COLUMNS]
    parts = [
        f'"""{source.name}, compiled for CUDA. Generated; the environment\'s own file is the source."""',
        prelude(DEVICE, own(simulated)),
        *tables,
        source.code.replace("def env_", f"{DEVICE}\ndef env_"),
        _kernel(
            source, f"reset({', '.join(names)})", [*known(source, per_env), "after = np.uint64(0)", *_reset(source)]
        ),
        _kernel(source, f"step({', '.join(names)}, t)", [*known(source, per_env), *_step(source)]),
        _kernel(source, f"run({', '.join(names)}, first, last)", [*known(source, per_env), *_steps(source, [])]),
        _kernel(
            source,
            f"run_random({', '.join(names)}, first, last, counter)",
            [*known(source, per_env), *_steps(source, _draw_action(source))],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def rows(source: EnvIR) -> tuple[int, int]:
    """Rows of worlds in the float and in the integer pack, without parameters."""
    return len(source.floats) + source.num_agents, len(source.integers) + 2


def params(source: EnvIR) -> tuple[list[Param], list[Param]]:
    """Parameters in the float and in the integer pack."""
    return [p for p in source.params if p.dtype == F32], [p for p in source.params if p.dtype != F32]


def _kernel(source: EnvIR, head: str, body: list[str]) -> str:
    worlds = "n = np.uint64(valid.shape[1])" + (f" // np.uint64({source.num_agents})" if source.num_agents > 1 else "")
    lines = ["i = np.uint64(cuda.grid(1))", worlds, "if i < n:", *_in(body)]
    return f"{KERNEL}\ndef {head}:\n" + indent("\n".join(lines), "    ")


def _in(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def known(source: EnvIR, per_env: bool) -> list[str]:
    """Lines that load what every call knows of world i of n: parameters, seed, number of the world, state."""
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


def _place(source: EnvIR, field: Field) -> str:
    """Where a field of world i is kept."""
    if field.shape is not None:
        return f"array_{field.name}[{':, ' * len(field.shape)}i]"
    if field.dtype == F32:
        return _row("floats", source.floats.index(field))
    return _row("integers", source.integers.index(field))


def _counters(source: EnvIR) -> tuple[list[str], str, str]:
    """Where the episode's return (each agent's), length and number are kept: behind the fields of State."""
    whole = len(source.integers)
    totals = [_row("floats", len(source.floats) + agent) for agent in range(source.num_agents)]
    return totals, _row("integers", whole), _row("integers", whole + 1)


def _column(agent: int) -> str:
    """The number of an agent's column."""
    return f"i + np.uint64({agent}) * n" if agent else "i"


def _each(source: EnvIR, line: str) -> list[str]:
    """A line `column[row, i] = value` for each agent; {gain} and {before} in it are the agent's reward and return."""
    before, after = line.split(", i]", 1)
    return [
        f"{before}, {_column(agent)}]" + after.format(gain=_gain(source, agent), before=f"total{agent}")
        for agent in range(source.num_agents)
    ]


def _gain(source: EnvIR, agent: int) -> str:
    return "gain" if source.num_agents == 1 else f"gain[{agent}]"


def _store(source: EnvIR, name: str) -> list[str]:
    """Lines that keep a new state; array fields have been changed in place."""
    scalars = [(k, f) for k, f in enumerate(source.state) if f.shape is None]
    return [f"{_place(source, f)} = {'F32' if f.dtype == F32 else 'I32'}({name}[{k}])" for k, f in scalars]


def _observe(source: EnvIR, name: str) -> list[str]:
    """Lines that write the observation of a state into row `after`."""
    if source.frames:
        return []
    lines, shape = [], source.observation_space.shape
    for agent in range(source.num_agents):
        given = f"{name}, p" + (f", I32({agent})" if source.num_agents > 1 else "")
        place = f"observation[after, {_column(agent)}"
        if source.observes_into:
            lines.append(f"env_observe({given}, {place}{', :' * len(shape)}])")
        else:
            lines.append(f"seen = env_observe({given})")
            lines += [f"{place}, {k}] = seen[{k}]" for k in range(shape[0])]
    return lines


def _reset(source: EnvIR, episode: str = "I32(0)") -> list[str]:
    """Lines that begin an episode, seen in row `after`."""
    totals, length, number = _counters(source)
    return [
        f"episode = {episode}",
        "fresh = env_reset(s, p, (seed, U32(0), world, U32(episode), U32(0)))",
        *(f"{total} = F32(0.0)" for total in totals),
        f"{length} = I32(0)",
        f"{number} = episode",
        *_each(source, "valid[after, i] = True"),
        *_store(source, "fresh"),
        *_observe(source, "fresh"),
    ]


def _step(source: EnvIR) -> list[str]:
    totals, length, number = _counters(source)
    late = f"steps >= I32({source.max_steps})" if source.max_steps else "False"  # maybe both, as in Gymnasium
    alive = [
        f"new, gain, over = env_step(s, p, {_action(source)}, (seed, U32(1), world, U32({number}), U32({length})))",
        f"steps = I32({length} + I32(1))",
        f"late = {late}",
        *_each(source, "reward[now, i] = {gain}"),
        *_each(source, "terminated[now, i] = over"),
        *_each(source, "truncated[now, i] = late"),
        *_each(source, "valid[after, i] = (over | late) ^ True"),
        *_each(source, "episode_return[now, i] = F32(0.0)"),
        *_each(source, "episode_length[now, i] = I32(0)"),
        *(f"{total} = F32({total} + {_gain(source, agent)})" for agent, total in enumerate(totals)),
        f"{length} = steps",
        *_store(source, "new"),
        *_observe(source, "new"),
    ]
    ended = [
        *(f"total{agent} = {total}" for agent, total in enumerate(totals)),
        *_each(source, "reward[now, i] = F32(0.0)"),
        *_each(source, "terminated[now, i] = False"),
        *_each(source, "truncated[now, i] = False"),
        *_each(source, "episode_return[now, i] = {before}"),
        *_each(source, f"episode_length[now, i] = {length}"),
        *_reset(source, f"I32({number} + I32(1))"),
    ]
    rows_of_time = ["now = np.uint64(t)", "after = now + np.uint64(1)"]
    return [*rows_of_time, "if valid[now, i]:", *_in(alive), "else:", *_in(ended)]


def _steps(source: EnvIR, draw: list[str]) -> list[str]:
    """Lines for rows first .. last - 1, with the state in registers from the first to the last."""
    totals, length, number = _counters(source)
    late = f"length >= I32({source.max_steps})" if source.max_steps else "False"
    alive = [
        f"new, gain, over = env_step(s, p, {_action(source)}, (seed, U32(1), world, U32(number), U32(length)))",
        "length = I32(length + I32(1))",
        f"late = {late}",
        *_each(source, "reward[now, i] = {gain}"),
        *_each(source, "terminated[now, i] = over"),
        *_each(source, "truncated[now, i] = late"),
        *_each(source, "episode_return[now, i] = F32(0.0)"),
        *_each(source, "episode_length[now, i] = I32(0)"),
        *(f"total{agent} = F32(total{agent} + {_gain(source, agent)})" for agent in range(source.num_agents)),
        "alive = (over | late) ^ True",
        f"s = {_kept(source, 'new')}",
    ]
    ended = [
        *_each(source, "reward[now, i] = F32(0.0)"),
        *_each(source, "terminated[now, i] = False"),
        *_each(source, "truncated[now, i] = False"),
        *_each(source, "episode_return[now, i] = {before}"),
        *_each(source, "episode_length[now, i] = length"),
        "number = I32(number + I32(1))",
        "fresh = env_reset(s, p, (seed, U32(0), world, U32(number), U32(0)))",
        *(f"total{agent} = F32(0.0)" for agent in range(source.num_agents)),
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
        *_each(source, "valid[after, i] = alive"),
        *_observe(source, "s"),
    ]
    return [
        *(f"total{agent} = {total}" for agent, total in enumerate(totals)),
        f"length, number = {length}, {number}",
        "alive = valid[np.uint64(first), i]",
        "for now in range(np.uint64(first), np.uint64(last)):",
        *_in(body),
        *(f"{total} = total{agent}" for agent, total in enumerate(totals)),
        f"{length} = length",
        f"{number} = number",
        *_store(source, "s"),
    ]


def _kept(source: EnvIR, name: str) -> str:
    """A new state as it would be read again after it was stored."""
    items = []
    for k, field in enumerate(source.state):
        value = f"{name}[{k}]" if field.shape is None else f"s[{k}]"
        if field.shape is None:
            value = f"F32({value})" if field.dtype == F32 else _read(f"I32({value})", field.dtype)
        items.append(value)
    return _tuple(items)


def _draw_action(source: EnvIR) -> list[str]:
    """Lines that write a random action of world i: the same bits as headrace.kernels.targets.random_actions."""
    lines = ["step = np.uint64(counter) + (now - np.uint64(first))"]
    for agent in range(source.num_agents):
        who = f"U32(U64(world) + U64({_column(agent)} - i))" if agent else "world"
        lines.append(f"key = (seed, U32(2), {who}, U32(step >> np.uint64(32)), U32(step))")
        for k, (low, high) in enumerate(zip(*bounds(source.action_space), strict=True)):
            place = f"action[now, {_column(agent)}" + ("]" if source.action_size is None else f", {k}]")
            if isinstance(source.action_space, Box):
                lines.append(f"{place} = uniform(key, {k}, {_bound(low)}, {_bound(high)})")
            else:
                count = int(high) - int(low)
                drawn = f"I32(_product(uniform(key, {k}, 0.0, 1.0), F32({count})))"
                lines.append(f"{place} = I32({int(low)}) + min({drawn}, I32({count - 1}))")
    return lines


def _action(source: EnvIR) -> str:
    """action: of world i, of several agents a tuple of theirs; a Box's clipped to its bounds."""
    actions = [_action_of(source, _column(agent)) for agent in range(source.num_agents)]
    return actions[0] if source.num_agents == 1 else _tuple(actions)


def _action_of(source: EnvIR, column: str) -> str:
    size, space = source.action_size, source.action_space
    if size is None:
        return f"action[now, {column}]"
    places = [f"action[now, {column}, {k}]" for k in range(size)]
    if isinstance(space, Box):
        bounds = zip(np.ravel(space.low), np.ravel(space.high), strict=True)
        places = [f"clip({x}, {_bound(low)}, {_bound(high)})" for x, (low, high) in zip(places, bounds, strict=True)]
    return _tuple(places)


def _bound(value: np.floating) -> str:
    return f"F32({float(value)!r})" if np.isfinite(value) else f"F32({'-' if value < 0 else ''}np.inf)"
