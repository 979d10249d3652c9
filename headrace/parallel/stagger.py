"""First episodes of different lengths, so that a short rollout contains all phases of an episode."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.data.rollout import Rollout


class Stagger:
    """Ends the first episode of each environment early, after a number of rollouts that differs between environments.

    Where episodes have a time limit, environments that began together stay synchronised, and a rollout much shorter
    than an episode contains a single phase: updates oscillate with the phase (Bharthulwar, Tao & Su 2025,
    arXiv:2511.21011; Rudin et al. 2021, arXiv:2109.11978, begin with episodes of random length). An episode is ended
    between two rollouts. For learning this is the end of a rollout, which bootstraps from its last value.

    max_steps: time limit of an episode; None for no limit, and then nothing is ended. agents: number of agents in each
    copy of the environment; they end together (column agent * copies + copy). first_env: number of the first copy, for
    a part of the environments.
    It has no state: which episodes end follows from the number of steps.
    """

    def __init__(self, rollout: Rollout, max_steps: int | None, agents: int = 1, first_env: int = 0) -> None:
        self.rollout = rollout
        self.phases = (max_steps or 0) // rollout.num_steps
        copies = torch.arange(rollout.num_envs // agents, device=rollout.device).repeat(agents)
        self._phase = (first_env + copies) % max(self.phases, 1)
        self._ended: Tensor | None = None  # bool [N]: environments whose episode was ended before this rollout

    def before(self, steps: int) -> None:
        """Mask environments in the bootstrap row; the next rollout resets them. steps: of each environment so far."""
        phase, valid = steps // self.rollout.num_steps, self.rollout.valid[-1]
        self._ended = valid & (self._phase == phase) if 0 < phase < self.phases else None
        if self._ended is not None:
            valid.logical_and_(~self._ended)

    def after(self) -> None:
        """Remove the ended episodes from the rollout's statistics: their returns are not those of whole episodes."""
        if self._ended is not None:
            self.rollout.episode_length[0].masked_fill_(self._ended, 0)
