"""The state of all agents as a member of each agent's observation, for critics that see more than their actor: MAPPO.

Observations become Dicts of `observation`, an agent's own, and `central_state`. A PettingZoo environment with a state()
gives that (envs.gym.pettingzoo_wrappers.WithState); for others it is the observations of the other agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headrace.data.flat_dict import ACTION_MASK, CENTRAL, OBSERVATION, FlatDict
from headrace.data.rollout import Column, Columns, Group, Rollout
from headrace.data.spaces import Box, Dict, Key, MultiBinary, Space, is_image, leaves
from headrace.envs.base import Env, EnvWrapper, Round
from headrace.envs.gym.agent_groups import AgentGroups

Part = tuple[tuple[Key, ...], int]  # keys that lead to a vector in an observation, and its size


class CentralEnv(EnvWrapper):
    """An env of several agents whose observations have the state of all others, float32 [N, S], as `central_state`.

    An agent's state consists of the other agents' observations without action masks, and the agent's number, one-hot.
    Together with its own observation this is the critic's input in Yu et al. 2022, arXiv:2103.01955, section 5, without
    duplicates. The others are first those of its group, from the next one on, then the other groups. Absent agents have
    zeros; the row after an agent's last step still has the final observation. The state does not depend on earlier
    rows, so state_dict() is that of `env`.
    Raises ValueError for an environment with one agent; TypeError for observations that are not vectors.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        if env.num_agents == 1:
            raise ValueError(f"central_critic is for several agents, and {env.name} has one: leave it out")
        self._parts = {group: _vectors(own, env.name) for group, (own, _) in env.spaces.items()}
        sizes = {group: sum(size for _, size in parts) for group, parts in self._parts.items()}
        total = sum(sizes[group] * len(agents) for group, agents in env.groups.items())
        both: dict[str, Space] = {}
        for group, (own, _) in env.spaces.items():
            state = Box(-np.inf, np.inf, (total - sizes[group] + env.num_agents,), np.float32)
            both[group] = Dict({OBSERVATION: own, CENTRAL: state})
        self.observation_space = Dict(both) if env.nested else next(iter(both.values()))
        self._numbers = torch.eye(env.num_agents, device=env.device)
        self._others = {group: _others(len(agents)).to(env.device) for group, agents in env.groups.items()}
        self._inner: WeakKeyDictionary[Rollout, Rollout] = WeakKeyDictionary()

    def columns(self) -> dict[str, Column | Columns]:
        """The env's columns, with central_state within the observation."""
        return {**self.env.columns(), **AgentGroups(self.groups, self.spaces).columns(self.num_copies)}

    def rollout(self, num_steps: int, columns: Columns) -> Rollout:
        """A rollout of these columns; those of the env are in the env's own memory."""
        inner = self.env.rollout(num_steps, {**columns, "observation": self.env.columns()["observation"]})

        def both(own: Any, column: Any) -> Group:
            state = column[CENTRAL].allocate(num_steps, self.num_envs, inner.device)
            return Group({OBSERVATION: own, CENTRAL: state})

        outer = inner[:]
        outer.columns, outer.observation = columns, self._each(both, inner.observation, columns["observation"])
        self._inner[outer] = inner
        return outer

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin new episodes, and write the state of all agents."""
        self.env.reset(self._of_env(rollout), seed)
        self._write(rollout, 0, rollout.valid[0])

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        self.env.begin(self._of_env(rollout), seed, episodes)
        self._write(rollout, 0, rollout.valid[0])

    def step(self, rollout: Rollout, t: int) -> None:
        """Step the environments, and write the state of all agents after it."""
        self.env.step(self._of_env(rollout), t)
        self._write(rollout, t + 1, rollout.valid[t + 1] | rollout.valid[t])

    def _each(self, function: Callable[..., Any], *values: Any) -> Any:
        """Apply a function to values or, if spaces differ between groups, to each group's member of them."""
        if not self.nested:
            return function(*values)
        return Group({group: function(*(value[group] for value in values)) for group in self.groups})

    def _of_env(self, rollout: Rollout) -> Rollout:
        """The rollout for the env: the same memory, without central_state."""
        inner = self._inner.get(rollout)
        if inner is None:
            inner = self._inner[rollout] = rollout[:]
            inner.columns = {**rollout.columns, "observation": self.env.columns()["observation"]}
            inner.observation = self._each(lambda both: both[OBSERVATION], rollout.observation)
        return inner

    def _write(self, rollout: Rollout, row: int, counts: Tensor) -> None:
        """Write the state of a row. counts: bool [N], the agents that are seen in it."""
        inner, first, shown, targets = self._of_env(rollout), 0, {}, {}
        for group, agents in self.groups.items():
            columns = slice(first * self.num_copies, (first + len(agents)) * self.num_copies)
            place = slice(None) if self.nested else columns  # of the group in its column of observations
            own, both = (x.observation[group] if self.nested else x.observation for x in (inner, rollout))
            vectors = [_member(own, keys)[row, place].flatten(1)[:, :size] for keys, size in self._parts[group]]
            seen = torch.where(counts[columns].unsqueeze(1), torch.cat(vectors, 1), 0.0)
            shown[group] = seen.unflatten(0, (len(agents), -1))  # [agents, copies, F]
            targets[group] = both[CENTRAL][row, place].unflatten(0, (len(agents), -1))  # [agents, copies, S]
            first += len(agents)
        numbers = self._numbers.split([len(agents) for agents in self.groups.values()])
        for (group, target), number in zip(targets.items(), numbers, strict=True):
            near = shown[group][self._others[group]].transpose(1, 2).flatten(2)  # [agents, copies, others * F]
            far = [x.transpose(0, 1).flatten(1) for other, x in shown.items() if other != group]  # [copies, agents * F]
            common = [x.expand(len(target), *x.shape) for x in far]
            target.copy_(torch.cat([near, *common, number.unsqueeze(1).expand(-1, self.num_copies, -1)], 2))


def central(env: Env) -> Env:
    """Make a CentralEnv. An env whose observations have a state is returned as it is. Raises as CentralEnv does."""
    given = [set(own.spaces) for own, _ in env.spaces.values() if isinstance(own, Dict) and CENTRAL in own.spaces]
    if any(names != {OBSERVATION, CENTRAL} for names in given):
        raise TypeError(f"with {CENTRAL} observations have {OBSERVATION} and no other members, got {env.spaces}")
    return env if given else CentralEnv(env)


def _others(number: int) -> Tensor:
    """Indices of the other agents of a group for each agent, from the next one on: int64 [agents, agents - 1]."""
    agents = torch.arange(number)
    return (agents.unsqueeze(1) + agents[1:]) % number


def _member(value: Any, keys: tuple[Key, ...]) -> Tensor:
    """The column at the end of keys in an observation."""
    for key in keys:
        value = value[str(key)]
    return value  # type: ignore[no-any-return]


def _vectors(space: Space, name: str) -> list[Part]:
    """The vectors of an observation, without action masks. Raises TypeError for anything else in it."""
    found = []
    for keys, leaf in leaves(space):
        if keys and keys[-1] == ACTION_MASK:
            continue
        if not isinstance(leaf, Box | MultiBinary) or is_image(leaf):
            raise TypeError(
                f"central_critic puts the observations of all agents side by side, and those of {name} have {leaf}: "
                "give the environment a state_space, a Box, and a state()"
            )
        found.append((keys, leaf.features if isinstance(leaf, FlatDict) else math.prod(leaf.shape or ())))
    return found
