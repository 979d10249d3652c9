"""The Env protocol: N worlds on one device that write what happens straight into a rollout's columns."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from gymnasium.spaces import Space

from headrace.data.rollout import Column, Columns, Rollout
from headrace.data.spaces import action_column, env_columns


class Env(Protocol):
    """N worlds on one device.

    An env reads `rollout.action[t]` and writes `reward[t], terminated[t], truncated[t], observation[t + 1],
    valid[t + 1]`, and at dead rows `episode_return[t], episode_length[t]` (see headrace.data.rollout for endings).
    A step that terminates at the time limit is truncated too, as Gymnasium's TimeLimit has it.
    Actions of a Box outside its bounds are clipped to them; the column keeps what the policy said.
    """

    name: str  # as in make(name): "CartPole-v1"
    backend: str  # "cpu", "cuda", "torch", "inline"
    num_envs: int
    device: torch.device
    observation_space: Space  # of one world
    action_space: Space  # of one world
    max_steps: int | None  # steps until an episode is truncated; None for never, or where that is not known

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode in every world; write observation[0] and valid[0]. Same seed, same episodes."""

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every world from row t to row t + 1; where valid[t] is false, reset it instead."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers from which load_state_dict() goes on bit for bit. Empty where a world cannot be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(). The caller restores the rollout's bootstrap row."""

    def close(self) -> None:
        """Free what the worlds hold. Twice does no harm."""


def columns_of(env: Any) -> dict[str, Column | Columns]:
    """The columns of an env's rollouts, beside those that algorithms declare: what it writes, and the action."""
    if hasattr(env, "columns"):  # where they do not follow from its spaces, as with groups of agents
        declared: dict[str, Column | Columns] = env.columns()
        return declared
    return {**env_columns(env.observation_space), "action": action_column(env.action_space)}


def rollout_for(env: Any, num_steps: int, columns: Columns) -> Rollout:
    """A rollout for an env to fill: in memory of the env's choice where it has a say, as where workers share it."""
    if hasattr(env, "rollout"):
        rollout: Rollout = env.rollout(num_steps, columns)
        return rollout
    return Rollout(num_steps, env.num_envs, columns, env.device)
