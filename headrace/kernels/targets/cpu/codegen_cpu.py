"""EnvIR -> the text of a Numba module for the CPU.

The module has `reset` and `step` of the worlds lo .. hi - 1 and `step_parallel`, the same in contiguous parts, one per
thread. What they were measured to need: unsigned loop indices, feature-major observations, no fastmath flag but
`contract` (others change bits with the way work is cut), and, where an environment has neither arrays nor branches, a
step without branches followed by resets of the few worlds that are dead, a chunk of worlds at a time.

Of several agents each has columns of its own: agent k's begin k * agent_plane entries after the first one's, and are
named with _of1, _of2 ... behind. Where observations are pictures, another module draws them (generate_pictures).
"""

from __future__ import annotations

from textwrap import indent

import numpy as np
from gymnasium.spaces import Box

from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import prelude
from headrace.kernels.language.typed import pure
from headrace.kernels.targets.cpu.state_layout import (
    CHUNK,
    blocks,
    in_block,
    params,
    state,
    state_arguments,
    store,
    tuple_of,
)

INLINE = '@njit(error_model="numpy", fastmath={"contract"}, forceinline=True)'
KERNEL = '@njit(error_model="numpy", fastmath={"contract"}, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)'
PARALLEL = '@njit(error_model="numpy", fastmath={"contract"}, nogil=True, cache=True, parallel=True)'
COLUMNS = "observation, valid, action, reward, terminated, truncated, episode_return, episode_length"


def branch_free(source: EnvIR) -> bool:
    """Can every world be stepped alike, even a dead one whose result is thrown away?"""
    plain = pure(*(function.node for function in source.functions))
    return plain and source.statement is None and not source.arrays and not source.observes_into


def arguments(source: EnvIR) -> str:
    """Names of all that `step` takes but the time and the range of worlds."""
    planes = "row, plane, action_plane" + (", agent_plane" if source.num_agents > 1 else "")
    return f"{state_arguments(source)}, {COLUMNS}, seed, first, {planes}"


def cpu_module(source: EnvIR, per_env: bool) -> str:
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


def _of(name: str, agent: int) -> str:
    """The name of an agent's own column."""
    return f"{name}_of{agent}" if agent else name


def _plane(agent: int) -> str:
    """How far behind the first agent's columns those of an agent begin."""
    return f" + {agent} * agent_plane" if agent else ""


def _each(source: EnvIR, line: str) -> list[str]:
    """A line `column[i] = value` for each agent; {gain} and {before} in it are the agent's reward and return."""
    column, rest = line.split("[", 1)
    return [
        f"{_of(column, agent)}[{rest.format(gain=_gain(source, agent), before=_of('before', agent))}"
        for agent in range(source.num_agents)
    ]


def _gain(source: EnvIR, agent: int) -> str:
    return "gain" if source.num_agents == 1 else f"gain[{agent}]"


def _observe(source: EnvIR, name: str) -> list[str]:
    """Lines that write the observation of a state into row `after` of world i."""
    return [] if source.frames else [line for lines in _observe_each(source, name) for line in lines]


def _observe_each(source: EnvIR, name: str) -> list[list[str]]:
    """The same, agent by agent."""
    found = []
    shape = source.observation_space.shape
    for agent in range(source.num_agents):
        given = f"{name}, p" + (f", I32({agent})" if source.num_agents > 1 else "")
        if source.observes_into:
            plane = _plane(agent)
            vector, image = f"np.uint64(after{plane}) + i::plane", f"t + 1, np.uint64(lo{plane}) + i"
            found.append([f"env_observe({given}, observation[{vector if len(shape) == 1 else image}])"])
        else:
            kept = [f"{_of(f'seen{k}', agent)}[i] = seen[{k}]" for k in range(shape[0])]
            found.append([f"seen = env_observe({given})", *kept])
    return found


def _action(source: EnvIR) -> str:
    """action: of world i at this row, of several agents a tuple of theirs; a Box's clipped to its bounds."""
    actions = [_action_of(source, agent) for agent in range(source.num_agents)]
    return actions[0] if source.num_agents == 1 else tuple_of(actions)


def _action_of(source: EnvIR, agent: int) -> str:
    size = source.action_size
    if size is None:
        return f"{_of('action_now', agent)}[i]"
    places = [f"{_of(f'action{k}_now', agent)}[i]" for k in range(size)]
    space = source.action_space
    if isinstance(space, Box):
        bounds = zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True)
        places = [_clipped(place, low, high) for place, (low, high) in zip(places, bounds, strict=True)]
    return tuple_of(places)


