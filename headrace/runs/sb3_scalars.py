"""TensorBoard scalars of Stable-Baselines3 that no algorithm here has among its metrics."""

from __future__ import annotations

from headrace.algorithms.base import Algorithm
from headrace.policies.heads import GaussianHead


def sb3_scalars(algorithm: Algorithm) -> dict[str, float]:
    """Compute train/clip_range of PPO and similar algorithms, and train/clip_range_vf where they clip values.

    Also train/std, the mean standard deviation of Gaussian actions in units of half their range; and train/n_updates,
    the epochs so far, of algorithms without a replay buffer.
    """
    config, head = algorithm.config, getattr(algorithm.policy, "head", None)
    found: dict[str, float] = {}
    if hasattr(config, "clip"):
        found["train/clip_range"] = float(config.clip)
    if getattr(config, "value_clip", 0.0):
        found["train/clip_range_vf"] = float(config.value_clip)
    if isinstance(head, GaussianHead):
        found["train/std"] = float(head.log_std.detach().exp().mean())
    if not hasattr(algorithm, "replay"):
        found["train/n_updates"] = float(algorithm.iteration * getattr(config, "epochs", 1))
    return found
