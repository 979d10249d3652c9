"""Source -> the text of a Numba module for the CPU.

The module has `reset` and `step` of the worlds lo .. hi - 1 and `step_parallel`, the same in contiguous parts, one per
thread. What they were measured to need: unsigned loop indices, feature-major observations, no fastmath flag but
`contract` (others change bits with the way work is cut), and, where an environment has neither arrays nor branches, a
step without branches followed by resets of the few worlds that are dead, a chunk of worlds at a time.
"""

from __future__ import annotations

from textwrap import indent

import numpy as np
from gymnasium.spaces import Box

from headrace.kernels.expressions import pure
from headrace.kernels.kinds import BOOL, F32, U32
from headrace.kernels.source import Field, Source
from headrace.kernels.words import prelude

CHUNK = 1024  # worlds whose columns fit the first-level cache together
INLINE = '@njit(error_model="numpy", fastmath={"contract"}, forceinline=True)'
KERNEL = '@njit(error_model="numpy", fastmath={"contract"}, nogil=True, cache=True)'
PARALLEL = '@njit(error_model="numpy", fastmath={"contract"}, nogil=True, cache=True, parallel=True)'
COLUMNS = "observation, valid, action, reward, terminated, truncated, episode_return, episode_length"


def branch_free(source: Source) -> bool:
    """Can every world be stepped alike, even a dead one whose result is thrown away?"""
    plain = pure(*(function.node for function in source.functions))
    return plain and source.statement is None and not source.arrays and not source.observes_into


def state_arguments(source: Source) -> str:
    """Names of the arrays that hold the worlds, in the order the kernels take them."""
    return ", ".join(
        ["floats, integers, float_params, integer_params, dead", *(f"array_{f.name}" for f in source.arrays)]
    )


def arguments(source: Source) -> str:
    """Names of all that `step` takes but the time and the range of worlds."""
    return f"{state_arguments(source)}, {COLUMNS}, seed, first, row, plane, action_plane"


def cpu_module(source: Source, per_env: bool) -> str:
    """The text of the module. per_env: each parameter has a value per world."""
    tables = [f"{name} = np.array({a.tolist()!r}, np.{a.dtype})" for name, a in source.constants.items()]
    decorated = source.code.replace("def env_", f"{INLINE}\ndef env_")
    parts = [
        f'"""{source.name}, compiled for the CPU. Generated; the environment\'s own file is the source."""',
        "from numba import njit, prange",
        prelude(INLINE),
        *tables,
        decorated,
        _reset_one(source, per_env),
        _reset(source),
        _step_branch_free(source, per_env) if branch_free(source) else _step_branching(source, per_env),
        _steps(source),
    ]
    return "\n\n".join(parts) + "\n"


def _params(source: Source, per_env: bool) -> str:
    """p: loaded once, or of world i."""
    index = ", i]" if per_env else "]"
    counts = {"float": 0, "integer": 0}
    items = []
    for param in source.params:
        pack = "float" if param.dtype == F32 else "integer"
        items.append(_read(f"{pack}_params[{counts[pack]}{index}", param.dtype))
        counts[pack] += 1
    return f"p = {_tuple(items)}"


def _read(place: str, dtype: str) -> str:
    return {U32: f"U32({place})", BOOL: f"{place} != I32(0)"}.get(dtype, place)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _place(source: Source, field: Field) -> str:
    """Where a field of world i is kept."""
    if field.shape is not None:
        return f"array_{field.name}[i]"
    if field.dtype == F32:
        return f"floats[{source.floats.index(field)}, i]"
    return f"integers[{source.integers.index(field)}, i]"


def _state(source: Source) -> str:
    return "s = " + _tuple([_read(_place(source, f), f.dtype) for f in source.state])


def _store(source: Source, name: str) -> list[str]:
    """Lines that keep a new state; array fields have been changed in place."""
    lines = []
    for k, field in enumerate(source.state):
        if field.shape is None:
            value = f"{name}[{k}]" if field.dtype == F32 else f"I32({name}[{k}])"
            lines.append(f"{_place(source, field)} = {value}")
    return lines


def _observe(source: Source, name: str, time: str) -> list[str]:
    """Lines that write the observation of a state into the row at `time`."""
    shape = source.observation_space.shape
    start = f"np.uint64({time}) * np.uint64(row) + i"
    if not source.observes_into:
        places = [f"observation[np.uint64({k}) * np.uint64(plane) + {start}]" for k in range(shape[0])]
        return [f"seen = env_observe({name}, p)", *(f"{place} = seen[{k}]" for k, place in enumerate(places))]
    out = f"observation[{start}::plane]" if len(shape) == 1 else f"observation[{time}, i]"
    return [f"env_observe({name}, p, {out})"]


def _action(source: Source) -> str:
    """action: of world i at this row; a Box's clipped to its bounds."""
    size = source.action_size
    if size is None:
        return "action[now + i]"
    places = [f"action[np.uint64({k}) * np.uint64(action_plane) + now + i]" for k in range(size)]
    space = source.action_space
    if isinstance(space, Box):
        bounds = zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True)
        places = [_clipped(place, low, high) for place, (low, high) in zip(places, bounds, strict=True)]
    return _tuple(places)


def _clipped(place: str, low: float, high: float) -> str:
    low_text, high_text = (
        f"F32({x!r})" if np.isfinite(x) else f"F32({'-' if x < 0 else ''}np.inf)" for x in (low, high)
    )
    return f"clip({place}, {low_text}, {high_text})"


def _function(decorator: str, head: str, lines: list[str]) -> str:
    return f"{decorator}\ndef {head}:\n" + indent("\n".join(lines), "    ")


