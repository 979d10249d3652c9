"""EnvIR with entities -> the text of a Numba module for CUDA: a block of threads per environment.

A thread takes the entities tid, tid + width, ... of a phase; the block waits between phases. Array fields are copied to
shared memory where they fit, and back at the end of the launch. Thread 0 runs the functions of the whole environment,
env_reset and env_step. Reductions before a phase are taken in PARTS parts by as many threads, in the order of
headrace.kernels.language.ops_over, so they do not depend on the number of threads.

Kernels, arguments and their layout are those of headrace.kernels.targets.cuda.codegen_cuda, except array fields, which
have the environments first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.spaces import Box

from headrace.core.rng import Purpose
from headrace.kernels.language.ir import EnvIR, Field, Over, Phase
from headrace.kernels.language.kinds import STORAGE
from headrace.kernels.language.ops import prelude
from headrace.kernels.language.ops_over import PARTS
from headrace.kernels.targets.cuda.codegen_cuda import COLUMNS, DEVICE, KERNEL, CudaText, cuda_ops
from headrace.kernels.targets.episode_text import (
    EpisodeText,
    block,
    bound,
    constants,
    decorated,
    function,
    key_word,
    title,
    tuple_of,
)
from headrace.kernels.targets.over_text import combined, reductions
from headrace.kernels.targets.random_actions import bounds, no_action

SHARED_BYTES = 47 * 1024  # of state in shared memory: what every GPU gives a block, less 1 KB for reductions
WAIT = "cuda.syncthreads()"
# each of PARTS threads computes one part, then every thread combines them in the same way
BLOCK_OVER = """\
{decorator}
def block_{op}_over_{kind}(values, parts, tid, width):
    for part in range(tid, np.uint64({count}), width):
        parts[part] = _{op}_part_{kind}(values, part)
    cuda.syncthreads()
    result = {combined}
    cuda.syncthreads()
    return result
