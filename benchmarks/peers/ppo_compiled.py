"""PPO in plain torch as in ppo_cleanrl.py, with acting, advantages and loss compiled by torch.compile, as LeanRL does.

LeanRL's CUDA graphs have no counterpart on a CPU."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers import After, Work, ppo_cleanrl


def train(work: Work, seed: int, every: int, after: After) -> dict[str, Any]:
    """See peers."""
    return ppo_cleanrl.train(work, seed, every, after, compiled=torch.compile)
