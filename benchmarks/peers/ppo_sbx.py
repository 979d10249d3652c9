"""SBX's PPO: Stable-Baselines3's interface on JAX."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen
from sbx import PPO

from benchmarks.peers import After, Work, facts
from benchmarks.peers.ppo_sb3 import done, learn


def train(work: Work, seed: int, every: int, after: After) -> dict[str, Any]:
    """See peers."""
    model = learn(PPO, work, seed, after, activation_fn=linen.tanh)
    networks = (model.policy.actor_state.params, model.policy.vf_state.params)
    return facts(*done(model), sum(leaf.size for leaf in jax.tree_util.tree_leaves(networks)))
