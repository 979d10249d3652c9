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

from headrace.kernels.kinds import BOOL, F32, U32
from headrace.kernels.source import Field, Source
from headrace.kernels.typed import pure
from headrace.kernels.words import prelude

CHUNK = 1024  # worlds whose columns fit the first-level cache together
INLINE = '@njit(error_model="numpy", fastmath={"contract"}, forceinline=True)'
KERNEL = '@njit(error_model="numpy", fastmath={"contract"}, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)'
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
        _reset(source, per_env),
        _step_branch_free(source, per_env) if branch_free(source) else _step_branching(source, per_env),
        _steps(source),
    ]
    return "\n\n".join(parts) + "\n"


def _params(source: Source, per_env: bool) -> str:
    """p: loaded once, or of world i."""
    counts = {True: 0, False: 0}
    items = []
    for param in source.params:
        real = param.dtype == F32
        k = counts[real]
        counts[real] += 1
        shared = f"{'float' if real else 'integer'}_params[{k}]"
        place = _in_block("fp" if real else "ip", k) if per_env else shared
        items.append(_read(place, param.dtype))
    return f"p = {_tuple(items)}"


def _in_block(block: str, row: int) -> str:
    """World i's entry of a row of a block."""
    return f"{block}[np.uint64({row * CHUNK}) + i]"


def _read(place: str, dtype: str) -> str:
    return {U32: f"U32({place})", BOOL: f"{place} != I32(0)"}.get(dtype, place)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _place(source: Source, field: Field) -> str:
    """Where a field of world i is kept."""
    if field.shape is not None:
        return f"array_{field.name}[np.uint64(lo) + i]"
    if field.dtype == F32:
        return _in_block("fs", source.floats.index(field))
    return _in_block("ns", source.integers.index(field))


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


def _observe(source: Source, name: str) -> list[str]:
    """Lines that write the observation of a state into row `after` of world i."""
    shape = source.observation_space.shape
    if source.observes_into:
        out = "observation[np.uint64(after) + i::plane]" if len(shape) == 1 else "observation[t + 1, np.uint64(lo) + i]"
        return [f"env_observe({name}, p, {out})"]
    return [f"seen = env_observe({name}, p)", *(f"seen{k}[i] = seen[{k}]" for k in range(shape[0]))]


def _action(source: Source) -> str:
    """action: of world i at this row; a Box's clipped to its bounds."""
    size = source.action_size
    if size is None:
        return "action_now[i]"
    places = [f"action{k}_now[i]" for k in range(size)]
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
    return _in_block("fs", len(source.floats)), _in_block("ns", whole), _in_block("ns", whole + 1)


def _begin(source: Source, per_env: bool, episode: str) -> list[str]:
    """Lines that begin an episode of world i, seen in row `after`."""
    total, length, number = _counters(source)
    return [
        *([_params(source, True)] if per_env else []),
        f"episode = {episode}",
        _state(source),
        "fresh = env_reset(s, p, (seed, U32(0), U32(np.uint64(first + lo) + i), U32(episode), U32(0)))",
        f"{total} = F32(0.0)",
        f"{length} = I32(0)",
        f"{number} = episode",
        *_store(source, "fresh"),
        *_observe(source, "fresh"),
    ]


def _reset(source: Source, per_env: bool) -> str:
    """Episode 0 of the worlds of one chunk; then of all."""
    lines = [
        "t, after = -1, lo",
        *_blocks(source, per_env),
        *_seen_rows(source),
        "valid_after = valid[after:]",
        *_block("for i in range(np.uint64(hi - lo))", ["valid_after[i] = True", *_begin(source, per_env, "I32(0)")]),
    ]
    names = arguments(source)
    chunk = _function(INLINE, f"reset_chunk({names}, lo, hi)", lines)
    loop = _block(
        f"for start in range(0, worlds, {CHUNK})", [f"reset_chunk({names}, start, min(start + {CHUNK}, worlds))"]
    )
    return chunk + "\n\n" + _function(KERNEL, f"reset({names}, worlds)", loop)


def _begin_next(source: Source, per_env: bool) -> list[str]:
    return _begin(source, per_env, f"I32({_counters(source)[2]} + I32(1))")


def _step_key(source: Source) -> str:
    _, length, number = _counters(source)
    return f"(seed, U32(1), U32(np.uint64(first + lo) + i), U32({number}), U32({length}))"


def _outcome(source: Source) -> list[str]:
    """Lines that step world i and settle whether its episode ends."""
    _, length, _ = _counters(source)
    limit = f"steps >= I32({source.max_steps})" if source.max_steps else "False"  # maybe both, as in Gymnasium
    return [
        _state(source),
        f"new, gain, over = env_step(s, p, {_action(source)}, {_step_key(source)})",
        f"steps = I32({length} + I32(1))",
        f"late = {limit}",
    ]


