"""Worlds brought out of step, so that short rollouts show all phases of an episode at once."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.data.rollout import Rollout


class Stagger:
    """Cuts off the first episode of each world, after as many rollouts as are its share of an episode's length.

    Where episodes have a time limit, worlds that began together stay together, and a rollout much shorter than an
    episode is of one phase alone: what is learned swings with the phase (Bharthulwar, Tao & Su 2025, arXiv:2511.21011;
    Rudin et al. 2021, arXiv:2109.11978, begin with episodes of random length). A world is cut off between two rollouts:
    to those who learn this is one more rollout's end, from whose last value they bootstrap.

    max_steps: of an episode; None for no limit, with which nothing is cut off. agents: in each world, which are cut off
    together: environment agent * worlds + world is one's in a world. Keeps no state: what is cut off follows
    from the number of steps.
    """

    def __init__(self, rollout: Rollout, max_steps: int | None, agents: int = 1) -> None:
        self.rollout = rollout
        self.phases = (max_steps or 0) // rollout.num_steps
        worlds = torch.arange(rollout.num_envs // agents, device=rollout.device).repeat(agents)
        self._phase = worlds % max(self.phases, 1)
        self._cut: Tensor | None = None  # bool [N]: worlds that were cut off before this rollout

    def before(self, steps: int) -> None:
        """Mark worlds in the edge row as ended; the next rollout resets them. steps: of each world so far."""
        phase, edge = steps // self.rollout.num_steps, self.rollout.valid[-1]
        self._cut = edge & (self._phase == phase) if 0 < phase < self.phases else None
        if self._cut is not None:
            edge.logical_and_(~self._cut)

    def after(self) -> None:
        """Take what was cut off out of the rollout's account of episodes: their returns are not those of whole ones."""
        if self._cut is not None:
            self.rollout.episode_length[0].masked_fill_(self._cut, 0)
