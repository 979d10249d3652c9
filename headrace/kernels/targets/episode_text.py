"""The text around an environment's functions that the CPU and the CUDA modules have in common: one step of an episode.

Generated lines know environment i: `p` holds its parameters, `s` its state. A target's subclass names the places that
they read and write, and puts them into its kernels. Each agent has columns of its own in the rollout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from textwrap import indent

import numpy as np
from gymnasium.spaces import Box

from headrace.kernels.language.ir import ENTITY_BITS, PHASE_BITS, EnvIR, Field
from headrace.kernels.language.kinds import BOOL, F32, U32


class EpisodeText(ABC):
    """Lines of generated code for one environment. per_env: each parameter has a value per environment."""

    env_number: str  # number of environment i, uint32: a part of the keys of its random draws
    load: Sequence[str] = ()  # lines that define p and s, where they are not defined yet

    def __init__(self, ir: EnvIR, per_env: bool) -> None:
        self.ir, self.per_env = ir, per_env
        self.agents = range(ir.num_agents)
        returns = [self.scalar(True, len(ir.floats) + agent) for agent in self.agents]
        size = len(ir.integers)
        # where the return of each agent, the length and the number of the running episode are kept
        self.returns, self.length, self.episode = returns, self.scalar(False, size), self.scalar(False, size + 1)

    @abstractmethod
    def scalar(self, is_float: bool, row: int) -> str:
        """The number of environment i in a row of the float or of the integer pack."""

    @abstractmethod
    def array(self, field: Field) -> str:
        """The array field of environment i."""

    @abstractmethod
    def param(self, is_float: bool, row: int) -> str:
        """A parameter: of all environments, or of environment i."""

    @abstractmethod
    def column(self, name: str, agent: int) -> str:
        """An agent's entry of a column in the row of this step; of `valid` in the row after it."""

    @abstractmethod
    def action_entry(self, agent: int, entry: int | None) -> str:
        """An entry of an agent's action; None for the action of a Discrete space."""

    @abstractmethod
    def observation(self, agent: int, entry: int | None) -> str:
        """An entry of an agent's observation in the row after this step; None for the whole of it."""

    @abstractmethod
    def keep(self, state: str) -> list[str]:
        """Lines that keep a new state; array fields have been changed in place."""

    def place(self, field: Field) -> str:
        """Text of the place where a field of State is kept."""
        if field.shape is not None:
            return self.array(field)
        is_float = field.dtype == F32
        return self.scalar(is_float, (self.ir.floats if is_float else self.ir.integers).index(field))

    def params(self) -> str:
        """The line that defines p."""
        rows = {True: count(), False: count()}
        places = [(self.param(p.dtype == F32, next(rows[p.dtype == F32])), p.dtype) for p in self.ir.params]
        return f"p = {tuple_of([value_of(place, dtype) for place, dtype in places])}"

    def state(self) -> str:
        """The line that defines s."""
        places = [(self.place(f), f) for f in self.ir.state]
        return "s = " + tuple_of([value_of(x, f.dtype) if f.shape is None else x for x, f in places])

    def store(self, state: str) -> list[str]:
        """Lines that store the scalar fields of a state."""
        return [
            f"{self.place(f)} = " + (f"{state}[{k}]" if f.dtype == F32 else f"I32({state}[{k}])")
            for k, f in enumerate(self.ir.state)
            if f.shape is None
        ]

    def reward(self, agent: int) -> str:
        """An agent's reward of this step."""
        return "step_reward" if self.ir.num_agents == 1 else f"step_reward[{agent}]"

    def each(self, column: str, value: str) -> list[str]:
        """A line for each agent that writes its column; {reward} and {before} are its reward and return so far."""
        return [
            f"{self.column(column, a)} = " + value.format(reward=self.reward(a), before=of_agent("return_before", a))
            for a in self.agents
        ]

    def action(self) -> str:
        """The action of environment i: of several agents a tuple of theirs; a Box's clipped to its bounds."""
        actions = [self._action_of(agent) for agent in self.agents]
        return actions[0] if len(actions) == 1 else tuple_of(actions)

    def _action_of(self, agent: int) -> str:
        size, space = self.ir.action_size, self.ir.action_space
        if size is None:
            return self.action_entry(agent, None)
        entries = [self.action_entry(agent, k) for k in range(size)]
        if isinstance(space, Box):
            bounds = zip(np.ravel(space.low), np.ravel(space.high), strict=True)
            entries = [
                f"clip({entry}, {bound(low)}, {bound(high)})"
                for entry, (low, high) in zip(entries, bounds, strict=True)
            ]
        return tuple_of(entries)

    def observe(self, state: str) -> list[str]:
        """Lines that write all agents' observations of a state."""
        return [line for agent in self.agents for line in self.observed_by(agent, state)]

    def observed_by(self, agent: int, state: str) -> list[str]:
        """Lines that write an agent's observation of a state; none for pixel observations, which are drawn later."""
        if self.ir.frames:
            return []
        given = f"{state}, p" + (f", I32({agent})" if self.ir.num_agents > 1 else "")
        if self.ir.observes_into:
            return [f"env_observe({given}, {self.observation(agent, None)})"]
        entries = range(self.ir.observation_space.shape[0])
        written = [f"{self.observation(agent, k)} = observed[{k}]" for k in entries]
        return [f"observed = env_observe({given})", *written]

    def begin(self, episode: str) -> list[str]:
        """Lines that begin an episode."""
        return [
            f"episode = {episode}",
            *self.load,
            f"reset_state = env_reset(s, p, (seed, U32(0), {self.env_number}, U32(episode), U32(0)))",
            *(f"{place} = F32(0.0)" for place in self.returns),
            f"{self.length} = I32(0)",
            f"{self.episode} = episode",
            *self.keep("reset_state"),
        ]

    def begin_next(self) -> list[str]:
        """Lines that begin the episode after the present one."""
        return self.begin(f"I32({self.episode} + I32(1))")

    def outcome(self) -> list[str]:
        """Lines that compute a step, and whether the episode ends with it: terminated, truncated or both."""
        key = f"(seed, U32(1), {self.env_number}, U32({self.episode}), U32({self.length}))"
        limit = f"steps >= I32({self.ir.max_steps})" if self.ir.max_steps else "False"
        return [
            *self.load,
            f"next_state, step_reward, is_terminated = env_step(s, p, {self.action()}, {key})",
            f"steps = I32({self.length} + I32(1))",
            f"is_truncated = {limit}",
            *self._returns_before(),
        ]

    def count(self) -> list[str]:
        """Lines that keep what a step adds: rewards, the length and the new state."""
        return [
            *(f"{self.returns[a]} = {of_agent('return_before', a)} + {self.reward(a)}" for a in self.agents),
            f"{self.length} = steps",
            *self.keep("next_state"),
        ]

    def valid_step(self) -> list[str]:
        """Lines for a step of a running episode, without its observation."""
        return [
            *self.outcome(),
            *self.each("reward", "{reward}"),
            *self.each("terminated", "is_terminated"),
            *self.each("truncated", "is_truncated"),
            *self.each("valid", "(is_terminated | is_truncated) ^ True"),
            *self.each("episode_return", "F32(0.0)"),
            *self.each("episode_length", "I32(0)"),
            *self.count(),
        ]

    def masked_step(self) -> list[str]:
        """Lines for the step after an episode's end, which begins the next one, without its observation."""
        return [
            *self._returns_before(),
            *self.each("reward", "F32(0.0)"),
            *self.each("terminated", "False"),
            *self.each("truncated", "False"),
            *self.each("valid", "True"),
            *self.each("episode_return", "{before}"),
            *self.each("episode_length", self.length),
            *self.begin_next(),
        ]

    def _returns_before(self) -> list[str]:
        return [f"{of_agent('return_before', agent)} = {self.returns[agent]}" for agent in self.agents]