def _step_branch_free(source: Source, per_env: bool) -> str:
    """Loops of few columns each: LLVM gives up on more than 128 tests of whether two of them overlap."""
    total, length, _ = _counters(source)
    params = [_params(source, True)] if per_env else []
    step = [
        *params,
        "alive = valid_now[i]",
        *_outcome(source),
        f"before = {total}",
        "over = over & alive",
        "late = late & alive",
        "reward_now[i] = select(alive, gain, F32(0.0))",
        "terminated_now[i] = over",
        "truncated_now[i] = late",
        "valid_after[i] = (over | late) ^ True",
        "episode_return_now[i] = select(alive, F32(0.0), before)",
        f"episode_length_now[i] = select(alive, I32(0), {length})",
        f"{total} = before + gain",
        f"{length} = steps",
        *_store(source, "new"),
    ]
    lines = [
        *_rows(source, per_env),
        *_block("for i in range(np.uint64(hi - lo))", step),
        *_block("for i in range(np.uint64(hi - lo))", [*params, _state(source), *_observe(source, "s")]),
        "count = np.uint64(0)",
        "list_of_dead = dead[lo:]",
        *_block(
            "for i in range(np.uint64(hi - lo))",
            ["list_of_dead[count] = I32(i)", "count += np.uint64(valid_now[i] ^ True)"],
        ),
        *_block("for k in range(count)", ["i = np.uint64(list_of_dead[k])", *_begin_next(source, per_env)]),
    ]
    return _function(INLINE, f"step_chunk({arguments(source)}, t, lo, hi)", lines)


def _step_branching(source: Source, per_env: bool) -> str:
    total, length, _ = _counters(source)
    alive = [
        *([_params(source, True)] if per_env else []),
        *_outcome(source),
        "reward_now[i] = gain",
        "terminated_now[i] = over",
        "truncated_now[i] = late",
        "valid_after[i] = (over | late) ^ True",
        "episode_return_now[i] = F32(0.0)",
        "episode_length_now[i] = I32(0)",
        f"{total} += gain",
        f"{length} = steps",
        *_store(source, "new"),
        *_observe(source, "new"),
    ]
    ended = [
        "reward_now[i] = F32(0.0)",
        "terminated_now[i] = False",
        "truncated_now[i] = False",
        "valid_after[i] = True",
        f"episode_return_now[i] = {total}",
        f"episode_length_now[i] = {length}",
        *_begin_next(source, per_env),
    ]
    lines = [
        *_rows(source, per_env),
        *_block(
            "for i in range(np.uint64(hi - lo))",
            [*_block("if valid_now[i]", alive), *_block("else", ended)],
        ),
    ]
    return _function(INLINE, f"step_chunk({arguments(source)}, t, lo, hi)", lines)


def _rows(source: Source, per_env: bool) -> list[str]:
    """Lines before the loops over a chunk: the chunk's part of each row, so that every index begins at 0.

    LLVM then sees where each part begins and ends, and can test that none overlaps another.
    """
    lines = ["now = t * row + lo", "after = now + row"]
    lines += [f"{name}_now = {name}[now:]" for name in COLUMNS.split(", ")[3:]]
    lines += ["valid_now = valid[now:]", "valid_after = valid[after:]"]
    if source.action_size is None:
        lines.append("action_now = action[now:]")
    else:
        lines += [f"action{k}_now = action[{k} * action_plane + now:]" for k in range(source.action_size)]
    return [*lines, *_seen_rows(source), *_blocks(source, per_env)]


def _seen_rows(source: Source) -> list[str]:
    count = 0 if source.observes_into else source.observation_space.shape[0]
    return [f"seen{k} = observation[{k} * plane + after:]" for k in range(count)]


def _blocks(source: Source, per_env: bool) -> list[str]:
    """The chunk's block of each pack: rows of CHUNK worlds, one behind the other, from world lo on. Parameters shared
    by all: p."""
    floats, integers = rows(source)
    lines = [f"fs = floats[{_chunk(floats)}:]", f"ns = integers[{_chunk(integers)}:]"]
    if not per_env:
        return [*lines, _params(source, False)]
    real = sum(param.dtype == F32 for param in source.params)
    whole = len(source.params) - real
    return [*lines, f"fp = float_params[{_chunk(real)}:]", f"ip = integer_params[{_chunk(whole)}:]"]


def _chunk(rows: int) -> str:
    """Where world lo's entries begin in a pack of so many rows."""
    return f"lo // {CHUNK} * {CHUNK * rows} + lo % {CHUNK}"


def rows(source: Source) -> tuple[int, int]:
    """Rows in a block of the float and of the integer pack: fields, and the running return; length and episode."""
    return len(source.floats) + 1, len(source.integers) + 2


def _steps(source: Source) -> str:
    names = arguments(source)
    chunk = [f"step_chunk({names}, t, start, min(start + {CHUNK}, hi))"]
    serial = _function(KERNEL, f"step({names}, lo, hi, t)", _block(f"for start in range(lo, hi, {CHUNK})", chunk))
    part = [f"step({names}, cut[part], cut[part + 1], t)"]
    threads = _function(
        PARALLEL, f"step_parallel({names}, cut, t)", _block("for part in prange(cut.shape[0] - 1)", part)
    )
    return f"{serial}\n\n{threads}"