def _block(head: str, lines: list[str]) -> list[str]:
    return [f"{head}:", *(f"    {line}" for line in lines)]


def _counters(source: Source) -> tuple[str, str, str]:
    """Where world i keeps its episode's return, length and number: behind the fields of State."""
    whole = len(source.integers)
    return f"floats[{len(source.floats)}, i]", f"integers[{whole}, i]", f"integers[{whole + 1}, i]"


def _reset_one(source: Source, per_env: bool) -> str:
    """Episode `episode` of world i begins, seen in the row at `time`."""
    total, length, number = _counters(source)
    lines = [
        _params(source, per_env),
        _state(source),
        f"{total} = F32(0.0)",
        f"{length} = I32(0)",
        f"{number} = I32(episode)",
        "fresh = env_reset(s, p, (seed, U32(0), U32(first + i), U32(episode), U32(0)))",
        *_store(source, "fresh"),
        *_observe(source, "fresh", "time"),
    ]
    head = f"reset_one({state_arguments(source)}, observation, seed, first, row, plane, i, episode, time)"
    return _function(INLINE, head, lines)


def _reset(source: Source) -> str:
    call = f"reset_one({state_arguments(source)}, observation, seed, first, row, plane, i, I32(0), 0)"
    lines = _block("for i in range(np.uint64(0), np.uint64(floats.shape[1]))", ["valid[i] = True", call])
    return _function(KERNEL, f"reset({arguments(source)})", lines)


def _reset_dead(source: Source) -> str:
    number = _counters(source)[2]
    state = state_arguments(source)
    return f"reset_one({state}, observation, seed, first, row, plane, i, I32({number} + I32(1)), t + 1)"


def _step_key(source: Source) -> str:
    _, length, number = _counters(source)
    return f"(seed, U32(1), U32(first + i), U32({number}), U32({length}))"


def _outcome(source: Source) -> list[str]:
    """Lines that step world i and settle whether its episode ends."""
    _, length, _ = _counters(source)
    limit = f"(steps >= I32({source.max_steps})) & (over ^ True)" if source.max_steps else "False"
    return [
        _state(source),
        f"new, gain, over = env_step(s, p, {_action(source)}, {_step_key(source)})",
        f"steps = I32({length} + I32(1))",
        f"late = {limit}",
    ]


def _step_branch_free(source: Source, per_env: bool) -> str:
    total, length, _ = _counters(source)
    body = [
        *([_params(source, True)] if per_env else []),
        "alive = valid[now + i]",
        *_outcome(source),
        f"before = {total}",
        "over = over & alive",
        "late = late & alive",
        "reward[now + i] = select(alive, gain, F32(0.0))",
        "terminated[now + i] = over",
        "truncated[now + i] = late",
        "valid[after + i] = (over | late) ^ True",
        "episode_return[now + i] = select(alive, F32(0.0), before)",
        f"episode_length[now + i] = select(alive, I32(0), {length})",
        f"{total} = before + gain",
        f"{length} = steps",
        *_store(source, "new"),
        *_observe(source, "new", "t + 1"),
    ]
    lines = [
        *_rows(source, per_env),
        *_block("for i in range(np.uint64(lo), np.uint64(hi))", body),
        "count = np.uint64(lo)",
        *_block(
            "for i in range(np.uint64(lo), np.uint64(hi))",
            ["dead[count] = I32(i)", "count += np.uint64(valid[now + i] ^ True)"],
        ),
        *_block(
            "for k in range(np.uint64(lo), count)",
            ["i = np.uint64(dead[k])", _reset_dead(source)],
        ),
    ]
    return _function(INLINE, f"step_chunk({arguments(source)}, t, lo, hi)", lines)


def _step_branching(source: Source, per_env: bool) -> str:
    total, length, _ = _counters(source)
    alive = [
        *([_params(source, True)] if per_env else []),
        *_outcome(source),
        "reward[now + i] = gain",
        "terminated[now + i] = over",
        "truncated[now + i] = late",
        "valid[after + i] = (over | late) ^ True",
        "episode_return[now + i] = F32(0.0)",
        "episode_length[now + i] = I32(0)",
        f"{total} += gain",
        f"{length} = steps",
        *_store(source, "new"),
        *_observe(source, "new", "t + 1"),
    ]
    ended = [
        "reward[now + i] = F32(0.0)",
        "terminated[now + i] = False",
        "truncated[now + i] = False",
        "valid[after + i] = True",
        f"episode_return[now + i] = {total}",
        f"episode_length[now + i] = {length}",
        _reset_dead(source),
    ]
    lines = [
        *_rows(source, per_env),
        *_block(
            "for i in range(np.uint64(lo), np.uint64(hi))",
            [*_block("if valid[now + i]", alive), *_block("else", ended)],
        ),
    ]
    return _function(INLINE, f"step_chunk({arguments(source)}, t, lo, hi)", lines)


def _rows(source: Source, per_env: bool) -> list[str]:
    """Lines before a loop: the columns' rows, and parameters that all worlds share."""
    rows = ["now = np.uint64(t) * np.uint64(row)", "after = now + np.uint64(row)"]
    return rows if per_env else [*rows, _params(source, False)]


def _steps(source: Source) -> str:
    names = arguments(source)
    chunk = [f"step_chunk({names}, t, start, min(start + {CHUNK}, hi))"]
    serial = _function(KERNEL, f"step({names}, lo, hi, t)", _block(f"for start in range(lo, hi, {CHUNK})", chunk))
    part = [f"step({names}, cut[part], cut[part + 1], t)"]
    threads = _function(
        PARALLEL, f"step_parallel({names}, cut, t)", _block("for part in prange(cut.shape[0] - 1)", part)
    )
    return f"{serial}\n\n{threads}"