def pack_rows(ir: EnvIR) -> tuple[int, int]:
    """Rows of the float and of the integer pack: fields of State, and each agent's return; length and episode."""
    return len(ir.floats) + ir.num_agents, len(ir.integers) + 2


def constants(ir: EnvIR) -> list[str]:
    """Lines that define the arrays that the functions name."""
    return [f"{name} = np.array({a.tolist()!r}, np.{a.dtype})" for name, a in ir.constants.items()]


def decorated(code: str, decorator: str) -> str:
    """The lowered functions, each under a decorator."""
    return code.replace("def env_", f"{decorator}\ndef env_")


def title(ir: EnvIR, what: str) -> str:
    """The docstring of a generated module."""
    return f'"""{ir.name}, {what}. Generated from the file of the environment."""'


def function(decorator: str, head: str, lines: list[str]) -> str:
    """The text of a function."""
    return f"{decorator}\ndef {head}:\n" + indent("\n".join(lines), "    ")


def block(head: str, lines: Sequence[str]) -> list[str]:
    """A compound statement with these lines in it."""
    return [f"{head}:", *(f"    {line}" for line in lines)]


def of_agent(name: str, agent: int) -> str:
    """The name of an agent's own variable."""
    return f"{name}_of{agent}" if agent else name


def value_of(place: str, dtype: str) -> str:
    """A stored number as its value: u32 by its bits, a boolean from 0 and 1."""
    return {U32: f"U32({place})", BOOL: f"{place} != I32(0)"}.get(dtype, place)


def key_word(purpose: int, number: int, entity: str, convert: str) -> str:
    """The word `purpose` of an entity's key in the phase of this number. convert: to uint32."""
    return f"{convert}(U32({purpose | (number + 1) << PHASE_BITS}) + {convert}({entity} << U32({ENTITY_BITS})))"


def tuple_of(items: Sequence[str]) -> str:
    """The text of a tuple."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def bound(value: np.floating) -> str:
    """The text of a float32, which may be infinite."""
    return f"F32({float(value)!r})" if np.isfinite(value) else f"F32({'-' if value < 0 else ''}np.inf)"
