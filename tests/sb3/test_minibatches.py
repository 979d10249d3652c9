"""Minibatches of headrace.sb3.PPO have one size, which may be another than batch_size."""

from __future__ import annotations

import re
import warnings

import pytest

from headrace.sb3 import PPO, make_vec_env


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
