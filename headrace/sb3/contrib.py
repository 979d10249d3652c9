"""DDPG, and TQC, CrossQ, TRPO, RecurrentPPO and QRDQN of sb3-contrib (2.9), with their constructors.

See models.py for the others, and docs/from_sb3.md for what differs.
"""

from __future__ import annotations

from typing import Any

from headrace.sb3.model import Model
from headrace.sb3.models import EpsilonGreedy
from headrace.sb3.translation import Schedule


class DDPG(Model):
    """Deep deterministic policy gradient, the predecessor of TD3 with one critic: headrace.DDPG."""

    algorithm_name = "ddpg"
    log_interval = 4

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 0.001,
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
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())


class TQC(Model):
    """SAC with truncated quantile critics: headrace.TQC."""

    algorithm_name = "tqc"
    log_interval = 4

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 0.0003,
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
        top_quantiles_to_drop_per_net: int = 2,
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


class CrossQ(Model):
    """SAC with batch renormalisation in place of target networks: headrace.CrossQ."""

    algorithm_name = "crossq"
    log_interval = 4

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 0.001,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: Any = None,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Any = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        ent_coef: str | float = "auto",
        target_entropy: str | float = "auto",
        policy_delay: int = 3,
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


class TRPO(Model):
    """Trust region policy optimisation: headrace.TRPO."""

    algorithm_name = "trpo"

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 0.001,
        n_steps: int = 2048,
        batch_size: int = 128,
        gamma: float = 0.99,
        cg_max_steps: int = 15,
        cg_damping: float = 0.1,
        line_search_shrinking_factor: float = 0.8,
        line_search_max_iter: int = 10,
        n_critic_updates: int = 10,
        gae_lambda: float = 0.95,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: Any = None,
        rollout_buffer_kwargs: Any = None,
        normalize_advantage: bool = True,
        target_kl: float = 0.01,
        sub_sampling_factor: int = 1,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())


class RecurrentPPO(Model):
    """PPO with an LSTM: headrace.PPO. The hidden layers come before the LSTM, not after it."""

    algorithm_name = "recurrent_ppo"

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 0.0003,
        n_steps: int = 128,
        batch_size: int = 128,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | None = None,
        normalize_advantage: bool = True,
        ent_coef: str | float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
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

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Predict as other models do. Raises TypeError for a tuple of states, the form of sb3-contrib."""
        if isinstance(state, tuple):
            raise TypeError(
                f"state is a tuple of {len(state)}, as in sb3-contrib, and here it is one array [N, "
                f"{self.policy.state_width}]: give back the state that predict() returned, or None for a new episode"
            )
        return super().predict(observation, state, episode_start, deterministic)


class QRDQN(EpsilonGreedy, Model):
    """DQN that learns quantiles of the return: headrace.QRDQN."""

    algorithm_name = "qrdqn"
    log_interval = 4

    def __init__(
        self,
        policy: str | type,
        env: Any,
        learning_rate: float | Schedule = 5e-05,
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
        exploration_fraction: float = 0.005,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.01,
        max_grad_norm: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(policy, env, locals())
