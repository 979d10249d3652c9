"""EnvIR with entities -> the text of a Numba module for the CPU.

Environments are stepped one after the other; a phase is a loop over the entities of one. No product is fused with a
sum, so that an entity's numbers have the same bits whether it is computed alone or with others in SIMD lanes.
Reductions take their entities in the order of headrace.kernels.language.ops_over, whatever the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.spaces import Box

from headrace.core.rng import Purpose
from headrace.kernels.language.ir import EnvIR, Field, Phase
from headrace.kernels.language.ops import INNER, prelude
from headrace.kernels.targets.cpu.codegen_cpu import ENVS_AT_ONCE, WRITTEN, module_text
from headrace.kernels.targets.cpu.codegen_envs_cpu import env_lane_functions, envs_step
from headrace.kernels.targets.cpu.grid_text import (
    GRID_TAKES,
    grid_functions,
    gridded,
    scratch_size,
    with_grid,
)
from headrace.kernels.targets.cpu.lane_functions import LaneVersion, lane_functions, lane_text
from headrace.kernels.targets.cpu.state_layout import CpuText
from headrace.kernels.targets.episode_text import EpisodeText, block, bound, constants, decorated, key_word, tuple_of
from headrace.kernels.targets.over_text import reduced, reductions
from headrace.kernels.targets.random_actions import no_action

LANES = (1, 2, 4, 8, 16)
ACROSS = ("entities", "environments")
FEW_ENTITIES = 16  # up to so many, lanes across environments are faster
EXACT = f'@njit(error_model="numpy", forceinline=True, {INNER})'
COLUMN_PARTS = ("action", *WRITTEN)


class EntityText(EpisodeText):
    """Lines about environment lo, whose number in its block is i = 0; `e` is an entity, `a` one that is an agent."""

    env_number = CpuText.env_number

    def __init__(self, ir: EnvIR, per_env: bool, lanes: int, having: set[str]) -> None:
        self.environment = CpuText(ir, per_env)  # lines that are the same without entities
        super().__init__(ir, per_env)
        self.load = [self.params(), self.state()] if per_env else [self.state()]
        self.lanes, self.having = lanes, having  # how many; functions that have a lane version
        self.in_lanes = having if lanes > 1 else set()
        if ir.entity_agents:
            self.returns = [self.scalar(True, f"{len(ir.floats)} + a")]

    def array(self, field: Field) -> str:
        """View of the field without the padding after its last entity."""
        end = f"[:{self.ir.entities}]" if field.shape and field.shape[0] == self.ir.entities else ""
        return self.environment.array(field) + end

    def param(self, is_float: bool, row: int) -> str:
        """An entry of the parameters' pack."""
        return self.environment.param(is_float, row)

    def observation(self, agent: int, entry: int | None) -> str:
        """An entry of the only agent's observation, or a view of it."""
        return self.environment.observation(agent, entry)

    def keep(self, state: str) -> list[str]:
        """Lines that store a new state at once."""
        return self.store(state)

    def scalar(self, is_float: bool, row: int | str) -> str:
        """An entry of the environment's pack."""
        return f"{'fs' if is_float else 'ns'}[{row}]"

    def column(self, name: str, agent: int) -> str:
        """An entry of a column's part: of an agent a, where agents are entities."""
        place = "valid_after" if name == "valid" else f"{name}_now"
        return f"{place}[{'a * agent_stride' if self.ir.entity_agents else 'i'}]"

    def action_entry(self, agent: int, entry: int | None) -> str:
        """An entry of the action's part: of entity e, where agents are entities."""
        at = "e * agent_stride" if self.ir.entity_agents else "i"
        return f"action{'' if entry is None else entry}_now[{at}]"

    def reward(self, agent: int) -> str:
        """An agent's reward of this step."""
        return "step_reward[a]" if self.ir.entity_agents else "step_reward"

    def each(self, column: str, value: str) -> list[str]:
        """Lines that write a column; {reward} and {before} are an agent's reward and its return so far."""
        line = f"{self.column(column, 0)} = " + value.format(reward=self.reward(0), before=self.returns[0])
        return self.per_agent([line])

    def per_agent(self, lines: list[str]) -> list[str]:
        """Repeat lines for each agent, where agents are entities."""
        return block(f"for a in range(np.uint64({self.ir.num_agents}))", lines) if self.ir.entity_agents else lines

    def begin(self, episode: str) -> list[str]:
        """Lines that begin an episode, and run the phases of a reset."""
        key = "(seed, U32(0), env_number, U32(episode), U32(0))"
        return [
            f"episode = {episode}",
            f"env_number = {self.env_number}",
            *self.load,
            f"reset_state = env_reset(s, p, {key})",
            *self._run(self.ir.reset_phases, "reset_state", Purpose.RESET, "episode", "U32(0)"),
            *self.per_agent([f"{self.returns[0]} = F32(0.0)"]),
            f"{self.length} = I32(0)",
            f"{self.episode} = episode",
            *self.keep("reset_state"),
        ]

    def outcome(self) -> list[str]:
        """Lines that run the phases of a step and compute it."""
        action = [] if self.ir.entity_agents else [f"given = {self.action()}"]
        given = "" if self.ir.entity_agents else "given, "
        limit = f"steps >= I32({self.ir.max_steps})" if self.ir.max_steps else "False"
        return [
            *self.load,
            f"env_number = {self.env_number}",
            *action,
            *self._run(self.ir.phases, "s", Purpose.STEP, self.episode, f"U32({self.length})"),
            "next_state, step_reward, is_terminated = env_step(s, p, "
            f"{given}(seed, U32(1), env_number, U32({self.episode}), U32({self.length})))",
            f"steps = I32({self.length} + I32(1))",
            f"is_truncated = {limit}",
        ]

    def count(self) -> list[str]:
        """Lines that keep what a step adds: rewards, the length and the new state."""
        add = f"{self.returns[0]} = {self.returns[0]} + {self.reward(0)}"
        return [*self.per_agent([add]), f"{self.length} = steps", *self.keep("next_state")]

    def _returns_before(self) -> list[str]:
        return []  # read where they are

    def observe(self, state: str) -> list[str]:
        """Lines that write the observations of a state."""
        if not self.ir.entity_agents:
            return super().observe(state)
        over = [f"observed_over{k} = {reduced(one, state)}" for k, one in enumerate(self.ir.observe_over)]
        given = ", ".join([state, "p", "I32(a)"])
        behind = "".join(f", observed_over{k}" for k in range(len(over)))
        if self.ir.observes_into:
            vector = "np.uint64(after) + a * agent_stride::plane"
            image = "t + 1, np.uint64(lo) + a * agent_stride"
            out = f"observation[{vector if len(self.ir.observation_space.shape) == 1 else image}]"
            return [*over, *self.per_agent([f"env_observe({given}, {out}{behind})"])]
        entries = range(self.ir.observation_space.shape[0])
        written = [f"observed{k}[a * agent_stride] = observed[{k}]" for k in entries]
        if "env_observe" in self.in_lanes:
            count = f"np.uint64({self.ir.num_agents})"
            written = [f"lane_to_column(observed{k}, some, agent_stride, {count}, observed[{k}])" for k in entries]
            lines = [f"observed = lane_env_observe({state}, p, some{behind})", *written]
            return [*over, *self.some(self.ir.num_agents, lines)]
        return [*over, *self.per_agent([f"observed = env_observe({given}{behind})", *written])]

    def some(self, count: int, lines: list[str]) -> list[str]:
        """A loop over the entities below `count`, as many at once as there are lanes: `some`. The last of them may be
        past the end, where the arrays have room (room_for)."""
        head = f"for e in range(np.uint64(0), np.uint64({count}), np.uint64({self.lanes}))"
        return block(head, [f"some = lane_entities(e, {self.lanes})", *lines])

    def _run(self, phases: Sequence[Phase], state: str, purpose: int, episode: str, length: str) -> list[str]:
        """Lines that run each phase for all entities."""
        lines = []
        for number, phase in enumerate(phases):
            lines += [f"over{k} = {reduced(one, state)}" for k, one in enumerate(phase.over)]
            lines += self._run_one(number, phase, state, purpose, f"env_number, U32({episode}), {length}")
        return lines

    def _run_one(self, number: int, phase: Phase, state: str, purpose: int, rest: str) -> list[str]:
        """Lines that run a phase: by a grid where that is worth it, in lanes where it has a lane version."""
        word = key_word(purpose, number, "U32(e)", "U32")
        each = f"for e in range(np.uint64(0), np.uint64({self.ir.entities}))"
        if phase.name in self.in_lanes:
            lane_word = key_word(purpose, number, "lane_U32(some)", "lane_U32")
            lines = self.some(self.ir.entities, [self._call(phase, state, f"{lane_word}, {rest}", "lane_")])
        else:
            lines = block(each, [self._call(phase, state, f"{word}, {rest}", "")])
        of_grid = f"grid_{phase.name}"
        if of_grid in self.in_lanes:
            some, lanes, each = f"lane_entities(place, {self.lanes})", self.lanes, "lane_get(order, some)"
            word = key_word(purpose, number, "lane_U32(e)", "lane_U32")
        else:
            some, lanes, each = "place", 1, "np.uint64(order[place])"
        version = "lane_grid_" if of_grid in self.in_lanes else "grid_"
        call = [f"some = {some}", f"e = {each}", self._call(phase, state, f"{word}, {rest}", version)]
        return with_grid(self.ir, phase, state, lanes, call, lines)

    def _call(self, phase: Phase, state: str, key: str, version: str) -> str:
        """The call of a version of a phase: lane_ for some entities, grid_ or no version for entity e, lane_grid_ for
        entities e in some places of the grid's order."""
        in_lanes = version.startswith("lane_")
        entity = {"lane_": "some", "lane_grid_": "e"}.get(version, "I32(e)")
        action = self.action_in_lanes(entity) if in_lanes else self.entity_action()
        known = {"action": action, "key": f"(seed, {key})", "place": "some", "grid": "grid"}
        takes = (*phase.takes, *(GRID_TAKES if "grid_" in version else ()))
        given = [state, "p", entity, *(known[what] for what in takes), *(f"over{k}" for k in range(len(phase.over)))]
        return f"{version}{phase.name}({', '.join(given)})"

    def action_in_lanes(self, some: str) -> str:
        """The actions of some entities."""
        if not self.ir.entity_agents:
            return "given"
        entries = [
            f"lane_column({place.split('[')[0]}, {some}, agent_stride, np.uint64({self.ir.num_agents}), {other})"
            for place, other in zip(self._action_places(), self._no_action(), strict=True)
        ]
        space = self.ir.action_space
        if isinstance(space, Box):
            sides = zip(np.ravel(space.low), np.ravel(space.high), strict=True)
            entries = [
                f"lane_clip({entry}, {bound(low)}, {bound(high)})"
                for entry, (low, high) in zip(entries, sides, strict=True)
            ]
        return entries[0] if self.ir.action_size is None else tuple_of(entries)

    def _action_places(self) -> list[str]:
        size = self.ir.action_size
        return [self.action_entry(0, entry) for entry in ([None] if size is None else range(size))]

    def _no_action(self) -> list[str]:
        """Entries of the action of an entity that is no agent."""
        floats = isinstance(self.ir.action_space, Box)
        return [bound(x) if floats else f"I32({int(x)})" for x in no_action(self.ir.action_space).reshape(-1)]

    def entity_action(self) -> str:
        """Text of the action of entity e. An entity that is no agent has none, such as 0."""
        if not self.ir.entity_agents:
            return "given"
        action = self._action_of(0)
        if self.ir.num_agents == self.ir.entities:
            return action
        other = self._no_action()
        none = other[0] if self.ir.action_size is None else tuple_of(other)
        return f"({action} if e < np.uint64({self.ir.num_agents}) else {none})"


