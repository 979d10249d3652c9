"""The Env protocol: N environments on one device, which write their outcomes into a rollout's columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from gymnasium.spaces import Space
from torch import Tensor

from headrace.core.text import shown
from headrace.core.types import Json, Settings, StateDict
from headrace.data.rollout import Column, Columns, Rollout, tree_map
from headrace.data.spaces import Dict, action_column, env_columns


class Round(NamedTuple):
    """Some episodes of an evaluation, one for each of the first environments."""

    first: int  # number of the episode of environment 0
    size: int  # number of environments that play an episode; the others rest
    of: int  # number of episodes in the evaluation


@runtime_checkable
class Env(Protocol):
    """N environments on one device. Derive from it: members that are not abstract have a default for single agents.

    step() reads `rollout.action[t]` and writes `reward[t], terminated[t], truncated[t], observation[t + 1],
    valid[t + 1]`, and at masked rows `episode_return[t], episode_length[t]` (see headrace.data.rollout for endings).
    A step that terminates at the time limit is also truncated, as with Gymnasium's TimeLimit. Actions outside a Box's
    bounds are clipped; the column keeps the policy's action.
    """

    name: str  # as in make(name): "CartPole-v1"
    backend: str  # "cpu", "cuda", "torch", "inline", "workers", "vector"
    num_envs: int  # columns of a rollout: num_agents * num_copies
    device: torch.device
    observation_space: Space  # of one agent; a Dict by group if spaces are nested
    action_space: Space  # likewise
    max_steps: int | None = None  # steps until an episode is truncated; None for never or unknown
    truncates_only: bool = False  # whether it is known that nothing but max_steps ends an episode
    agents: tuple[str, ...] = ("agent_0",)  # in one copy of the environment, in the order of their columns
    groups: Mapping[str, tuple[str, ...]] = MappingProxyType({"all": ("agent_0",)})  # agents that share a policy
    nested: bool = False  # whether spaces differ between groups; observation and action then have a member for each
    takes_turns: bool = False  # whether its agents move one at a time: see TurnBasedEnv
    first_env: int = 0  # number of the first environment, for a part of a larger set
    made_params: Settings = MappingProxyType({})  # arguments of make(), which also apply to evaluations
    factory: Callable | None = None  # makes one of the environments; None if unknown
    made_with: Settings = MappingProxyType({})  # options of make() for further environments like these, without params
    changed_params: Settings = MappingProxyType({})  # arguments of set_params() so far
    learned: Sequence[Any] = ()  # wrappers that learn statistics, see envs.gym.learned
    fixed_params: str = ""  # why set_params() is refused; empty if it is allowed
    single: bool = False  # whether a process can have them only once: evaluations then also use them

    @property
    def num_agents(self) -> int:
        """Number of agents in each copy of the environment."""
        return len(self.agents)

    @property
    def num_copies(self) -> int:
        """Number of copies of the environment: num_envs, unless there are several agents."""
        return self.num_envs // self.num_agents

    @property
    def spaces(self) -> dict[str, tuple[Space, Space]]:
        """The spaces of observations and of actions of each group of agents."""
        pair = self.observation_space, self.action_space
        if self.nested and isinstance(pair[0], Dict) and isinstance(pair[1], Dict):
            return {group: (pair[0][group], pair[1][group]) for group in self.groups}
        return dict.fromkeys(self.groups, pair)

    @property
    def restarts(self) -> int:
        """Number of environments that were made again after a failure."""
        return 0

    @property
    def params(self) -> Settings:
        """The given parameters of the environments, by name; others have their defaults."""
        return {**self.made_params, **self.changed_params}

    @params.setter
    def params(self, values: Settings) -> None:
        """Raise AttributeError: parameters are given to make()."""
        raise AttributeError(f"params cannot be set: make the environments with make(..., params={shown(values)})")

    def set_params(self, **params: Any) -> None:
        """Change parameters of the environments in use, from their next step on, for example for a curriculum.

        params: one value for all environments, or a sequence with one for each of num_copies. For compiled environments
        these are parameters in Params; values for each environment are allowed if a parameter was given so to make().
        For others the method set_params(**params) is called, or attributes of these names are set. A resumed training
        has the same parameters. Evaluations keep those that the environments were made with.
        Raises ValueError for an unknown parameter, for another number of values, and for environments without
        parameters.
        """
        if self.fixed_params:
            raise ValueError(f"set_params({', '.join(params)}) does not reach the environments: {self.fixed_params}")
        params = deepcopy(params)  # a copy, since the caller may change arrays in place
        self._set_params(params)
        self.changed_params = {**self.changed_params, **params}

    def _set_params(self, params: Settings) -> None:
        """Implement set_params() for this kind of environments."""
        one_by_one = ": give backend='inline' or 'workers', where Gymnasium makes each by itself"
        raise ValueError(
            f"the environments of {self.name} are of the backend {self.backend!r}, and have no set_params()"
            f"{one_by_one if self.backend == 'vector' else ''}"
        )

    def apply(self, function: Callable[[Any], Any], indices: Iterable[int] | None = None) -> list[Any]:
        """Call a function with each of some environments, or of all, and return the results. Its argument is a
        gymnasium.Env, in its wrappers. In a worker process it has copies of the objects that it refers to.

        Raises what the function raises, and ValueError for environments that are not objects.
        """
        raise ValueError(f"the environments of {self.name} are of the backend {self.backend!r}, and no objects")

    def columns(self) -> dict[str, Column | Columns]:
        """Columns that the env writes, and the action."""
        return {**env_columns(self.observation_space), "action": action_column(self.action_space)}

    def rollout(self, num_steps: int, columns: Columns) -> Rollout:
        """Make a rollout of these columns for the env to fill, in suitable memory."""
        return Rollout(num_steps, self.num_envs, columns, self.device)

    def plan(self) -> str:
        """Describe the machine's resources that the env uses, in a line; empty if they are small."""
        return ""

    def metrics(self) -> dict[str, float]:
        """Numbers of the environments to log with each iteration."""
        return {}

    @abstractmethod
    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode everywhere; write observation[0] and valid[0]. The same seed gives the same episodes."""

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        """Reset for an evaluation: copy i plays episode episodes.first + i, and rests after its end.

        An episode depends on the seed and on its number, not on the copy that plays it. All kinds of environments
        support the first round, whose episodes are those of reset(). Copies without an episode continue in that round.
        Raises ValueError for further rounds if these environments only support the first one.
        """
        if episodes.first:
            raise ValueError(f"the environments of {self.name} play the first {self.num_copies} episodes only")
        self.reset(rollout, seed)

    @abstractmethod
    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """Tensors and numbers from which to continue, bit for bit; empty if the environments cannot be saved."""

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). The caller restores the rollout's bootstrap row."""

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold. May be called again."""


class TurnBasedEnv(Env, Protocol):
    """An Env of several agents that move one at a time. A step reads the action of one agent in each copy."""

    @abstractmethod
    def movers(self) -> Tensor:
        """The agent that moves next in each copy, [num_copies]; arbitrary if the episode has ended."""

    @abstractmethod
    def step_some(self, rollout: Rollout, t: int, which: Tensor) -> None:
        """Step only the copies `which`, bool [num_copies], whose episodes must not have ended. The others do not
        change, and their outcome is meaningless."""


@runtime_checkable
class AsyncEnv(Env, Protocol):
    """An Env whose parts can be stepped independently.

    parts: the environments of each part. A part is the unit that steps alone: a worker process, an environment of
    EnvPool, or half of MuJoCo's.
    """

    parts: Sequence[slice]

    def make_async(self) -> None:
        """Prepare for start() and get(), which need a reset() afterwards."""
        return

    @abstractmethod
    def start(self, rollout: Rollout, t: int, part: int) -> None:
        """Start a part's step from row t without waiting for it. Raises ValueError if the part is still in a step."""

    @abstractmethod
    def get(self, timeout: float | None = None) -> list[int]:
        """Wait for parts to finish their step, and return them; none after `timeout` seconds, or if none was
        started."""

    def ready(self) -> list[int]:
        """Return parts that have finished their step, without waiting."""
        return self.get(0.0)


