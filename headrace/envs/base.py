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
    size: int  # environments that play one; the others rest
    of: int  # episodes of the evaluation


@runtime_checkable
class Env(Protocol):
    """N environments on one device. Derive from it: what is not abstract has a default, which suits single agents.

    step() reads `rollout.action[t]` and writes `reward[t], terminated[t], truncated[t], observation[t + 1],
    valid[t + 1]`, and at masked rows `episode_return[t], episode_length[t]` (see headrace.data.rollout for endings).
    A step that terminates at the time limit is truncated too, as by Gymnasium's TimeLimit.
    Actions of a Box outside its bounds are clipped to them; the column keeps the policy's action.
    """

    name: str  # as in make(name): "CartPole-v1"
    backend: str  # "cpu", "cuda", "torch", "inline", "workers", "vector"
    num_envs: int  # columns of a rollout: num_agents * num_copies
    device: torch.device
    observation_space: Space  # of one agent; a Dict by group where spaces are nested
    action_space: Space  # likewise
    max_steps: int | None = None  # steps until an episode is truncated; None for never, or where that is not known
    agents: tuple[str, ...] = ("agent_0",)  # of one copy of the environment, in the order of their columns
    groups: Mapping[str, tuple[str, ...]] = MappingProxyType({"all": ("agent_0",)})  # agents that share a policy
    nested: bool = False  # whether spaces differ between groups: then observation and action have a member for each
    takes_turns: bool = False  # whether its agents move one at a time: see TurnBasedEnv
    first_env: int = 0  # number of the first environment, where these are a part of a larger set
    made_params: Settings = MappingProxyType({})  # that make() was given, and evaluations have
    factory: Callable | None = None  # makes one of the environments; None where that is not known
    made_with: Settings = MappingProxyType({})  # options of make() that others like these take, besides params
    changed_params: Settings = MappingProxyType({})  # what set_params() has been given so far
    learned: Sequence[Any] = ()  # wrappers that learn statistics, see envs.gym.learned
    fixed_params: str = ""  # why set_params() is refused; empty where it is not
    single: bool = False  # whether a process may have them once only: evaluations are in these, too

    @property
    def num_agents(self) -> int:
        """Agents in each copy of the environment."""
        return len(self.agents)

    @property
    def num_copies(self) -> int:
        """Copies of the environment: num_envs, unless there are several agents."""
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
        """How many environments had to be made again after a failure."""
        return 0

    @property
    def params(self) -> Settings:
        """Parameters of the environments, by name, as they were given; the others have their defaults."""
        return {**self.made_params, **self.changed_params}

    @params.setter
    def params(self, values: Settings) -> None:
        """Refused: they are part of what was made."""
        raise AttributeError(f"params cannot be set: make the environments with make(..., params={shown(values)})")

    def set_params(self, **params: Any) -> None:
        """Change parameters of the environments while they are used, from their next step on: a curriculum.

        One value for all environments, or a sequence with one for each of num_copies. Of compiled environments they
        are those of Params, and have one for each where one was given so when they were made. Others have their method
        set_params(**params) called, or their attributes of these names set. A resumed training has the same parameters.
        Evaluations keep those that the environments were made with.
        Raises ValueError for a parameter that there is not, for another number of values, and for environments without
        any parameters.
        """
        if self.fixed_params:
            raise ValueError(f"set_params({', '.join(params)}) does not reach the environments: {self.fixed_params}")
        params = deepcopy(params)  # which are kept: the caller may change arrays in place
        self._set_params(params)
        self.changed_params = {**self.changed_params, **params}

    def _set_params(self, params: Settings) -> None:
        """set_params() of this kind of environments."""
        one_by_one = ": give backend='inline' or 'workers', where Gymnasium makes each by itself"
        raise ValueError(
            f"the environments of {self.name} are of the backend {self.backend!r}, and have no set_params()"
            f"{one_by_one if self.backend == 'vector' else ''}"
        )

    def apply(self, function: Callable[[Any], Any], indices: Iterable[int] | None = None) -> list[Any]:
        """What a function returns for each of some environments, or of all, called where they are: in a worker process
        with copies of what it refers to. It is given a gymnasium.Env, in its wrappers.

        Raises what the function raises; ValueError for environments that are no objects.
        """
        raise ValueError(f"the environments of {self.name} are of the backend {self.backend!r}, and no objects")

    def columns(self) -> dict[str, Column | Columns]:
        """The columns that the env writes, and the action."""
        return {**env_columns(self.observation_space), "action": action_column(self.action_space)}

    def rollout(self, num_steps: int, columns: Columns) -> Rollout:
        """A rollout of these columns for the env to fill, in the memory that suits it."""
        return Rollout(num_steps, self.num_envs, columns, self.device)

    def plan(self) -> str:
        """What the env takes of the machine, in a line; empty where that is not worth a line."""
        return ""

    def metrics(self) -> dict[str, float]:
        """Numbers of the environments to log with each iteration."""
        return {}

    @abstractmethod
    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode everywhere; write observation[0] and valid[0]. The same seed gives the same episodes."""

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        """As reset(), for an evaluation: copy i plays episode episodes.first + i, and rests after its end.

        An episode depends on the seed and on its number, not on the copy that plays it. What is common to all kinds of
        environments is the first round, whose episodes are those of reset(); copies that play no episode go on there.
        Raises ValueError for further rounds where these environments know the first one only.
        """
        if episodes.first:
            raise ValueError(f"the environments of {self.name} play the first {self.num_copies} episodes only")
        self.reset(rollout, seed)

    @abstractmethod
    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """Tensors and numbers to continue from, bit for bit. Empty where the environments cannot be saved."""

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). The caller restores the rollout's bootstrap row."""

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold. May be called again."""


class TurnBasedEnv(Env, Protocol):
    """An Env of several agents that move one at a time: a step reads the action of one in each copy."""

    @abstractmethod
    def movers(self) -> Tensor:
        """The agent that moves next in each copy, [num_copies]; where an episode has ended, any of them."""

    @abstractmethod
    def step_some(self, rollout: Rollout, t: int, which: Tensor) -> None:
        """As step(), of the copies `which`, bool [num_copies], whose episodes go on. The others stay where they are,
        and their outcome has no meaning."""


@runtime_checkable
class AsyncEnv(Env, Protocol):
    """An Env whose parts can be stepped one by one, without waiting for the others.

    parts: the environments of each part. A part is what steps alone: a worker process, an environment of
    EnvPool, or half of MuJoCo's.
    """

    parts: Sequence[slice]

    def make_async(self) -> None:
        """Prepare for start() and get(), which need a reset() afterwards."""
        return

    @abstractmethod
    def start(self, rollout: Rollout, t: int, part: int) -> None:
        """Start a part's step from row t, and do not wait for it. Raises ValueError where it is still at one."""

    @abstractmethod
    def get(self, timeout: float | None = None) -> list[int]:
        """The parts that have finished their step, as soon as there are some; none after `timeout` seconds, or where
        none was started."""

    def ready(self) -> list[int]:
        """The parts that have finished their step by now. Does not wait."""
        return self.get(0.0)


@runtime_checkable
class MultiAgentEnv(Protocol):
    """One environment of several agents that act at once, as users give it: a pettingzoo.ParallelEnv, or any class with
    the same methods. PettingZooEnv puts copies of it behind an Env, of which each agent has a column."""

    possible_agents: list[str]
    if TYPE_CHECKING:
        agents: list[str]  # those that take part now: many environments have none before their first reset()

    def observation_space(self, agent: str) -> Space:
        """The space of an agent's observations: at each call the same."""

    def action_space(self, agent: str) -> Space:
        """The space of an agent's actions: at each call the same."""

    def reset(self, seed: int | None = None, options: Json | None = None) -> tuple[Json, Json]:
        """Begin a new episode: observations and infos by agent."""

    def step(self, actions: Json) -> tuple[Json, Json, Json, Json, Json]:
        """A step by the actions of the agents: observations, rewards, terminations, truncations and infos by agent."""

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
    """Give the copies from `count` on, which play no episode, the observation of the first copy in row 0: one that a
    policy can act on."""

    def repeat(column: Tensor) -> Tensor:
        by_agent = column[0].unflatten(0, (-1, num_copies))  # a view
        by_agent[:, count:] = by_agent[:, :1]
        return column

    tree_map(repeat, rollout.observation)