def entity_module(ir: EnvIR, per_env: bool, lanes: int | None, across: str) -> str:
    """The text of the module. per_env: each parameter has a value per environment. lanes, across: see CpuEnvs."""
    lanes = lanes or most_lanes(ir)
    names = [phase.name for phase in (*ir.phases, *ir.reset_phases)]
    if ir.entity_agents and not ir.observes_into:
        names.append("env_observe")
    of_grid = gridded(ir)
    names += [function.name for function in of_grid.functions[len(ir.functions) :]]
    in_lanes, having = lane_functions(of_grid, names, EXACT, LaneVersion)
    text = EntityText(ir, per_env, lanes, having)
    functions = [prelude(EXACT), reductions(EXACT), *constants(ir), decorated(ir.code, EXACT)]
    functions += grid_functions(ir, EXACT)
    of_envs = env_lane_functions(ir, EXACT) if across == "environments" else []
    if text.in_lanes or of_envs:
        functions += [*lane_text(EXACT), *(in_lanes if text.in_lanes else []), *of_envs]
    begin = [*text.each("valid", "True"), *text.begin("I32(0)"), *text.observe("reset_state")]
    valid = [*text.valid_step(), *text.observe("next_state")]
    masked = [*text.masked_step(), *text.observe("reset_state")]
    return module_text(
        ir,
        text.environment.arguments(),
        functions,
        ["t, after = -1, lo", *_parts(text, ()), *begin],
        [
            "now = t * row + lo",
            "after = now + row",
            *_parts(text, COLUMN_PARTS),
            *block("if valid[now]", valid),
            *block("else", masked),
        ],
        together=envs_step(ir, per_env, text.environment.packs()) if of_envs else None,
        scratch=scratch_size(ir),
    )


