"""Check games in which agents take turns: the next one to move must be an agent, and a step must read only its
action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.checks.finding import Finding
from headrace.checks.random_rollout import same
from headrace.data.rollout import Rollout

ADVICE = "`mover` of State, or agent_selection, names the agent whose action the next step reads: see docs/self-play.md"
Before = Callable[[Rollout, int], None]  # called with a rollout and t, before step t


def check(env: Any, record: Callable[[Before], list[Any]], actions: Tensor, others: Tensor) -> Finding:
    """Play the same moves of a TurnBasedEnv twice, the second time with different actions of the agents that do not
    move, and compare.

    record: plays steps from the same seed, and returns their columns. actions, others: [T, N, ...]."""
    number, copies = env.num_agents, torch.arange(env.num_copies)
    moved = set[int]()

    def look(rollout: Rollout, t: int) -> None:
        going_on = rollout.valid[t].view(number, -1).any(0)
        moved.update(env.movers().to(env.device)[going_on].tolist())

    def exchange(rollout: Rollout, t: int) -> None:
        moving = torch.zeros(env.num_envs, dtype=torch.bool)
        moving[env.movers().cpu() * env.num_copies + copies] = True
        rollout.action[t] = others[t]
        rollout.action[t, moving.to(env.device)] = actions[t, moving.to(env.device)]

    seen = record(look)
    if wrong := moved - {*range(number)}:
        return Finding("turns", "wrong", f"agent {min(wrong)} moves, and agents are 0 to {number - 1}", ADVICE)
    if not same(seen, record(exchange)):
        return Finding("turns", "wrong", "a step reads the action of an agent that does not move", ADVICE)
    if idle := sorted({*range(number)} - moved):
        names = ", ".join(env.agents[agent] for agent in idle)
        return Finding("turns", "note", f"{names} did not move in any step", ADVICE)
    return Finding("turns", "ok", "each agent moves, and a step reads the action of the one that moves")
