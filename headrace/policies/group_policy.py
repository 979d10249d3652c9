"""One policy for each group of agents, seen as one policy of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.data.rollout import Group
from headrace.data.spaces import Dict, Space
from headrace.policies.base import Decision, Policy
from headrace.policies.numpy_io import batch_size


class Seat(NamedTuple):
    """A group among the agents: whom it holds, its policy, and the width of that one's memory."""

    name: str
    agents: slice
    policy: Any  # a Policy
    width: int

    def columns(self, total: int, num_agents: int) -> slice:
        """Its columns among the `total` of all agents: agent * worlds + world."""
        worlds = total // num_agents
        return slice(self.agents.start * worlds, self.agents.stop * worlds)


class GroupedPolicy(Policy):
    """Decides for all agents of all worlds, each group by a policy of its own.

    policies: group -> Policy; groups: group -> its agents, in the order of columns: agent * worlds + world.
    Where spaces differ between groups (`nested`), observations and actions are Groups with a member for each; else they
    are columns of all agents. Memory, where there is any, lies side by side: [N, the widest].
    Each policy is learned by an algorithm of its own: evaluate(), inputs() and the like are asked of them.
    Raises ValueError where policies and groups are not of the same names.
    """

    def __init__(self, policies: Mapping[str, Policy], groups: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        if list(policies) != list(groups):
            raise ValueError(f"policies are for {', '.join(policies)}, and the groups are {', '.join(groups)}")
        self.groups = {name: tuple(agents) for name, agents in groups.items()}
        self.policies: Any = nn.ModuleList(policies.values())
        self.num_agents = sum(len(agents) for agents in groups.values())
        self.seats, first = [], 0
        for (name, agents), policy in zip(self.groups.items(), policies.values(), strict=True):
            memory = policy.initial_memory(1)
            width = 0 if memory is None else memory.shape[1]
            self.seats.append(Seat(name, slice(first, first + len(agents)), policy, width))
            first += len(agents)
        spaces = [(policy.observation_space, policy.action_space) for policy in policies.values()]
        self.nested = any(pair != spaces[0] for pair in spaces)
        self.observation_space, self.action_space = (self._space([pair[k] for pair in spaces]) for k in (0, 1))
        self.num_draws = max(policy.num_draws for policy in policies.values())
        self.sequence_length = max(policy.sequence_length for policy in policies.values())

    def _space(self, spaces: Sequence[Space]) -> Space:
        return Dict(dict(zip(self.groups, spaces, strict=True))) if self.nested else spaces[0]

    def __getitem__(self, name: str) -> Any:
        """The policy of a group, or of an agent. Raises KeyError for another name."""
        for seat in self.seats:
            if name == seat.name or name in self.groups[seat.name]:
                return seat.policy
        raise KeyError(f"there is no group and no agent {name!r}: the groups are {self.groups}")

    def part(self, seat: Seat, value: Any, total: int) -> Any:
        """A group's part of observations or actions [N, ...] of all agents. total: N."""
        return getattr(value, seat.name) if self.nested else value[seat.columns(total, self.num_agents)]

    def decide(self, observation: Any, memory: Any, noise: Tensor | None) -> Decision:
        total, decisions = self._total(observation), []
        for seat in self.seats:
            rows = seat.columns(total, self.num_agents)
            draws = None if noise is None else noise[rows, : seat.policy.num_draws]
            seen, remembered = self.part(seat, observation, total), self._memory(seat, memory, rows)
            decisions.append(seat.policy.decide(seen, remembered, draws))
        actions = {seat.name: decision.action for seat, decision in zip(self.seats, decisions, strict=True)}
        action: Any = Group(actions) if self.nested else torch.cat(list(actions.values()))
        log_prob, value = (_joined([decision[k] for decision in decisions]) for k in (1, 2))
        return Decision(action, log_prob, value, self._side_by_side([decision.memory for decision in decisions]))

    def value(self, observation: Any, memory: Any = None) -> Tensor:
        total, values = self._total(observation), []
        for seat in self.seats:
            remembered = self._memory(seat, memory, seat.columns(total, self.num_agents))
            values.append(seat.policy.value(self.part(seat, observation, total), remembered))
        return torch.cat(values)

    def initial_memory(self, num_envs: int) -> Any:
        worlds = num_envs // self.num_agents
        return self._side_by_side(
            [seat.policy.initial_memory(worlds * (seat.agents.stop - seat.agents.start)) for seat in self.seats]
        )

    def _memory(self, seat: Seat, memory: Any, rows: slice) -> Any:
        return memory[rows, : seat.width] if memory is not None and seat.width else None

    def _side_by_side(self, memories: Sequence[Any]) -> Any:
        """Memories of groups, [n, width], as one of all, filled up with 0 to the widest."""
        if any(memory is None for memory in memories):
            return None
        widest = max(memory.shape[1] for memory in memories)
        return torch.cat([functional.pad(memory, (0, widest - memory.shape[1])) for memory in memories])

    def _total(self, observation: Any) -> int:
        """N of observations of all agents."""
        if not self.nested:
            return batch_size(observation)
        return sum(batch_size(member) for _, member in observation)

    def act(self, observation: Any, deterministic: bool = True, generator: torch.Generator | None = None) -> Any:
        """Act for people: observations by agent -> actions by agent, of those who are there. Each one, or a batch."""
        return {agent: self[agent].act(seen, deterministic, generator) for agent, seen in observation.items()}

    def config(self) -> dict[str, Any]:
        kinds = [type(policy) for policy in self.policies]
        members = [
            {"class": f"{kind.__module__}:{kind.__qualname__}", "config": policy.config()}
            for kind, policy in zip(kinds, self.policies, strict=True)
        ]
        return {"groups": {name: list(agents) for name, agents in self.groups.items()}, "members": members}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The policy that config() described. Raises ValueError where a group's is not one of Headrace's own."""
        policies = [_class(member["class"]).from_config(member["config"]) for member in config["members"]]
        return cls(dict(zip(config["groups"], policies, strict=True)), config["groups"])


def _joined(parts: Sequence[Any]) -> Any:
    return None if any(part is None for part in parts) else torch.cat(list(parts))


def _class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    # a checkpoint is data: it may choose among Headrace's policies, but not have any module imported
    if module.partition(".")[0] != "headrace":
        raise ValueError(f"a group's policy is a {name}, not one of Headrace's own")
    return getattr(import_module(module), qualname)
