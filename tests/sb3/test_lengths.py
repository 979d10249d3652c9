"""The length of learn(): as many rollouts as Stable-Baselines3 collects, although some rows of them only reset."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.sb3 import A2C, DQN, PPO, make_vec_env


class Short(gymnasium.Env):
    """Episodes of three steps, so that every fourth row of a rollout resets."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.number += 1
        return np.zeros(2, np.float32), 1.0, self.number == 3, False, {}


def short(n_envs: int = 1, **arguments: Any) -> PPO:
    own = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"} | arguments
    return PPO("MlpPolicy", make_vec_env(Short, n_envs), **own)


class CheckpointCallback:
    """Stable-Baselines3's by its name, which keeps the names of its files."""

    n_calls = num_timesteps = 0

    def __init__(self, save_freq: int) -> None:
        self.save_freq, self.files = save_freq, []

    def init_callback(self, model: Any) -> None: ...
    def on_training_start(self, locals_: Any, globals_: Any) -> None: ...
    def on_rollout_start(self) -> None: ...
    def on_rollout_end(self) -> None: ...
    def on_training_end(self) -> None: ...
    def on_step(self) -> bool: ...

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            self.files.append((self.n_calls, f"rl_model_{self.num_timesteps}_steps"))
        return True


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(("asked", "rollouts"), [(16, 1), (48, 3), (49, 4), (1, 1), (0, 0)])
def test_k_rollouts_of_steps_take_k_rollouts(n_envs, asked, rollouts):
    model = short(n_envs)
    for number in (1, 2):  # resets of the call before count no more
        model.learn(asked * n_envs)
        assert model.algorithm.iteration == number * rollouts
        assert model.num_timesteps == 12 * n_envs * rollouts  # a fourth of the rows resets
    model.learn(32 * n_envs, reset_num_timesteps=False)
    assert model.algorithm.iteration == 2 * rollouts + 2 and model.num_timesteps == 12 * n_envs * (rollouts + 2)


def test_a_rollout_of_pendulum():
    model = PPO("MlpPolicy", "Pendulum-v1", seed=0, n_epochs=1, device="cpu").learn(2048)
    assert model.algorithm.iteration == 1 and model.num_timesteps == 2038


def test_schedules_and_exploration_go_to_their_end():
    seen: list[float] = []
    model = short(learning_rate=lambda left: seen.append(left) or 1e-3)
    seen.clear()
    model.learn(64)
    assert seen == [1.0, 0.75, 0.5, 0.25] and model._current_progress_remaining == 0.0
    seen.clear()
    model.learn(16, reset_num_timesteps=False)  # from 48 steps on, to 64
    assert seen == [0.25] and model._current_progress_remaining == 0.0
    explores = DQN("MlpPolicy", Short(), exploration_fraction=0.9, exploration_final_eps=0.1, train_freq=1, seed=0)
    explores.learn(100)
    assert explores.exploration_rate == pytest.approx(0.1) and explores.num_timesteps == 100  # steps, without resets
    assert explores.algorithm.iteration > 100


def test_a_checkpoint_is_due_at_the_last_row():
    saves = CheckpointCallback(16)
    short().learn(32, callback=saves)
    assert saves.files == [(16, "rl_model_12_steps"), (32, "rl_model_24_steps")]


def test_a_length_in_text_is_refused():
    with pytest.raises(TypeError, match="total_timesteps must be a number of steps, got the text '1000'"):
        A2C("MlpPolicy", Short(), seed=0).learn("1000")
