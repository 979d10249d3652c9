"""One policy for each group of agents, combined into one policy for all agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.core.packages import of_headrace
from headrace.core.text import shown
from headrace.data.rollout import Group
from headrace.data.spaces import Dict, Space, alike
from headrace.policies.base import Policy, PolicyOutput, spaces_to_see
from headrace.policies.numpy_io import batch_size


class Slot(NamedTuple):
    """A group of agents: its range of agents, its policy, and the width of the policy's recurrent state."""

    name: str
    agents: slice
    policy: Any  # a Policy
    width: int

    def columns(self, total: int, num_agents: int) -> slice:
        """The group's columns among the `total` columns of all agents: agent * num_copies + copy."""
        copies = total // num_agents
        return slice(self.agents.start * copies, self.agents.stop * copies)


class GroupedPolicy(Policy):
    """Acts for all agents of all copies of the environment. Each group has its own policy.

    policies: group -> Policy; groups: group -> its agents, in the order of columns: agent * num_copies + copy.
    If spaces differ between groups (`nested`), observations and actions are Groups with one member per group; otherwise
    they are columns of all agents. Recurrent states are padded to the widest: [N, W].
    Each policy is trained by its own algorithm, which calls its log_prob_entropy_value() and inputs().
    Raises ValueError if the names of policies and groups differ.
    """

    def __init__(self, policies: Mapping[str, Policy], groups: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        if list(policies) != list(groups):
            raise ValueError(f"policies are for {', '.join(policies)}, and the groups are {', '.join(groups)}")
        self.groups = {name: tuple(agents) for name, agents in groups.items()}
        self.policies: Any = nn.ModuleList(policies.values())
        self.num_agents = sum(len(agents) for agents in groups.values())
        self.slots, first = [], 0
        for (name, agents), policy in zip(self.groups.items(), policies.values(), strict=True):
            rnn_state = policy.initial_state(1)
            width = 0 if rnn_state is None else rnn_state.shape[1]
            self.slots.append(Slot(name, slice(first, first + len(agents)), policy, width))
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
        for slot in self.slots:
            if name == slot.name or name in self.groups[slot.name]:
                return slot.policy
        raise KeyError(f"there is no group and no agent {name!r}: the groups are {self.groups}")

    def part(self, slot: Slot, value: Any, total: int) -> Any:
        """A group's part of observations or actions [N, ...] of all agents. total: N."""
        return getattr(value, slot.name) if self.nested else value[slot.columns(total, self.num_agents)]

    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        return self._act("act", observation, rnn_state, random)

    def act_without_exploration(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        return self._act("act_without_exploration", observation, rnn_state, random)

    def _act(self, how: str, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """Call this method of each group's policy."""
        total, outputs = self._total(observation), []
        for slot in self.slots:
            rows = slot.columns(total, self.num_agents)
            draws = None if random is None else random[rows, : slot.policy.num_draws]
            seen, before = self.part(slot, observation, total), self._rnn_state(slot, rnn_state, rows)
            outputs.append(getattr(slot.policy, how)(seen, before, draws))
        actions = {slot.name: output.action for slot, output in zip(self.slots, outputs, strict=True)}
        action: Any = Group(actions) if self.nested else torch.cat(list(actions.values()))
        log_prob, value = (_joined([output[k] for output in outputs]) for k in (1, 2))
        return PolicyOutput(action, log_prob, value, self._padded_states([output.rnn_state for output in outputs]))

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        total, values = self._total(observation), []
        for slot in self.slots:
            before = self._rnn_state(slot, rnn_state, slot.columns(total, self.num_agents))
            values.append(slot.policy.value(self.part(slot, observation, total), before))
        return torch.cat(values)

    def initial_state(self, num_envs: int) -> Any:
        copies = num_envs // self.num_agents
        return self._padded_states(
            [slot.policy.initial_state(copies * (slot.agents.stop - slot.agents.start)) for slot in self.slots]
        )

    def _rnn_state(self, slot: Slot, rnn_state: Any, rows: slice) -> Any:
        return rnn_state[rows, : slot.width] if rnn_state is not None and slot.width else None

    def _padded_states(self, states: Sequence[Any]) -> Any:
        """Recurrent states of the groups, [n, width], concatenated and padded with 0 to the widest."""
        if any(rnn_state is None for rnn_state in states):
            return None
        widest = max(rnn_state.shape[1] for rnn_state in states)
        return torch.cat([functional.pad(rnn_state, (0, widest - rnn_state.shape[1])) for rnn_state in states])

    def _total(self, observation: Any) -> int:
        """The number N of columns in observations of all agents."""
        if not self.nested:
            return batch_size(observation)
        return sum(batch_size(member) for _, member in observation)

    def predict(self, observation: Any, state: Any = None, *how: Any, **named: Any) -> tuple[Any, Any]:
        """Predict actions and recurrent states by agent, from observations by agent, each single or a batch. The other
        arguments are those of Policy.predict(). Raises TypeError for other observations."""
        if not isinstance(observation, Mapping):
            raise TypeError(
                f"the policy of several agents takes a dict of observations by agent, got {shown(observation, 60)}; "
                f"policy[agent] is that of one, such as policy[{next(iter(self.groups))!r}]"
            )
        if not isinstance(state, Mapping | None):
            raise TypeError(f"the policy of several agents takes a dict of states by agent, got {shown(state, 60)}")
        given = state or {}
        found = {
            agent: self[agent].predict(seen, given.get(agent), *how, **named) for agent, seen in observation.items()
        }
        return tuple({agent: pair[part] for agent, pair in found.items()} for part in (0, 1))  # type: ignore[return-value]

    def config(self) -> dict[str, Any]:
        kinds = [type(policy) for policy in self.policies]
        members = [
            {"class": f"{kind.__module__}:{kind.__qualname__}", "config": policy.config()}
            for kind, policy in zip(kinds, self.policies, strict=True)
        ]
        return {"groups": {name: list(agents) for name, agents in self.groups.items()}, "members": members}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make the policy that config() described. Raises ValueError for a policy class that is not in headrace."""
        policies = [_class(member["class"]).from_config(member["config"]) for member in config["members"]]
        return cls(dict(zip(config["groups"], policies, strict=True)), config["groups"])


def check_spaces(policy: Policy, spaces: Mapping[str, tuple[Space, Space]], name: str) -> None:
    """Raise ValueError if a policy was made for other observations or actions than an environment's.

    spaces: by group. name: the environment's."""
    slots = {slot.name: slot.policy for slot in policy.slots} if isinstance(policy, GroupedPolicy) else {"all": policy}
    if len(slots) > 1 and list(slots) != list(spaces):
        raise ValueError(f"the policies are for {', '.join(slots)}, and in {name} groups are {', '.join(spaces)}")
    for group, pair in spaces.items():
        made_for = slots[group] if len(slots) > 1 else next(iter(slots.values()))
        made_spaces = spaces_to_see(made_for, pair[0])
        for what, mine, its in zip(("observation_space", "action_space"), made_spaces, pair, strict=True):
            if not alike(mine, its):
                raise ValueError(f"the policy was made for the {what} {mine}, and that of {name} is {its}")


def _joined(parts: Sequence[Any]) -> Any:
    return None if any(part is None for part in parts) else torch.cat(list(parts))


def _class(name: str) -> Any:
    module, _, qualname = name.partition(":")
    # a checkpoint may name Headrace's policies, but must not import other modules
    if not of_headrace(module):
        raise ValueError(f"a group's policy is a {name}, not one of Headrace's own")
    return getattr(import_module(module), qualname)
