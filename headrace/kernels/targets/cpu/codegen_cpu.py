"""EnvIR -> the text of a Numba module for the CPU.

The module has `reset` and `step` of the environments lo .. hi - 1; each thread calls `step` for a part. Measurements
show that these need unsigned loop indices, feature-major observations and no fastmath flag but `contract`: others
change bits with the way work is divided. An environment without arrays or branches is stepped without branches, a block
of environments at a time, and the few masked environments are reset afterwards.

With several agents each has columns of its own: agent k's begin k * agent_plane entries after the first one's.
Pixel observations are drawn by another module (codegen_pixels_cpu).
"""

from __future__ import annotations

from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import INNER, prelude
from headrace.kernels.language.typed import pure
from headrace.kernels.targets.cpu.state_layout import CpuText, envs_per_block, plane
from headrace.kernels.targets.episode_text import block, constants, decorated, function, of_agent, title

INLINE = f'@njit(error_model="numpy", fastmath={{"contract"}}, forceinline=True, {INNER})'
KERNEL = f'@njit(error_model="numpy", fastmath={{"contract"}}, nogil=True, {INNER})'
WRITTEN = ("reward", "terminated", "truncated", "episode_return", "episode_length")
LOOP = "for i in range(np.uint64(hi - lo))"
ENVS_AT_ONCE = 16  # environments with entities, in SIMD lanes


def branch_free(ir: EnvIR) -> bool:
    """Tell whether all environments can be stepped by the same code, also masked ones, whose results are discarded."""
    plain = pure(*(function.node for function in ir.functions))
    return plain and ir.statement is None and not ir.arrays and not ir.observes_into


def cpu_module(ir: EnvIR, per_env: bool) -> str:
    """The text of the module. per_env: each parameter has a value per environment."""
    text = CpuText(ir, per_env)
    step = _step_branch_free(text) if branch_free(ir) else _step_branching(text)
    functions = [prelude(INLINE), *constants(ir), decorated(ir.code, INLINE)]
    return module_text(ir, text.arguments(), functions, _reset(text), [*_parts(text), *step], "contract")


def module_text(
    ir: EnvIR,
    arguments: str,
    functions: list[str],
    reset: list[str],
    step: list[str],
    fastmath: str = "",
    together: list[str] | None = None,
    scratch: int = 1,
) -> str:
    """Write the text of a module with these functions. reset, step: lines about the environments lo .. hi - 1 of a
    block. arguments: names of the arrays that hold the environments. fastmath: LLVM's flags for floats, if any.
    together: lines that step ENVS_AT_ONCE blocks of one environment, all of them valid. scratch: count of entries of
    `masked` for blocks that need memory of their own; a call uses the first block's for all."""
    size = envs_per_block(ir)
    inline, kernel = (_with(decorator, fastmath) for decorator in (INLINE, KERNEL))
    planes = "row, plane, action_plane" + (", agent_plane" if ir.num_agents > 1 else "")
    columns = f"observation, valid, action, {', '.join(WRITTEN)}"
    names = f"{arguments}, {columns}, seed, first, {planes}"
    stepped = _blocks(f"step_block({names}, t, ", "lo, hi", size)
    if together:
        stepped = _blocks(f"step_blocks({names}, t, ", "lo, hi", ENVS_AT_ONCE)
    if scratch > 1:
        stepped = [f"masked = masked[lo * {scratch}:]", *stepped]
    parts = [
        title(ir, "compiled for the CPU"),
        "from numba import njit",
        *functions,
        function(inline, f"reset_block({names}, lo, hi)", reset),
        function(kernel, f"reset({names}, num_envs)", _blocks(f"reset_block({names}, ", "0, num_envs", size)),
        function(inline, f"step_block({names}, t, lo, hi)", step),
        *([function(inline, f"step_blocks({names}, t, lo, hi)", _either(together, names))] if together else []),
        function(kernel, f"step({names}, lo, hi, t)", stepped),
    ]
    return "\n\n".join(parts) + "\n"


def _either(together: list[str], names: str) -> list[str]:
    """Choose lines that step several environments together where possible, and otherwise one after the other."""
    return [
        f"alike = hi - lo == {ENVS_AT_ONCE}",
        *block("if alike", block("for env in range(lo, hi)", ["alike = alike & valid[t * row + env]"])),
        *block("if alike", together),
        *block("else", block("for env in range(lo, hi)", [f"step_block({names}, t, env, env + 1)"])),
    ]


