"""PettingZoo's parallel environments, which have several agents. Agents are columns of a rollout.

With A agents in W copies of the environment, column agent * W + copy is that agent's in that copy. Rows of an agent
whose episode has ended are masked until it is among the agents again, or until its copy has no agents and begins a new
episode. The first masked row after an agent's steps has their `episode_return` and `episode_length`; in other masked
rows both are 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from headrace.core.text import shown
from headrace.data.rollout import Column, Columns, Rollout
from headrace.data.spaces import Sample
from headrace.envs.base import MultiAgentEnv, Round
from headrace.envs.gym.agent_groups import AgentGroups, agent_groups_of, take_agents
from headrace.envs.gym.columns import Views, as_flag, as_number, each_action, put, views
from headrace.envs.gym.failures import made
from headrace.envs.gym.inline import InlineEnv
from headrace.envs.gym.several import factory_of
from headrace.envs.gym.unread import IN_OBSERVATIONS, STILL_LISTED, tell_unread, unread_mask

OUTCOME = ("observations", "rewards", "terminations", "truncations", "infos")


def inline(factory: Callable[[], gymnasium.Env], num_copies: int, name: str, **part: Any) -> InlineEnv:
    """Make an InlineEnv, or a PettingZooEnv for several agents. part: arguments of InlineEnv."""
    env = made(factory_of(factory, part.get("first_env", 0)))
    kind = InlineEnv if isinstance(env, gymnasium.Env) else PettingZooEnv
    return kind(factory, num_copies, name, env=env, **part)


def restarts(on_error: str) -> bool:
    """Tell whether on_error is "restart". Raises ValueError unless it is that or "raise"."""
    if on_error not in ("raise", "restart"):
        raise ValueError(f"on_error must be 'raise' or 'restart', got {on_error!r}")
    return on_error == "restart"


def _original(env: Any) -> Any:
    """An environment without its wrappers."""
    return getattr(env, "unwrapped", env)


def _takes_turns(env: Any) -> bool:
    """True for environments of turn_based_aec_to_parallel(), also in wrappers. In those of aec_to_parallel() agents act
    at once, although they contain an AECEnv."""
    conversions = sys.modules.get("pettingzoo.utils.conversions")
    while conversions is not None and env is not None:
        if isinstance(env, conversions.turn_based_aec_to_parallel_wrapper):
            return True
        env = getattr(env, "__dict__", {}).get("env")
    return False


class _Place(NamedTuple):
    """An agent's place in a rollout."""

    agent: str
    observation: Views  # of its group
    group: int  # number of its group, for actions
    offset: int  # its column of copy 0 in its group's observation and action
    first: int  # its column of copy 0 in all other columns