def _clipped(place: str, low: float, high: float) -> str:
    low_text, high_text = (
        f"F32({x!r})" if np.isfinite(x) else f"F32({'-' if x < 0 else ''}np.inf)" for x in (low, high)
    )
    return f"clip({place}, {low_text}, {high_text})"


def _function(decorator: str, head: str, lines: list[str]) -> str:
    return f"{decorator}\ndef {head}:\n" + indent("\n".join(lines), "    ")


def _block(head: str, lines: list[str]) -> list[str]:
    return [f"{head}:", *(f"    {line}" for line in lines)]


def _counters(source: EnvIR) -> tuple[list[str], str, str]:
    """Where world i keeps its episode's return (each agent's), length and number: behind the fields of State."""
    whole = len(source.integers)
    totals = [in_block("fs", len(source.floats) + agent) for agent in range(source.num_agents)]
    return totals, in_block("ns", whole), in_block("ns", whole + 1)


def _begin(source: EnvIR, per_env: bool, episode: str) -> list[str]:
    """Lines that begin an episode of world i, seen in row `after`."""
    totals, length, number = _counters(source)
    return [
        *([params(source, True)] if per_env else []),
        f"episode = {episode}",
        state(source),
        "fresh = env_reset(s, p, (seed, U32(0), U32(np.uint64(first + lo) + i), U32(episode), U32(0)))",
        *(f"{total} = F32(0.0)" for total in totals),
        f"{length} = I32(0)",
        f"{number} = episode",
        *store(source, "fresh"),
        *_observe(source, "fresh"),
    ]


def _reset(source: EnvIR, per_env: bool) -> str:
    """Episode 0 of the worlds of one chunk; then of all."""
    lines = [
        "t, after = -1, lo",
        *blocks(source, per_env),
        *_seen_rows(source),
        *(f"{_of('valid_after', agent)} = valid[after{_plane(agent)}:]" for agent in range(source.num_agents)),
        *_block(
            "for i in range(np.uint64(hi - lo))",
            [*_each(source, "valid_after[i] = True"), *_begin(source, per_env, "I32(0)")],
        ),
    ]
    names = arguments(source)
    chunk = _function(INLINE, f"reset_chunk({names}, lo, hi)", lines)
    loop = _block(
        f"for start in range(0, worlds, {CHUNK})", [f"reset_chunk({names}, start, min(start + {CHUNK}, worlds))"]
    )
    return chunk + "\n\n" + _function(KERNEL, f"reset({names}, worlds)", loop)


def _begin_next(source: EnvIR, per_env: bool) -> list[str]:
    return _begin(source, per_env, f"I32({_counters(source)[2]} + I32(1))")


def _step_key(source: EnvIR) -> str:
    _, length, number = _counters(source)
    return f"(seed, U32(1), U32(np.uint64(first + lo) + i), U32({number}), U32({length}))"


def _outcome(source: EnvIR) -> list[str]:
    """Lines that step world i and settle whether its episode ends."""
    _, length, _ = _counters(source)
    limit = f"steps >= I32({source.max_steps})" if source.max_steps else "False"  # maybe both, as in Gymnasium
    return [
        state(source),
        f"new, gain, over = env_step(s, p, {_action(source)}, {_step_key(source)})",
        f"steps = I32({length} + I32(1))",
        f"late = {limit}",
    ]