"""


class EntityCudaText(EpisodeText):
    """Lines about environment i, whose block has `width` threads; `e` is an entity, `a` one that is an agent."""

    env_number = "env_number"

    def __init__(self, ir: EnvIR, per_env: bool) -> None:
        self.thread = CudaText(ir, per_env)  # lines that are the same without entities
        self.shared = _shared(ir)
        super().__init__(ir, per_env)
        agent_row = f"(np.uint64({len(ir.floats)}) + a)" if ir.entity_agents else f"np.uint64({len(ir.floats)})"
        self.total = f"floats[{agent_row} * n + i]"
        size = len(ir.integers)
        self.stored_length, self.stored_episode = self.scalar(False, size), self.scalar(False, size + 1)

    def array(self, field: Field) -> str:
        """The field in shared memory, or a view of it."""
        return f"shared_{field.name}" if field in self.shared else f"array_{field.name}[i]"

    def scalar(self, is_float: bool, row: int) -> str:
        """An entry of a pack."""
        return self.thread.scalar(is_float, row)

    def param(self, is_float: bool, row: int) -> str:
        """An entry behind the pack."""
        return self.thread.param(is_float, row)

    def observation(self, agent: int, entry: int | None) -> str:
        """An entry of the column itself, or a view, of agent a."""
        rest = ", :" * len(self.ir.observation_space.shape) if entry is None else f", {entry}"
        return f"observation[after, {self.index()}{rest}]"

    def keep(self, state: str) -> list[str]:
        """Stored at once: all threads read it."""
        return self.store(state)

    def column(self, name: str, agent: int) -> str:
        """An entry of the column itself."""
        return f"{name}[{'after' if name == 'valid' else 'now'}, {self.index()}]"

    def index(self) -> str:
        """The index of agent a's column; that of the only agent."""
        return "i + a * n" if self.ir.entity_agents else "i"

    def per_agent(self, lines: Sequence[str]) -> list[str]:
        """Repeat lines for each agent, by as many threads. With one agent, thread 0 runs them."""
        if not lines:
            return []
        if self.ir.entity_agents:
            return block(f"for a in range(tid, np.uint64({self.ir.num_agents}), width)", list(lines))
        return block("if tid == 0", list(lines))

    def copied(self, back: bool) -> list[str]:
        """Lines that copy fields to shared memory, or back."""
        lines = []
        for field in self.shared:
            inner = ", ".join(f"k{d}" for d in range(len(field.shape or ())))
            here, there = f"shared_{field.name}[{inner}]", f"array_{field.name}[i, {inner}]"
            made = [f"{there} = {here}" if back else f"{here} = {there}"]
            for d, size in reversed(list(enumerate(field.shape or ()))):
                taken = "tid" if d == 0 else "np.uint64(0)"
                made = block(
                    f"for k{d} in range({taken}, np.uint64({size}), {'width' if d == 0 else 'np.uint64(1)'})", made
                )
            lines += made
        return [*lines, WAIT] if lines else []

    def allocated(self) -> list[str]:
        """Lines that define what is in shared memory."""
        lines = [f"shared_{f.name} = cuda.shared.array({f.shape}, np.{_dtype(f)})" for f in self.shared]
        parts = [
            f"parts_f32 = cuda.shared.array({PARTS}, np.float32)",
            f"parts_i32 = cuda.shared.array({PARTS}, np.int32)",
        ]
        return [*lines, *parts, "ended = cuda.shared.array(2, np.int32)", "earned = cuda.shared.array(1, np.float32)"]

    def reduced(self, over: Sequence[Over], state: str, name: str) -> list[str]:
        """Lines that compute reductions."""
        return [
            f"{name}{k} = block_{one.op}({state}[{one.field}], parts_{one.op[-3:]}, tid, width)"
            for k, one in enumerate(over)
        ]

    def run(self, phases: Sequence[Phase], purpose: int, episode: str, length: str) -> list[str]:
        """Lines that run each phase for all entities."""
        lines = []
        for number, phase in enumerate(phases):
            word = key_word(purpose, number, "U32(e)", "U32")
            known = {"action": self.entity_action(), "key": f"(seed, {word}, env_number, U32({episode}), {length})"}
            given = ["s", "p", "I32(e)", *(known[what] for what in phase.takes)]
            given += [f"over{k}" for k in range(len(phase.over))]
            lines += self.reduced(phase.over, "s", "over")
            lines += block(
                f"for e in range(tid, np.uint64({self.ir.entities}), width)", [f"{phase.name}({', '.join(given)})"]
            )
            lines.append(WAIT)
        return lines

    def action_entry(self, agent: int, entry: int | None) -> str:
        """An entry of an action: of entity e, where agents are entities."""
        index = "i + e * n" if self.ir.entity_agents else "i"
        return f"action[now, {index}" + ("]" if entry is None else f", {entry}]")

    def entity_action(self) -> str:
        """The action of entity e: none, such as 0, where it is no agent."""
        action = self._action_of(0)
        if not self.ir.entity_agents or self.ir.num_agents == self.ir.entities:
            return action
        floats = isinstance(self.ir.action_space, Box)
        none = [bound(x) if floats else f"I32({int(x)})" for x in no_action(self.ir.action_space).reshape(-1)]
        other = none[0] if self.ir.action_size is None else tuple_of(none)
        return f"({action} if e < np.uint64({self.ir.num_agents}) else {other})"

    def write(self, columns: dict[str, str]) -> list[str]:
        """Lines that write columns of agent a."""
        return [f"{self.column(name, 0)} = {value}" for name, value in columns.items()]

    def observations(self) -> list[str]:
        """Lines that write the observations of the state that is stored."""
        who = ", I32(a)" if self.ir.entity_agents else ""
        behind = "".join(f", over{k}" for k in range(len(self.ir.observe_over)))
        if self.ir.observes_into:
            lines = [f"env_observe(s, p{who}, {self.observation(0, None)}{behind})"]
        else:
            entries = range(self.ir.observation_space.shape[0])
            lines = [f"observed = env_observe(s, p{who}{behind})"]
            lines += [f"{self.observation(0, k)} = observed[{k}]" for k in entries]
        return [self.state(), *self.reduced(self.ir.observe_over, "s", "over"), *self.per_agent(lines)]

    def begin(self, episode: str) -> list[str]:
        """Lines that begin an episode."""
        key = "(seed, U32(0), env_number, U32(episode_number), U32(0))"
        first = [f"fresh = env_reset(s, p, {key})", *self.keep("fresh")]
        first += [f"{self.stored_length} = I32(0)", f"{self.stored_episode} = episode_number"]
        return [
            f"episode_number = {episode}",
            *block("if tid == 0", first),
            *self.per_agent([f"{self.total} = F32(0.0)"]),
            WAIT,
            self.state(),
            *self.run(self.ir.reset_phases, Purpose.RESET, "episode_number", "U32(0)"),
        ]

    def _field(self, name: str) -> int:
        return [field.name for field in self.ir.state].index(name)

    def valid_row(self) -> list[str]:
        """Lines for a step of a running episode."""
        limit = f"length + I32(1) >= I32({self.ir.max_steps})" if self.ir.max_steps else "False"
        given = "" if self.ir.entity_agents else f"{self.action()}, "
        key = "(seed, U32(1), env_number, U32(episode_number), U32(length))"
        reward = f"s[{self._field(self.ir.rewards)}][a]" if self.ir.entity_agents else "earned[0]"
        own = [] if self.ir.entity_agents else ["earned[0] = step_reward"]
        whole = [
            f"next_state, step_reward, is_terminated = env_step(s, p, {given}{key})",
            *self.keep("next_state"),
            f"{self.stored_length} = I32(length + I32(1))",
            *own,
            "ended[0] = I32(is_terminated)",
        ]
        columns = {"reward": reward, "terminated": "is_terminated", "truncated": "is_truncated"}
        columns |= {"valid": "(is_terminated | is_truncated) ^ True"}
        columns |= {"episode_return": "F32(0.0)", "episode_length": "I32(0)"}
        return [
            *self.run(self.ir.phases, Purpose.STEP, "episode_number", "U32(length)"),
            *block("if tid == 0", whole),
            WAIT,
            "is_terminated = ended[0] != I32(0)",
            f"is_truncated = {limit}",
            *self.per_agent([*self.write(columns), f"{self.total} = {self.total} + {reward}"]),
        ]

    def masked_row(self) -> list[str]:
        """Lines for the step after an episode's end."""
        columns = {"reward": "F32(0.0)", "terminated": "False", "truncated": "False", "valid": "True"}
        columns |= {"episode_return": self.total, "episode_length": "length"}
        return [*self.per_agent(self.write(columns)), *self.begin("I32(episode_number + I32(1))")]

    def row(self) -> list[str]:
        """Lines for a step from row `now` to row `after`."""
        return [
            "after = now + np.uint64(1)",
            self.state(),
            f"length, episode_number = {self.stored_length}, {self.stored_episode}",
            "is_valid = valid[now, i]",
            WAIT,
            *block("if is_valid", self.valid_row()),
            *block("else", self.masked_row()),
            WAIT,
            *self.observations(),
            WAIT,
        ]


