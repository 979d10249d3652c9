"""What a policy owes: decisions for a batch of environments, and their likelihood again when learning."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from headrace.rollout import Rollout


class Decision(NamedTuple):
    """What a policy decides for N environments."""

    action: Tensor  # [N, ...] in the action column's dtype
    log_prob: Tensor  # [N]
    value: Tensor  # [N], in units of return
    memory: Any  # what the policy wants back at the next step; None for one without memory


class Evaluation(NamedTuple):
    """How likely given actions are, with gradients."""

    log_prob: Tensor  # [B]
    entropy: Tensor  # [B]
    value: Tensor  # [B]


class Policy(nn.Module):
    """Base of all policies. Knows nothing of time, processes or environments.

    The randomness of a decision comes in as `noise`, uniform draws in [0, 1) of shape [N, num_draws]: so the same draws
    give the same actions on every device and inside a captured graph, and an exported policy needs no generator.
    """

    observation_space: Space
    action_space: Space
    num_draws: int  # uniform draws one decision uses

    def decide(self, observation: Any, memory: Any, noise: Tensor | None) -> Decision:
        """Decide for N environments: sampled with `noise` [N, num_draws], or the most likely action without."""
        raise NotImplementedError

    def evaluate(self, observation: Any, action: Tensor) -> Evaluation:
        """log_prob, entropy and value of B observations and actions, differentiable."""
        raise NotImplementedError

    def value(self, observation: Any, memory: Any = None) -> Tensor:
        """Value of N observations, [N], in units of return."""
        raise NotImplementedError

    def replay(self, rollout: Rollout) -> Evaluation:
        """evaluate() of a whole rollout, [T, N] each: log_prob equals what was collected."""
        raise NotImplementedError

    def update_statistics(self, rollout: Rollout) -> None:
        """Move the normalisers' statistics by the valid rows of a rollout. Called once per iteration, after learning."""

    def initial_memory(self, num_envs: int) -> Any:
        """Memory at the start of an episode; None for a policy without."""
        return None
