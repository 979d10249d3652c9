"""Convert the states of actors to another number of actors: an environment's state does not depend on its actor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from headrace.core.types import StateDict
from headrace.data.rollout import tree_map
from headrace.envs.parts import join_states, state_of_part
from headrace.parallel.actor import Part


def for_parts(state: StateDict, before: Sequence[Part], after: Sequence[Part]) -> StateDict:
    """Convert the state_dict() of synchronous or overlapped Actors from the division of environments `before` to the
    division `after`."""
    versions = {int(name.split(".")[1]): version for name, version in state["waiting"].items()}
    taken, states = state["actors"][0]["taken"], [actor["state"] for actor in state["actors"]]
    parts = [None] * len(after) if states[0] is None else [_part(_whole(states, before), part) for part in after]
    return {
        **state,
        "actors": [{"taken": taken, "state": part} for part in parts],
        "waiting": {f"{place}.{x}": version for place in range(len(after)) for x, version in versions.items()},
    }


def _whole(states: list[StateDict], parts: Sequence[Part]) -> StateDict:
    """The state of a collector of all environments, with columns as [agents, copies, ...]."""

    def columns(*found: Tensor) -> Tensor:
        return torch.cat([x.unflatten(0, (-1, part.size)) for x, part in zip(found, parts, strict=True)], 1)

    rows, memories = [state["bootstrap_row"] for state in states], [state["rnn_state"] for state in states]
    return {
        **states[0],
        "bootstrap_row": {name: tree_map(columns, *(row[name] for row in rows)) for name in rows[0]},
        "rnn_state": tree_map(columns, *memories),
        "env": join_states([state["env"] for state in states], [part.first for part in parts]),
    }


def _part(whole: StateDict, part: Part) -> StateDict:
    """The state of the collector of a part, taken from _whole()."""
    columns = partial(tree_map, lambda x: x[:, part.slice].flatten(0, 1))
    return {
        **whole,
        "bootstrap_row": {name: columns(row) for name, row in whole["bootstrap_row"].items()},
        "rnn_state": columns(whole["rnn_state"]),
        "env": state_of_part(whole["env"], part.slice),
    }