def _with(decorator: str, fastmath: str) -> str:
    return decorator if fastmath == "contract" else decorator.replace('fastmath={"contract"}, ', "")


def _blocks(call: str, limits: str, size: int) -> list[str]:
    """A loop that calls a function for each block of environments."""
    last = limits.split(", ")[1]
    body = [f"{call}start, min(start + {size}, {last}))"]
    return block(f"for start in range({limits}, {size})", body)


def _reset(text: CpuText) -> list[str]:
    """Lines that begin episode 0 of the environments of one block."""
    begin = [*text.each("valid", "True"), *text.begin("I32(0)"), *text.observe("reset_state")]
    return [
        "t, after = -1, lo",
        *text.packs(),
        *_observation_parts(text),
        *(f"{of_agent('valid_after', agent)} = valid[after{plane(agent)}:]" for agent in text.agents),
        *block(LOOP, begin),
    ]


def _step_branch_free(text: CpuText) -> list[str]:
    """Write loops of few columns each: LLVM gives up on more than 128 tests of whether two columns overlap."""
    length = text.length
    step = [
        "is_valid = valid_now[i]",
        *text.outcome(),
        "is_terminated = is_terminated & is_valid",
        "is_truncated = is_truncated & is_valid",
        *text.each("reward", "select(is_valid, {reward}, F32(0.0))"),
        "terminated_now[i] = is_terminated",
        "truncated_now[i] = is_truncated",
        "valid_after[i] = (is_terminated | is_truncated) ^ True",
        *text.each("episode_return", "select(is_valid, F32(0.0), {before})"),
        f"episode_length_now[i] = select(is_valid, I32(0), {length})",
        *text.count(),
    ]
    shared = ("terminated_now", "truncated_now", "valid_after", "episode_length_now")
    copies = [[f"{of_agent(name, agent)}[i] = {name}[i]" for name in shared] for agent in text.agents[1:]]
    observed = [text.observed_by(agent, "s") for agent in text.agents]
    observations = [[*text.load, *lines] for lines in observed if lines]
    find = ["list_of_masked[count] = I32(i)", "count += np.uint64(valid_now[i] ^ True)"]
    begin = ["i = np.uint64(list_of_masked[k])", *text.begin_next(), *text.observe("reset_state")]
    return [
        *(line for lines in (step, *copies, *observations) for line in block(LOOP, lines)),
        "count = np.uint64(0)",
        "list_of_masked = masked[lo:]",
        *block(LOOP, find),
        *block("for k in range(count)", begin),
    ]


def _step_branching(text: CpuText) -> list[str]:
    valid = [*text.valid_step(), *text.observe("next_state")]
    masked = [*text.masked_step(), *text.observe("reset_state")]
    return block(LOOP, [*block("if valid_now[i]", valid), *block("else", masked)])


def _parts(text: CpuText) -> list[str]:
    """Lines before the loops over a block: the block's part of each column's row, so that every index begins at 0.

    LLVM then knows where each part begins and ends, and can test that none overlaps another.
    """
    size = text.ir.action_size
    lines = ["now = t * row + lo", "after = now + row", "valid_now = valid[now:]"]
    for agent in text.agents:
        start = f"now{plane(agent)}:"
        lines += [f"{of_agent(f'{name}_now', agent)} = {name}[{start}]" for name in WRITTEN]
        lines.append(f"{of_agent('valid_after', agent)} = valid[after{plane(agent)}:]")
        if size is None:
            lines.append(f"{of_agent('action_now', agent)} = action[{start}]")
        for k in range(size or 0):
            lines.append(f"{of_agent(f'action{k}_now', agent)} = action[{k} * action_plane + {start}]")
    return [*lines, *_observation_parts(text), *text.packs()]


def _observation_parts(text: CpuText) -> list[str]:
    size = 0 if text.ir.observes_into or text.ir.frames else text.ir.observation_space.shape[0]
    return [
        f"{of_agent(f'observed{k}', agent)} = observation[{k} * plane + after{plane(agent)}:]"
        for agent in text.agents
        for k in range(size)
    ]