def faster_across(ir: EnvIR, num_envs: int) -> str:
    """Choose what lanes go across to be faster, "environments" or "entities". Few entities leave lanes idle
    (benchmarks/speed/entities.py). The number of environments did not matter from 16 on."""
    return "environments" if ir.entities <= FEW_ENTITIES and num_envs >= ENVS_AT_ONCE else "entities"


def most_lanes(ir: EnvIR) -> int:
    """Smallest number of lanes that holds all entities, 16 at most."""
    return min(lanes for lanes in LANES if lanes >= min(ir.entities, LANES[-1]))


def room_for(ir: EnvIR, field: Field) -> tuple[int, ...]:
    """The shape in which an array field is stored: with entities, so many that they fill all lanes."""
    shape = field.shape or ()
    if not ir.entities or shape[0] != ir.entities:
        return shape
    return -(-ir.entities // LANES[-1]) * LANES[-1], *shape[1:]


def _parts(text: EntityText, columns: Sequence[str]) -> list[str]:
    """Lines before those about one environment: where its columns begin."""
    ir = text.ir
    lines = ["i = np.uint64(0)", "valid_after = valid[after:]", *text.environment.packs()]
    if ir.num_agents > 1:
        lines.append("agent_stride = np.uint64(agent_plane)")
    for name in columns:
        if name == "action" and ir.action_size is not None:
            lines += [f"action{k}_now = action[{k} * action_plane + now:]" for k in range(ir.action_size)]
        else:
            lines.append(f"{name}_now = {name}[now:]")
    size = 0 if ir.observes_into else ir.observation_space.shape[0]
    return [*lines, *(f"observed{k} = observation[{k} * plane + after:]" for k in range(size))]
