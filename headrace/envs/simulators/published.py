"""Translate PPO's settings that libraries of simulators publish to Headrace's names.

Two forms are read: rsl_rl's, which mjlab and Isaac Lab use, and those of Brax's PPO, which Playground uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.core.types import Settings

NO_CLIPPING = 1e6  # a max_grad_norm that no gradient reaches
# settings of rsl_rl that change nothing of a training here, or that the environment has
_OF_RSL_RL = {"learning_rate", "schedule", "desired_kl", "gamma", "lam", "entropy_coef", "clip_param", "class_name"}
_OF_RSL_RL |= {"value_loss_coef", "use_clipped_value_loss", "max_grad_norm", "num_learning_epochs", "num_mini_batches"}
_SMALL = {"share_cnn_encoders"}
_OF_BRAX = {"num_timesteps", "episode_length", "num_evals", "num_eval_envs", "max_grad_norm", "normalize_observations"}
_OF_BRAX |= {"unroll_length", "num_minibatches", "num_updates_per_batch", "discounting", "learning_rate", "num_envs"}
_OF_BRAX |= {"entropy_cost", "batch_size", "clipping_epsilon", "network_factory", "num_resets_per_eval", "gae_lambda"}
_NETWORK = {"policy_hidden_layer_sizes", "value_hidden_layer_sizes", "policy_obs_key", "value_obs_key"}


class Published(NamedTuple):
    """Settings of an algorithm, their publisher, and the publisher's settings without counterpart."""

    settings: Settings
    by: str


def of_rsl_rl(library: str, config: Mapping[str, Any], num_envs: int) -> Published:
    """A runner's config of rsl_rl (Schwarke et al. 2025, arXiv:2509.10771): of version 5, with `actor` and `critic`, or
    of older ones, with `policy`. num_envs: for which minibatches are divided."""
    rule, steps = config["algorithm"], config["num_steps_per_env"]
    actor, critic = config.get("actor"), config.get("critic")
    if actor is None:
        old = config["policy"]
        actor = {"hidden_dims": old["actor_hidden_dims"], "activation": old["activation"]}
        actor |= {"distribution_cfg": {"init_std": old["init_noise_std"], "class_name": ""}}
        actor |= {"obs_normalization": config.get("empirical_normalization", False)}
        critic = {"hidden_dims": old["critic_hidden_dims"]}
    assert critic is not None
    noise = actor.get("distribution_cfg") or {}
    adaptive = rule["schedule"] == "adaptive"
    settings = {
        "num_envs": num_envs,
        "num_steps": steps,
        "total_steps": config["max_iterations"] * steps * num_envs,
        "epochs": rule["num_learning_epochs"],
        "minibatch_size": max(1, num_envs * steps // rule["num_mini_batches"]),
        "learning_rate": rule["learning_rate"],
        "schedule": "adaptive" if adaptive else "constant",
        **({"desired_kl": rule["desired_kl"]} if adaptive else {}),
        "gamma": rule["gamma"],
        "gae_lambda": rule["lam"],
        "clip": rule["clip_param"],
        "value_clip": rule["clip_param"] if rule["use_clipped_value_loss"] else 0.0,
        "entropy_coef": rule["entropy_coef"],
        "value_coef": rule["value_loss_coef"],
        "max_grad_norm": rule["max_grad_norm"],
        "hidden": tuple(actor["hidden_dims"]),
        "critic_hidden": tuple(critic["hidden_dims"]),
        "activation": actor["activation"],
        "initial_std": noise.get("init_std", 1.0),
        "state_std": "Heteroscedastic" in noise.get("class_name", ""),
        "normalize_observation": bool(actor.get("obs_normalization")),
        "normalize_return": False,
        "ortho_init": False,
        "stagger": True,  # init_at_random_ep_len, with which these libraries train
    }
    lacking = [name for name, value in rule.items() if name not in _OF_RSL_RL | _SMALL and _counts(name, value)]
    lacking += [name for name in ("clip_actions",) if config.get(name) is not None]
    lacking += [name for name in ("rnn_type", "cnn_cfg") if actor.get(name) is not None]
    return Published(settings, _by(f"{library} for rsl_rl", lacking))


def _counts(name: str, value: Any) -> bool:
    """Tell whether a setting of rsl_rl has an effect."""
    return value not in (None, False, "adam" if name == "optimizer" else None)


def of_brax(library: str, config: Mapping[str, Any]) -> Published:
    """Read settings of brax.training.agents.ppo.train; missing ones have its defaults."""
    network, num_envs, length = config.get("network_factory", {}), config["num_envs"], config["unroll_length"]
    rows = config["batch_size"] * config["num_minibatches"] * length  # of an update, of all environments
    settings = {
        "num_envs": num_envs,
        "num_steps": max(1, rows // num_envs),
        "total_steps": config["num_timesteps"],
        "epochs": config["num_updates_per_batch"],
        "minibatch_size": config["batch_size"] * length,
        "learning_rate": config["learning_rate"],
        "gamma": config["discounting"],
        "gae_lambda": config.get("gae_lambda", 0.95),
        "clip": config.get("clipping_epsilon", 0.3),
        "entropy_coef": config["entropy_cost"],
        "value_coef": 0.25,  # Brax halves the squared error and its weight is 0.5
        "max_grad_norm": config.get("max_grad_norm") or NO_CLIPPING,
        "hidden": tuple(network.get("policy_hidden_layer_sizes", (32,) * 4)),
        "critic_hidden": tuple(network.get("value_hidden_layer_sizes", (256,) * 5)),
        "activation": "silu",
        "distribution": "squashed",
        "state_std": True,
        "normalize_observation": config["normalize_observations"],
    }
    lacking = [name for name, value in config.items() if name not in _OF_BRAX and value not in (None, False, 1, 1.0)]
    lacking += [name for name in network if name not in _NETWORK]
    lacking += ["unroll_length (advantages are those of a rollout)"] * (rows // num_envs > length)
    return Published(settings, _by(f"{library} for Brax's PPO", lacking))


def _by(name: str, lacking: list[str]) -> str:
    return f"{name} (without counterpart: {', '.join(lacking)})" if lacking else name