@runtime_checkable
class MultiAgentEnv(Protocol):
    """One environment of a user's with several agents that act at once: a pettingzoo.ParallelEnv, or any class with the
    same methods. PettingZooEnv makes an Env of its copies, in which each agent has a column."""

    possible_agents: list[str]
    if TYPE_CHECKING:
        agents: list[str]  # present agents; many environments have none before their first reset()

    def observation_space(self, agent: str) -> Space:
        """The space of an agent's observations, the same at each call."""

    def action_space(self, agent: str) -> Space:
        """The space of an agent's actions, the same at each call."""

    def reset(self, seed: int | None = None, options: Json | None = None) -> tuple[Json, Json]:
        """Begin a new episode. Returns observations and infos by agent."""

    def step(self, actions: Json) -> tuple[Json, Json, Json, Json, Json]:
        """Step with the agents' actions; returns observations, rewards, terminations, truncations, infos by agent."""

    def close(self) -> None:
        """Free what the environment holds."""


class EnvWrapper(Env):
    """An Env around another one, `env`: all of its attributes and methods are those of `env`, unless overridden."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.name, self.backend, self.num_envs, self.device = env.name, env.backend, env.num_envs, env.device
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.max_steps, self.factory, self.first_env = env.max_steps, env.factory, env.first_env
        self.agents, self.groups, self.nested = env.agents, env.groups, env.nested
        self.made_params, self.changed_params = env.made_params, env.changed_params
        self.made_with, self.fixed_params, self.learned = env.made_with, env.fixed_params, env.learned
        self.single = env.single

    def _set_params(self, params: Settings) -> None:
        self.env.set_params(**params)

    def apply(self, function: Callable[[Any], Any], indices: Iterable[int] | None = None) -> list[Any]:
        return self.env.apply(function, indices)

    @property
    def restarts(self) -> int:
        return self.env.restarts

    def columns(self) -> dict[str, Column | Columns]:
        return self.env.columns()

    def rollout(self, num_steps: int, columns: Columns) -> Rollout:
        return self.env.rollout(num_steps, columns)

    def plan(self) -> str:
        return self.env.plan()

    def metrics(self) -> dict[str, float]:
        return self.env.metrics()

    def reset(self, rollout: Rollout, seed: int) -> None:
        self.env.reset(rollout, seed)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        self.env.begin(rollout, seed, episodes)

    def step(self, rollout: Rollout, t: int) -> None:
        self.env.step(rollout, t)

    def state_dict(self) -> StateDict:
        return self.env.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        self.env.load_state_dict(state)

    def close(self) -> None:
        self.env.close()


def repeat_first(rollout: Rollout, num_copies: int, count: int) -> None:
    """Copy the first copy's observation in row 0 to the copies from `count` on, which play no episode, so that a policy
    can act on it."""

    def repeat(column: Tensor) -> Tensor:
        by_agent = column[0].unflatten(0, (-1, num_copies))  # a view
        by_agent[:, count:] = by_agent[:, :1]
        return column

    tree_map(repeat, rollout.observation)