def entity_cuda_module(ir: EnvIR, per_env: bool, simulated: bool) -> str:
    """The text of the module. per_env: each parameter has a value per environment. simulated: for Numba's CUDA
    simulator."""
    text = EntityCudaText(ir, per_env)
    names = ", ".join(["floats", "integers", *(f"array_{f.name}" for f in ir.arrays), *COLUMNS])
    rows = "for now in range(np.uint64(first), np.uint64(last))"
    reset = [
        "after = np.uint64(0)",
        *text.begin("I32(0)"),
        *text.per_agent(text.write({"valid": "True"})),
        *text.observations(),
        WAIT,
    ]
    parts = [
        title(ir, "compiled for CUDA, a block per environment"),
        prelude(DEVICE, cuda_ops(simulated)),
        reductions(DEVICE),
        _block_reductions(),
        *constants(ir),
        decorated(ir.code, DEVICE),
        _kernel(text, f"reset({names})", reset),
        _kernel(text, f"step({names}, t)", ["now = np.uint64(t)", *text.row()]),
        _kernel(text, f"run({names}, first, last)", block(rows, text.row())),
        _kernel(text, f"run_random({names}, first, last, counter)", block(rows, [*_draw_actions(text), *text.row()])),
    ]
    return "\n\n".join(parts) + "\n"


def _kernel(text: EntityCudaText, head: str, body: list[str]) -> str:
    known = ["i, n = np.uint64(cuda.blockIdx.x), np.uint64(cuda.gridDim.x)"]
    known += ["tid, width = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x)"]
    return function(
        KERNEL,
        head,
        [
            *known,
            *text.allocated(),
            *text.copied(False),
            *text.thread.known()[:-1],
            text.state(),
            *body,
            *text.copied(True),
        ],
    )


def _block_reductions() -> str:
    """Reductions by the threads of a block."""
    made = []
    for kind in ("f32", "i32"):
        for op in ("sum", "min", "max"):
            parts = combined(f"_{op}_{kind}", [f"parts[{part}]" for part in range(PARTS)])
            made.append(BLOCK_OVER.format(decorator=DEVICE, op=op, kind=kind, count=PARTS, combined=parts))
        for op in ("argmin", "argmax", "any"):
            lines = [f"return {op}_over_{kind}(values)"]
            made.append(function(DEVICE, f"block_{op}_over_{kind}(values, parts, tid, width)", lines))
    return "\n\n".join(made)


def _draw_actions(text: EntityCudaText) -> list[str]:
    """Lines that write random actions: the same bits as headrace.kernels.targets.random_actions."""
    space, lines = text.ir.action_space, []
    number = "U32(U64(env_number) + a * n)" if text.ir.entity_agents else "env_number"
    lines.append(f"key = (seed, U32(2), {number}, U32(step >> np.uint64(32)), U32(step))")
    for k, (low, high) in enumerate(zip(*bounds(space), strict=True)):
        place = f"action[now, {text.index()}" + ("]" if text.ir.action_size is None else f", {k}]")
        if isinstance(space, Box):
            lines.append(f"{place} = uniform(key, {k}, {bound(low)}, {bound(high)})")
        else:
            count = int(high) - int(low)
            drawn = f"I32(_product(uniform(key, {k}, 0.0, 1.0), F32({count})))"
            lines.append(f"{place} = I32({int(low)}) + min({drawn}, I32({count - 1}))")
    return ["step = np.uint64(counter) + (now - np.uint64(first))", *text.per_agent(lines), WAIT]


def _shared(ir: EnvIR) -> tuple[Field, ...]:
    """The fields that are kept in shared memory: the first ones that fit together."""
    found, left = [], SHARED_BYTES
    for field in ir.arrays:
        size = int(np.prod(field.shape)) * np.dtype(STORAGE[field.dtype]).itemsize  # type: ignore[arg-type]
        if size <= left:
            found.append(field)
            left -= size
    return tuple(found)


def _dtype(field: Field) -> str:
    return "bool_" if field.dtype == "bool" else STORAGE[field.dtype].__name__