def _step_branch_free(source: EnvIR, per_env: bool) -> str:
    """Loops of few columns each: LLVM gives up on more than 128 tests of whether two of them overlap."""
    _, length, _ = _counters(source)
    given = [params(source, True)] if per_env else []
    step = [
        *given,
        "alive = valid_now[i]",
        *_outcome(source),
        *_before(source),
        "over = over & alive",
        "late = late & alive",
        *_each(source, "reward_now[i] = select(alive, {gain}, F32(0.0))"),
        "terminated_now[i] = over",
        "truncated_now[i] = late",
        "valid_after[i] = (over | late) ^ True",
        *_each(source, "episode_return_now[i] = select(alive, F32(0.0), {before})"),
        f"episode_length_now[i] = select(alive, I32(0), {length})",
        *_add_gains(source),
        f"{length} = steps",
        *store(source, "new"),
    ]
    loop = "for i in range(np.uint64(hi - lo))"
    see = [] if source.frames else [[*given, state(source), *lines] for lines in _observe_each(source, "s")]
    shared = ("terminated_now", "truncated_now", "valid_after", "episode_length_now")
    lines = [
        *_rows(source, per_env),
        *_block(loop, step),
        *(
            line
            for agent in range(1, source.num_agents)
            for line in _block(loop, [f"{_of(name, agent)}[i] = {name}[i]" for name in shared])
        ),
        *(line for part in see for line in _block(loop, part)),
        "count = np.uint64(0)",
        "list_of_dead = dead[lo:]",
        *_block(
            "for i in range(np.uint64(hi - lo))",
            ["list_of_dead[count] = I32(i)", "count += np.uint64(valid_now[i] ^ True)"],
        ),
        *_block("for k in range(count)", ["i = np.uint64(list_of_dead[k])", *_begin_next(source, per_env)]),
    ]
    return _function(INLINE, f"step_chunk({arguments(source)}, t, lo, hi)", lines)


def _before(source: EnvIR) -> list[str]:
    """Lines that read each agent's return so far."""
    return [f"{_of('before', agent)} = {total}" for agent, total in enumerate(_counters(source)[0])]


def _add_gains(source: EnvIR) -> list[str]:
    """Lines that add each agent's reward to its return."""
    totals = enumerate(_counters(source)[0])
    return [f"{total} = {_of('before', agent)} + {_gain(source, agent)}" for agent, total in totals]


def _step_branching(source: EnvIR, per_env: bool) -> str:
    _, length, _ = _counters(source)
    alive = [
        *([params(source, True)] if per_env else []),
        *_outcome(source),
        *_before(source),
        *_each(source, "reward_now[i] = {gain}"),
        *_each(source, "terminated_now[i] = over"),
        *_each(source, "truncated_now[i] = late"),
        *_each(source, "valid_after[i] = (over | late) ^ True"),
        *_each(source, "episode_return_now[i] = F32(0.0)"),
        *_each(source, "episode_length_now[i] = I32(0)"),
        *_add_gains(source),
        f"{length} = steps",
        *store(source, "new"),
        *_observe(source, "new"),
    ]
    ended = [
        *_before(source),
        *_each(source, "reward_now[i] = F32(0.0)"),
        *_each(source, "terminated_now[i] = False"),
        *_each(source, "truncated_now[i] = False"),
        *_each(source, "valid_after[i] = True"),
        *_each(source, "episode_return_now[i] = {before}"),
        *_each(source, f"episode_length_now[i] = {length}"),
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


def _rows(source: EnvIR, per_env: bool) -> list[str]:
    """Lines before the loops over a chunk: the chunk's part of each row, so that every index begins at 0.

    LLVM then sees where each part begins and ends, and can test that none overlaps another.
    """
    lines = ["now = t * row + lo", "after = now + row", "valid_now = valid[now:]"]
    for agent in range(source.num_agents):
        plane = _plane(agent)
        lines += [f"{_of(f'{name}_now', agent)} = {name}[now{plane}:]" for name in COLUMNS.split(", ")[3:]]
        lines.append(f"{_of('valid_after', agent)} = valid[after{plane}:]")
        if source.action_size is None:
            lines.append(f"{_of('action_now', agent)} = action[now{plane}:]")
        else:
            lines += [
                f"{_of(f'action{k}_now', agent)} = action[{k} * action_plane + now{plane}:]"
                for k in range(source.action_size)
            ]
    return [*lines, *_seen_rows(source), *blocks(source, per_env)]


def _seen_rows(source: EnvIR) -> list[str]:
    count = 0 if source.observes_into or source.frames else source.observation_space.shape[0]
    return [
        f"{_of(f'seen{k}', agent)} = observation[{k} * plane + after{_plane(agent)}:]"
        for agent in range(source.num_agents)
        for k in range(count)
    ]


def _steps(source: EnvIR) -> str:
    names = arguments(source)
    chunk = [f"step_chunk({names}, t, start, min(start + {CHUNK}, hi))"]
    serial = _function(KERNEL, f"step({names}, lo, hi, t)", _block(f"for start in range(lo, hi, {CHUNK})", chunk))
    part = [f"step({names}, cut[part], cut[part + 1], t)"]
    threads = _function(
        PARALLEL, f"step_parallel({names}, cut, t)", _block("for part in prange(cut.shape[0] - 1)", part)
    )
    return f"{serial}\n\n{threads}"
