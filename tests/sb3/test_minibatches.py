"""Minibatches of headrace.sb3.PPO have one size, which may be another than batch_size."""

from __future__ import annotations

import re
import warnings

import pytest

from headrace.sb3 import DQN, PPO, make_vec_env


@pytest.mark.parametrize(
    ("n_steps", "batch_size", "message"),
    [(20, 16, r"batch_size=16 .* 40 steps: .* 20 \(2 in a rollout\)"), (20, 64, r"40 \(1 in a"), (20, 10, None)],
)
def test_a_batch_size_that_does_not_fit_is_a_warning(n_steps: int, batch_size: int, message: str | None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = make_vec_env("CartPole-v1", n_envs=2)
        model = PPO("MlpPolicy", env, n_steps=n_steps, batch_size=batch_size)
    said = [str(one.message) for one in caught if "batch_size" in str(one.message)]
    assert bool(said) == bool(message) and (not message or re.search(message, said[0]))
    model.close()


@pytest.mark.parametrize(
    ("num_envs", "train_freq", "gradient_steps", "interval"),
    [(1, 256, 128, 10), (1, 16, 8, 600), (1, 4, -1, 250), (2, 4, -1, 1), (4, 1, 1, 10_000)],
)
def test_a_target_network_is_updated_as_often_as_by_stable_baselines3(num_envs, train_freq, gradient_steps, interval):
    """Stable-Baselines3 counts calls of step(), and updates the target while it collects, never between gradient
    steps."""
    gradients, updated = 0, set()
    for call in range(1, 40_001):
        if call % max(interval // num_envs, 1) == 0:
            updated.add(gradients)  # as often as wanted, with the network of so many gradient steps
        if call % train_freq == 0:
            gradients += gradient_steps if gradient_steps > 0 else train_freq * num_envs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = make_vec_env("CartPole-v1", n_envs=num_envs)
        own = {"train_freq": train_freq, "gradient_steps": gradient_steps, "target_update_interval": interval}
        model = DQN("MlpPolicy", env, buffer_size=5000, **own)
    assert model.algorithm.config.target_interval == pytest.approx(gradients / len(updated), rel=0.02)
    model.close()