class PettingZooEnv(InlineEnv):
    """Copies of a pettingzoo.ParallelEnv behind headrace.envs.base.Env: num_envs = num_agents * num_copies columns.

    factory() makes one copy. `agents` are its possible agents, ordered so that those of a group are side by side (see
    envs.gym.agent_groups). Where spaces differ between groups, the columns observation and action have a member for
    each group, and the spaces are Dicts of these.
    first_env, of: count copies. The rest is as in InlineEnv.
    Raises TypeError for spaces that are not supported, and for environments in which agents take turns.
    """

    agent_groups: AgentGroups
    envs: list[MultiAgentEnv]  # type: ignore[assignment]

    def _describe(self, env: MultiAgentEnv) -> None:  # type: ignore[override]
        self.agent_groups = agent_groups_of(env, self.group_by)
        self._scale = getattr(env, "headrace_reward_scale", 1.0)
        self.columns()  # raises for spaces that are not supported
        take_agents(self, self.agent_groups)
        self.takes_turns = _takes_turns(env)
        self._casters = [each_action(action) for _, action in self.spaces.values()]
        self._sums = np.zeros((self.num_agents, self.num_copies))  # returns of episodes so far ...
        self._counts = np.zeros((self.num_agents, self.num_copies), np.int64)  # ... and their lengths
        copies = np.arange(self.first_column, self.first_column + self.num_copies)[:, None]
        self._columns = copies + np.arange(self.num_agents) * self.of  # [copy, agent]
        self._listed: list[set[str]] = [set() for _ in copies]  # ended agents that are still in `agents`

    def columns(self) -> dict[str, Column | Columns]:
        """The columns that the env writes, and the action; by group where spaces differ."""
        return self.agent_groups.columns(self.of)

    def movers(self) -> torch.Tensor:
        """Same as TurnBasedEnv.movers()."""
        names = [getattr(_original(env), "agent_selection", "") for env in self.envs]
        return torch.tensor([self.agents.index(name) if name in self.agents else 0 for name in names])

    def step_some(self, rollout: Rollout, t: int, which: torch.Tensor) -> None:
        """Same as TurnBasedEnv.step_some()."""
        if rollout is not self._rollout:
            self._bind(rollout)
        acting = self._acting(t)
        for index in which.nonzero().flatten().tolist():
            if not self._attempt(self._step_one, index, t, acting[index]):
                self._cut_off(index, t)

    def part(self, rollout: Rollout) -> Rollout:
        """All columns: those of one copy are not contiguous."""
        return rollout

    def _begin(self, rollout: Rollout, seed: int, episodes: Round | None) -> None:
        self._sums[:] = self._counts[:] = 0
        super()._begin(rollout, seed, episodes)

    def _acting(self, t: int) -> list[Sample]:
        """List of the agents that act and all actions, for each copy; None if no row of its agents is valid."""
        if self._reset_all:
            self._valid[t, self._columns] = self._reset_all = False
        actions = [cast(column[t]) for cast, column in zip(self._casters, self._action, strict=True)]
        return [(valid, actions) if any(valid) else None for valid in self._valid[t, self._columns].tolist()]

    def _step_one(self, index: int, t: int, action: tuple[list[bool], list[np.ndarray]]) -> None:
        valid, actions = action
        actions_by_agent = {
            place.agent: actions[place.group][place.offset + index]
            for place, acts in zip(self._places, valid, strict=True)
            if acts
        }
        outcome = self.envs[index].step(actions_by_agent)
        if not (isinstance(outcome, tuple) and len(outcome) == 5 and all(isinstance(x, Mapping) for x in outcome)):
            raise TypeError(f"step() gave {shown(outcome)}: it must give five dicts by agent: {', '.join(OUTCOME)}")
        here, seen = set(self.envs[index].agents), outcome[0]
        for number, (place, acts) in enumerate(zip(self._places, valid, strict=True)):
            if acts:
                self._took_part(number, index, t, outcome, place.agent in here)
            else:
                self._end_episode(number, index, t)
                joins = self._joins(index, place.agent, here)
                self._valid[t + 1, place.first + index] = joins
                self._see(place, index, t + 1, seen, must=joins)
        self._look(index, outcome[4], ended=not here)
        self._lengths[index] += 1

    def _joins(self, index: int, agent: str, here: set[str]) -> bool:
        """Tell whether an agent that did not act acts in the next step: it is new, or has left and returned."""
        listed = self._listed[index]
        if agent not in here:
            listed.discard(agent)
        elif agent in listed:
            tell_unread(self.name, [STILL_LISTED])
        return agent in here and agent not in listed

    def _took_part(self, number: int, index: int, t: int, outcome: tuple[Mapping, ...], stays: bool) -> None:
        """Write an agent's outcome of a step. An agent that has left without a flag is truncated."""
        place = self._places[number]
        seen, rewards, terminations, truncations, _ = outcome
        agent, column = place.agent, place.first + index
        reward = as_number(rewards.get(agent, 0.0), f"reward of {agent}")
        terminated = as_flag(terminations.get(agent, False), f"termination of {agent}")
        truncated = as_flag(truncations.get(agent, False), f"truncation of {agent}") or not (stays or terminated)
        ended = terminated or truncated
        self._reward[t, column] = reward
        self._terminated[t, column], self._truncated[t, column] = terminated, truncated
        self._valid[t + 1, column] = not ended
        self._see(place, index, t + 1, seen, must=not ended)
        self._sums[number, index] += reward
        self._counts[number, index] += 1
        if ended and stays:
            self._listed[index].add(agent)

    def _reset_one(self, index: int, t: int) -> None:
        self._begin_next(index, t + 1)
        for number in range(self.num_agents):
            self._end_episode(number, index, t)
        self._lengths[index] = 0
        self._episodes[index] += 1

    def _begin_one(self, index: int, row: int) -> None:
        """Write the observations of a new episode. Agents may join later."""
        seen, here = self._first_observation(index), set(self.envs[index].agents)
        if not here & set(self.agents):
            raise ValueError(f"after reset() there is no agent: agents is {self.envs[index].agents!r}")
        self._listed[index] = set()
        for place in self._places:
            self._valid[row, place.first + index] = place.agent in here
            self._see(place, index, row, seen, must=place.agent in here)

    def _look(self, index: int, info: Any, ended: bool = False, truncated: bool = False) -> None:
        if self._looked or index or not isinstance(info, Mapping):
            return
        self._looked = ended
        for group, (observation, action) in self.spaces.items():
            for own in filter(None, map(info.get, self.groups[group])):
                tell_unread(self.name, unread_mask(own, observation, action, IN_OBSERVATIONS))

    def _rest(self, index: int, row: int) -> None:
        for place in self._places:
            self._valid[row, place.first + index] = False
            self._see(place, index, row, {}, must=False)

    def _end_episode(self, number: int, index: int, t: int) -> None:
        """Write a masked row: the statistics of an agent's finished episode, or 0 if they were reported before."""
        column = self._places[number].first + index
        self._reward[t, column] = 0.0
        self._terminated[t, column] = self._truncated[t, column] = False
        self._episode_return[t, column] = self._sums[number, index] / self._scale
        self._episode_length[t, column] = self._counts[number, index]
        self._sums[number, index] = self._counts[number, index] = 0

    def _cut_off(self, index: int, t: int) -> None:
        for number, place in enumerate(self._places):
            column = place.first + index
            if self._valid[t, column]:
                self._reward[t, column] = 0.0
                self._terminated[t, column], self._truncated[t, column] = False, True
            else:
                self._end_episode(number, index, t)
            self._valid[t + 1, column] = False
            self._see(place, index, t + 1, {}, must=False)
        self._sums[:, index] = self._counts[:, index] = self._lengths[index] = 0

    def _see(self, place: _Place, index: int, row: int, seen: Mapping[str, Sample], must: bool) -> None:
        """Write an agent's observation, or repeat its last one if it has none."""
        column = place.offset + index
        if place.agent in seen:
            try:
                put(place.observation, row, column, seen[place.agent])
            except (TypeError, ValueError, KeyError, IndexError) as error:
                space = list(self.spaces.values())[place.group][0]
                raise ValueError(
                    f"the observation {shown(seen[place.agent])} of {place.agent} does not fit its observation_space "
                    f"{shown(space)}: {error}"
                ) from error
        elif must:
            raise ValueError(f"{place.agent} is among the agents, and has no observation: there are {list(seen)}")
        else:
            for _, values in place.observation:
                values[row, column] = values[max(row - 1, 0), column]

    def _bind_spaces(self, rollout: Rollout) -> None:
        self._places: list[_Place] = []
        self._action = []
        for number, (group, agents) in enumerate(self.groups.items()):
            observation = getattr(rollout.observation, group) if self.nested else rollout.observation
            action = getattr(rollout.action, group) if self.nested else rollout.action
            self._action.append(action.numpy())
            found = views(self.spaces[group][0], observation)
            for place, agent in enumerate(agents):
                first = len(self._places) * self.of + self.first_column
                offset = place * self.of + self.first_column if self.nested else first
                self._places.append(_Place(agent, found, number, offset, first))
