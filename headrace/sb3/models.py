"""PPO, A2C, SAC, TD3 and DQN with the constructors of Stable-Baselines3 (2.9): arguments, their order, their defaults.

See docs/from_sb3.md for what differs. An argument without counterpart raises ValueError unless it is at its default.
"""

from __future__ import annotations

from typing import Any

import torch

from headrace.sb3.model import Model
from headrace.sb3.translation import Schedule


class PPO(Model):
    """Proximal policy optimisation: headrace.PPO."""

    algorithm_name = "ppo"

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: Any = None,
        rollout_buffer_kwargs: Any = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())


class A2C(Model):
    """Advantage actor-critic: headrace.A2C. The optimizer is Adam, also with use_rms_prop."""

    algorithm_name = "a2c"
    log_interval = 100

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 7e-4,
        n_steps: int = 5,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        rms_prop_eps: float = 1e-5,
        use_rms_prop: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: Any = None,
        rollout_buffer_kwargs: Any = None,
        normalize_advantage: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())


class SAC(Model):
    """Soft actor-critic: headrace.SAC."""

    algorithm_name = "sac"
    log_interval = 4

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 3e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: Any = None,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Any = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        ent_coef: str | float = "auto",
        target_update_interval: int = 1,
        target_entropy: str | float = "auto",
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        use_sde_at_warmup: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())


class TD3(Model):
    """DDPG with two critics and a delayed actor: headrace.TD3."""

    algorithm_name = "td3"
    log_interval = 4

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 1e-3,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: Any = None,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Any = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        policy_delay: int = 2,
        target_policy_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())


class EpsilonGreedy:
    """Additional members of models with Q-networks."""

    _rate_is_set = False
    policy: Any
    num_timesteps: int
    action_space: Any
    _generator: torch.Generator

    @property
    def exploration_rate(self) -> float:
        """The fraction of random actions of predict(deterministic=False): the training's present one, 0 before it, or
        the value that was set, until learn() begins."""
        return float(self.policy.exploration.mean()) if self.num_timesteps or self._rate_is_set else 0.0

    @exploration_rate.setter
    def exploration_rate(self, rate: float) -> None:
        self.policy.exploration.fill_(rate)
        self._rate_is_set = True

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Same as Model.predict(). Unless deterministic, actions are random with probability exploration_rate, drawn
        once for a batch."""
        action, after = super().predict(observation, state, episode_start, deterministic)  # type: ignore[misc]
        if deterministic or torch.rand(1, generator=self._generator).item() >= self.exploration_rate:
            return action, after
        space = self.action_space
        drawn = torch.randint(int(space.n), action.shape, generator=self._generator).numpy() + space.start
        return drawn.astype(action.dtype), after


class DQN(EpsilonGreedy, Model):
    """Deep Q-learning as in Stable-Baselines3: headrace.DQN without its later additions."""

    algorithm_name = "dqn"
    log_interval = 4

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 1e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Any = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int = 10_000,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float = 10,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())
