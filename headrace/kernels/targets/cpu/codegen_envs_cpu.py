"""A step of 16 environments with entities at once, as text: SIMD lanes across environments, one entity after the other.

This is faster than lanes across entities (codegen_entities_cpu) where these are few. The environments' array fields are
copied to the stack, where an entity's numbers of 16 environments lie side by side, and back. All of the 16 must be
valid: blocks with a masked one, which begins an episode, are stepped one by one. Entities and reductions have the same
order, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, product
from math import prod

import numpy as np
from gymnasium.spaces import Box

from headrace.core.rng import Purpose
from headrace.kernels.language.ir import EnvIR, Field, Phase
from headrace.kernels.language.kinds import BOOL, F32, U32
from headrace.kernels.targets.cpu.env_lane_functions import (
    ALL,
    ENVS_AT_ONCE,
    EnvLaneVersion,
    changed_fields,
    env_reductions,
)
from headrace.kernels.targets.cpu.grid_text import scratch_size
from headrace.kernels.targets.cpu.lane_functions import lane_functions
from headrace.kernels.targets.episode_text import block, bound, key_word, pack_rows, tuple_of
from headrace.kernels.targets.over_text import reduced
from headrace.kernels.targets.random_actions import no_action

MOST_STACK = 1 << 17  # bytes of array fields on the stack: more would not stay in a core's cache


def env_lane_functions(ir: EnvIR, decorator: str) -> list[str]:
    """Text of the versions for several environments of all functions of a step. Empty where a function has no such
    version, or where a grid is needed, or more memory than a stack has."""
    stacked = 4 * ENVS_AT_ONCE * sum(prod(field.shape or ()) for field in ir.arrays)
    if ir.observes_into or scratch_size(ir) > 1 or stacked > MOST_STACK:
        return []
    names = [*(phase.name for phase in ir.phases), "env_step", "env_observe"]
    made, having = lane_functions(ir, names, decorator, EnvLaneVersion)
    return [*env_reductions(ir, decorator), *made] if having == set(names) else []


def envs_step(ir: EnvIR, per_env: bool, packs: Sequence[str]) -> list[str]:
    """Lines that step the valid environments lo .. lo + 15. packs: lines that define fs, ns and p, or fp and ip."""
    return _EnvsText(ir, per_env).step(packs)


class _EnvsText:
    """Lines about the environments lo .. lo + 15; each number of theirs is lanes."""

    def __init__(self, ir: EnvIR, per_env: bool) -> None:
        self.ir, self.per_env = ir, per_env
        self.rows = dict(zip(("fs", "ns"), pack_rows(ir), strict=True))
        floats = sum(param.dtype == F32 for param in ir.params)
        self.rows |= {"fp": floats, "ip": len(ir.params) - floats}

    def step(self, packs: Sequence[str]) -> list[str]:
        """The whole step."""
        size = len(self.ir.integers)
        key = "(seed, U32(1), env_number, episode, lane_U32(length))"
        given = "" if self.ir.entity_agents else f"{self._action('')}, "
        ended = f"steps >= I32({self.ir.max_steps})" if self.ir.max_steps else "False"
        return [
            f"envs = {ALL}",
            "now = t * row + lo",
            "after = now + row",
            *packs,
            *self._copied(self.ir.arrays, back=False),
            self._params(),
            f"s = {tuple_of([self._field(field) for field in self.ir.state])}",
            "env_number = lane_U32(envs) + U32(first + lo)",
            f"length = {self._load('ns', size)}",
            f"episode = lane_U32({self._load('ns', size + 1)})",
            *self._phases(),
            f"next_state, reward_now, is_terminated = envs_env_step(s, p, {given}{key})",
            "steps = lane_I32(length + I32(1))",
            f"is_truncated = {ended}",
            *self._columns(),
            self._store("ns", size, "steps"),
            *self._kept(),
            *self._copied(changed_fields(self.ir), back=True),
            *self._observed(),
        ]

    def _load(self, pack: str, row: int | str) -> str:
        """A row of a pack."""
        other = "F32(0.0)" if pack[0] == "f" else "I32(0)"
        return f"lane_column({pack}[{row}:], envs, np.uint64({self.rows[pack]}), np.uint64({ENVS_AT_ONCE}), {other})"

    def _store(self, pack: str, row: int | str, value: str) -> str:
        """A line that writes a row of a pack."""
        return f"lane_to_column({pack}[{row}:], envs, np.uint64({self.rows[pack]}), np.uint64({ENVS_AT_ONCE}), {value})"

    def _copied(self, fields: Sequence[Field], back: bool) -> list[str]:
        """Lines that copy array fields to the stack, or back."""
        lines = []
        for field in fields:
            shape, name = field.shape or (), field.name
            end = f", :{self.ir.entities}" if shape[0] == self.ir.entities else ""
            stored, stack = f"stored_{name}", f"stack_{name}"
            if not back:
                lines.append(f"{stored} = array_{name}[lo : lo + {ENVS_AT_ONCE}{end}]")
                lines.append(f"{stack} = lane_stack({stored}[0], {ENVS_AT_ONCE * prod(shape)})")
            for rest in product(*map(range, shape[1:])):
                index = "".join(f", {k}" for k in rest)
                there, here = f"{stored}, (envs, e{index})", f"{stack}, (e{index}, envs)"
                copy = f"lane_set({there}, lane_get({here}))" if back else f"lane_set({here}, lane_get({there}))"
                lines += block(f"for e in range(np.uint64({shape[0]}))", [copy])
        return lines

    def _params(self) -> str:
        """The line that defines p, where its numbers differ between environments."""
        if not self.per_env:
            return "pass"
        rows = {"fp": count(), "ip": count()}
        packs = [("fp" if param.dtype == F32 else "ip", param.dtype) for param in self.ir.params]
        return f"p = {tuple_of([_value(self._load(pack, next(rows[pack])), dtype) for pack, dtype in packs])}"

    def _field(self, field: Field) -> str:
        """A field of State."""
        if field.shape is not None:
            return f"stack_{field.name}"
        if field.dtype == F32:
            return self._load("fs", self.ir.floats.index(field))
        return _value(self._load("ns", self.ir.integers.index(field)), field.dtype)

    def _phases(self) -> list[str]:
        """Lines that run each phase for one entity after the other."""
        lines = []
        agents = self.ir.num_agents if self.ir.entity_agents else 0
        for number, phase in enumerate(self.ir.phases):
            lines += [f"over{k} = envs_{reduced(one, 's')}" for k, one in enumerate(phase.over)]
            if "action" in phase.takes and self.ir.entity_agents:
                lines += self._entities(0, agents, number, phase, self._action("e"))
                lines += self._entities(agents, self.ir.entities, number, phase, self._no_action())
            else:
                given = [] if self.ir.entity_agents else [f"given = {self._action('')}"]
                lines += [*given, *self._entities(0, self.ir.entities, number, phase, "given")]
        return lines

    def _entities(self, first: int, last: int, number: int, phase: Phase, action: str) -> list[str]:
        """A loop that runs a phase for some entities."""
        word = key_word(Purpose.STEP, number, "U32(e)", "U32")
        known = {"action": action, "key": f"(seed, {word}, env_number, episode, lane_U32(length))"}
        over = [f"over{k}" for k in range(len(phase.over))]
        call = f"envs_{phase.name}({', '.join(['s', 'p', 'I32(e)', *(known[what] for what in phase.takes), *over])})"
        return block(f"for e in range(np.uint64({first}), np.uint64({last}))", [call]) if first < last else []

    def _action(self, agent: str) -> str:
        """The action of an agent, or of the only one."""
        behind = f" + np.int64({agent}) * agent_plane" if agent else ""
        size, space = self.ir.action_size, self.ir.action_space
        if size is None:
            return f"lane_get(action[now{behind}:], envs)"
        entries = [f"lane_get(action[{k} * action_plane + now{behind}:], envs)" for k in range(size)]
        if isinstance(space, Box):
            sides = zip(entries, np.ravel(space.low), np.ravel(space.high), strict=True)
            entries = [f"lane_clip({entry}, {bound(low)}, {bound(high)})" for entry, low, high in sides]
        return tuple_of(entries)

    def _no_action(self) -> str:
        """The action of an entity that is no agent."""
        floats = isinstance(self.ir.action_space, Box)
        entries = [bound(x) if floats else f"I32({int(x)})" for x in no_action(self.ir.action_space).reshape(-1)]
        return entries[0] if self.ir.action_size is None else tuple_of(entries)

    def _columns(self) -> list[str]:
        """Lines that write the columns, and add the rewards to the returns."""
        reward = "lane_get(reward_now, (a, envs))" if self.ir.entity_agents else "reward_now"
        returns = f"np.uint64({len(self.ir.floats)}) + a"
        values = {
            "reward": "own_reward",
            "terminated": "is_terminated",
            "truncated": "is_truncated",
            "episode_return": "F32(0.0)",
            "episode_length": "I32(0)",
        }
        return self._per_agent(
            [
                f"own_reward = {reward}",
                self._store("fs", returns, f"{self._load('fs', returns)} + own_reward"),
                *(f"lane_set({name}[now + plane_of_a:], envs, {value})" for name, value in values.items()),
                "lane_set(valid[after + plane_of_a:], envs, (is_terminated | is_truncated) ^ True)",
            ]
        )

    def _per_agent(self, lines: list[str]) -> list[str]:
        """Repeat lines for each agent a, whose columns begin plane_of_a entries after those of the first agent."""
        if not self.ir.entity_agents:
            return ["a, plane_of_a = np.uint64(0), 0", *lines]
        planes = "plane_of_a = np.int64(a) * agent_plane"
        return block(f"for a in range(np.uint64({self.ir.num_agents}))", [planes, *lines])

    def _kept(self) -> list[str]:
        """Lines that store the scalar fields of the new state."""
        lines = [self._store("fs", k, f"next_state[{self.ir.state.index(f)}]") for k, f in enumerate(self.ir.floats)]
        for k, field in enumerate(self.ir.integers):
            lines.append(self._store("ns", k, f"lane_I32(next_state[{self.ir.state.index(field)}])"))
        return lines

    def _observed(self) -> list[str]:
        """Lines that write the observations."""
        over = [f"over{k} = envs_{reduced(one, 'next_state')}" for k, one in enumerate(self.ir.observe_over)]
        given = ["next_state", "p", *(["I32(a)"] if self.ir.entity_agents else [])]
        given += [f"over{k}" for k in range(len(over))]
        entries = range(self.ir.observation_space.shape[0])  # type: ignore[index]
        written = [f"lane_set(observation[{k} * plane + after + plane_of_a:], envs, observed[{k}])" for k in entries]
        return [*over, *self._per_agent([f"observed = envs_env_observe({', '.join(given)})", *written])]


def _value(place: str, dtype: str) -> str:
    """A stored number as its value: u32 by its bits, a boolean from 0 and 1."""
    return {U32: f"lane_U32({place})", BOOL: f"{place} != I32(0)"}.get(dtype, place)
