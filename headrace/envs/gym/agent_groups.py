"""Environments with several agents: groups of agents that share a policy, and the columns of a rollout for them.

With A agents in W copies of the environment, column agent * W + copy is that agent's in that copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.data.flat_action import flat_action
from headrace.data.rollout import Column, Columns
from headrace.data.spaces import Dict, Space, action_column, env_columns, observation_column, of_envs
from headrace.envs.base import Env, MultiAgentEnv

Grouping = Literal["spaces", "names", "agents"] | Mapping[str, Sequence[str]]
GROUPINGS = ("spaces", "names", "agents")
Spaces = tuple[Space, Space]  # of observations and of actions


@dataclass(frozen=True)
class AgentGroups:
    """The agents of an environment. groups: name -> agents, side by side in their order; spaces: group -> spaces of the
    observations and actions of its agents."""

    groups: Mapping[str, tuple[str, ...]]
    spaces: Mapping[str, Spaces]

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents, in the order of their columns."""
        return tuple(agent for agents in self.groups.values() for agent in agents)

    @property
    def nested(self) -> bool:
        """True if spaces differ between groups. Observation and action then have a column for each group."""
        first, *others = self.spaces.values()
        return any(other != first for other in others)

    @property
    def observation_space(self) -> Space:
        """Observation space of an agent; a Dict by group where the groups' spaces differ."""
        return self._space(0)

    @property
    def action_space(self) -> Space:
        """Action space of an agent; a Dict by group where the groups' spaces differ."""
        return self._space(1)

    def _space(self, which: int) -> Space:
        if self.nested:
            return Dict({group: pair[which] for group, pair in self.spaces.items()})
        return next(iter(self.spaces.values()))[which]

    def columns(self, num_copies: int) -> dict[str, Column | Columns]:
        """The columns that num_copies environments write, and the action. Raises TypeError for unsupported spaces."""
        for group, (observation, action) in self.spaces.items():
            observation_column(observation, f"observation of {group}")
            action_column(action, f"action of {group}")
        observation, action = next(iter(self.spaces.values()))
        declared: dict[str, Column | Columns] = {**env_columns(observation), "action": action_column(action)}
        if self.nested:
            for name, which, column in (("observation", 0, observation_column), ("action", 1, action_column)):
                declared[name] = {
                    group: of_envs(column(pair[which]), len(self.groups[group]) * num_copies)
                    for group, pair in self.spaces.items()
                }
        return declared


def take_agents(env: Env, agent_groups: AgentGroups) -> None:
    """Set an env's attributes to these agents, num_envs to their columns in all its copies."""
    num_copies = env.num_copies
    env.agents, env.groups, env.nested = agent_groups.agents, agent_groups.groups, agent_groups.nested
    env.observation_space, env.action_space = agent_groups.observation_space, agent_groups.action_space
    env.num_envs = num_copies * env.num_agents


def agent_groups_of(env: MultiAgentEnv, group_by: Grouping = "spaces") -> AgentGroups:
    """The agents of a pettingzoo.ParallelEnv.

    group_by: "spaces": agents of the same spaces share a policy; "names": those among them whose names differ in their
    number only, such as adversary_0 and adversary_1; "agents": none do; or the groups themselves, name -> agents.
    Raises TypeError for an environment without agents, or in which they take turns; ValueError for another group_by, or
    groups that miss agents, or have agents with different spaces.
    """
    if hasattr(env, "agent_iter"):
        parallel = getattr(env, "metadata", {}).get("is_parallelizable")
        advice = "give its parallel_env, in which" if parallel else "it cannot be stepped by Headrace, where"
        raise TypeError(f"in {env} agents take turns: {advice} all act at once")
    spaces = {
        agent: (env.observation_space(agent), flat_action(env.action_space(agent))) for agent in env.possible_agents
    }
    if not spaces:
        raise TypeError(f"{env} has no agents: its possible_agents is empty")
    groups = grouped(spaces, group_by)
    return AgentGroups(groups, {group: spaces[agents[0]] for group, agents in groups.items()})


def grouped(spaces: Mapping[str, Spaces], by: Grouping = "spaces") -> dict[str, tuple[str, ...]]:
    """Agents that share a policy, by the group's name. They have equal spaces.

    spaces: agent -> spaces. by: see agent_groups_of(). A group is named after the common part of its agents' names; a
    single group is "all".
    """
    if isinstance(by, Mapping):
        return _given(spaces, by)
    if by not in GROUPINGS:
        raise ValueError(f"group_by must be one of {', '.join(GROUPINGS)}, or groups by name, got {by!r}")
    groups: list[tuple[tuple[Spaces, str], list[str]]] = []
    for agent, pair in spaces.items():
        key = (pair, role(agent) if by == "names" else agent if by == "agents" else "")
        members = next((members for known, members in groups if known == key), None)
        if members is None:
            groups.append((key, [agent]))
        else:
            members.append(agent)
    if len(groups) == 1:
        return {"all": tuple(spaces)}
    named: dict[str, tuple[str, ...]] = {}
    for _, members in groups:
        name = members[0] if by == "agents" else "+".join(dict.fromkeys(role(agent) for agent in members))
        named[name if name not in named else f"{name}:{len(named)}"] = tuple(members)
    return named


def _given(spaces: Mapping[str, Spaces], groups: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """User-defined groups, checked."""
    named = [agent for agents in groups.values() for agent in agents]
    if sorted(named) != sorted(spaces):
        raise ValueError(f"group_by must name each of {', '.join(spaces)} once, got {dict(groups)}")
    for group, agents in groups.items():
        other = next((agent for agent in agents if spaces[agent] != spaces[agents[0]]), None)
        if other is not None:
            raise ValueError(
                f"the agents of a group share a policy, and in {group} {agents[0]} has the spaces {spaces[agents[0]]}, "
                f"{other} {spaces[other]}"
            )
    return {group: tuple(agents) for group, agents in groups.items() if agents}


def role(agent: str) -> str:
    """An agent's name without its number: "adversary_0" -> "adversary"."""
    return re.sub(r"[_-]?\d+$", "", agent) or agent
