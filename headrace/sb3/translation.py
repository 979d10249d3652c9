"""Translate Stable-Baselines3's constructor arguments to settings of Headrace."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, Space
from torch import nn

from headrace.algorithms.base import algorithm_classes
from headrace.core.setting_types import SB3_NAMES
from headrace.core.text import did_you_mean, shown
from headrace.core.types import Json
from headrace.data.flat_dict import FlatDict
from headrace.data.minibatches import count
from headrace.data.spaces import is_image
from headrace.kernels.nn.activation_table import name_of
from headrace.sb3.parameters import of_sums, optimizer_of
from headrace.training.config import TrainConfig, default_of

Schedule = Callable[[float], float]  # of the remaining fraction of the training, 1 .. 0

SAME = {"gamma", "gae_lambda", "max_grad_norm", "normalize_advantage", "buffer_size", "learning_starts", "tau"}
SAME |= {"use_sde", "sde_sample_freq", "use_sde_at_warmup"}
SAME |= {"n_steps", "policy_delay", "exploration_fraction", "target_noise_clip"}  # of algorithms with a replay buffer
WITHOUT_COUNTERPART = {  # argument -> the reason, or what to use instead
    "rollout_buffer_class": "the rollout is Headrace's own",
    "rollout_buffer_kwargs": "the rollout is Headrace's own",
    "optimize_memory_usage": "the replay buffer stores each observation once already",
    "rms_prop_eps": "the optimizer is Adam",
    "sub_sampling_factor": "the Fisher matrix is that of all rows of a rollout",
    "_init_setup_model": "the model is always set up",
}
NETWORKS = {  # algorithm -> sizes and activation of MlpPolicy's hidden layers
    "ppo": ((64, 64), "tanh"),
    "a2c": ((64, 64), "tanh"),
    "sac": ((256, 256), "relu"),
    "td3": ((400, 300), "relu"),
    "ddpg": ((400, 300), "relu"),
    "tqc": ((256, 256), "relu"),
    "crossq": ((256, 256), "relu"),
    "trpo": ((64, 64), "tanh"),
    "recurrent_ppo": ((64, 64), "tanh"),
    "dqn": ((64, 64), "relu"),
    "qrdqn": ((64, 64), "relu"),
}
CRITIC_HIDDEN = {"tqc": (256, 256), "crossq": (1024, 1024)}  # of critics, where Headrace's defaults differ
POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
POLICY_CLASSES = {"ActorCriticPolicy", "SACPolicy", "TD3Policy", "DQNPolicy"}  # classes with the alias MlpPolicy
POLICY_CLASSES |= {"TQCPolicy", "CrossQPolicy", "QRDQNPolicy", "RecurrentActorCriticPolicy"}
ON_POLICY = ("ppo", "a2c", "trpo", "recurrent_ppo")
DISCRETE, DETERMINISTIC = ("dqn", "qrdqn"), ("td3", "ddpg")
OF_CONTRIB = {  # arguments of sb3-contrib's models -> settings
    **{"cg_max_steps": "cg_steps", "cg_damping": "damping", "line_search_shrinking_factor": "backtrack_coef"},
    **{"line_search_max_iter": "backtracks", "n_critic_updates": "critic_epochs"},
    "top_quantiles_to_drop_per_net": "dropped_quantiles",
}
HARMLESS = {  # values of policy_kwargs without effect
    **{"full_std": True, "squash_output": False, "clip_mean": 2.0, "n_lstm_layers": 1},
    **{"batch_norm": True, "batch_norm_momentum": 0.01, "batch_norm_eps": 0.001, "lstm_kwargs": None},
    **{"share_features_extractor": True, "features_extractor_kwargs": None},
}
KNOWN = {"net_arch", "activation_fn", "ortho_init", "log_std_init", "use_expln", "optimizer_class", "optimizer_kwargs"}
KNOWN |= {"n_critics", "n_quantiles", "renorm_warmup_steps", "lstm_hidden_size", "shared_lstm", "enable_critic_lstm"}
KNOWN |= {"features_extractor_class", "normalize_images"}  # names of policy_kwargs, for what was mistyped
CRITICS = {"sac": 2, "td3": 2, "ddpg": 1, "crossq": 2}  # number of critics, which n_critics must not change


class ArgumentError(ValueError, TypeError, AssertionError):
    """An argument or environments that a model does not support. Stable-Baselines3 raises AssertionError for many."""


class Translation(NamedTuple):
    """Settings of a model."""

    config: Any  # of the algorithm's dataclass
    learning_rate: Schedule | None  # None if it is constant
    clip: Schedule | None  # likewise, of PPO's clipping
    optimizer: Json  # attributes of Adam that differ from Headrace's


def translate(
    algorithm: str,
    policy: Any,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    spaces: tuple[Space, Space],
    num_envs: int,
) -> Translation:
    """Translate arguments to settings with the same meaning. given: arguments of the constructor. defaults:
    Stable-Baselines3's. spaces: observation and action space.

    Raises ValueError, TypeError for an argument without counterpart that is not at its default.
    """
    refuse(given, defaults)
    settings: Json = {"normalize_observation": False, **_policy(algorithm, policy, given, spaces)}
    for name in SAME & given.keys():
        settings[name] = given[name]
    settings |= {setting: given[name] for name, setting in {**SB3_NAMES, **OF_CONTRIB}.items() if name in given}
    rate, settings["learning_rate"] = _schedule("learning_rate", given["learning_rate"])
    clip = None
    if algorithm in ON_POLICY:
        settings |= {"num_steps": given["n_steps"], "normalize_return": False}
        settings.pop("n_steps")
        settings["minibatch_size"] = min(given.get("batch_size", 0), given["n_steps"] * num_envs)
        clip = _ppo(given, settings, num_envs) if "clip_range" in given else None
        settings |= {"max_kl": given["target_kl"], "max_grad_norm": math.inf} if algorithm == "trpo" else {}
        settings |= _sequences(given) if algorithm == "recurrent_ppo" else {}
        if algorithm == "a2c":
            del settings["minibatch_size"]
    else:
        _off_policy(algorithm, given, settings, num_envs)
    try:
        config = algorithm_classes(trained_as(algorithm)).config(**settings)
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    return Translation(config, rate, clip, optimizer_of(algorithm, given["policy_kwargs"] or {}))


def class_name(algorithm: str) -> str:
    """The name of the class of a model."""
    return {"crossq": "CrossQ", "recurrent_ppo": "RecurrentPPO"}.get(algorithm, algorithm.upper())


def trained_as(algorithm: str) -> str:
    """The algorithm of Headrace that trains a model."""
    return "ppo" if algorithm == "recurrent_ppo" else algorithm


def _sequences(given: Mapping[str, Any]) -> Json:
    """The length of RecurrentPPO's sequences: that of a minibatch, or the longest divisor of n_steps below it."""
    steps = given["n_steps"]
    longest = min(given["batch_size"], steps)
    return {"sequence_length": next(n for n in range(longest, 0, -1) if steps % n == 0), "recurrent": "lstm"}


def refuse(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ValueError for an argument without counterpart that is not at its default."""
    for name, why in WITHOUT_COUNTERPART.items():
        if name in given and given[name] != defaults[name] and not (given[name] == {} and defaults[name] is None):
            raise ValueError(f"{name}={shown(given[name], 60)} has no counterpart: {why}; leave it out")
    if given.get("target_update_interval", 1) != 1 and "ent_coef" in given:
        raise ValueError(f"target_update_interval={given['target_update_interval']}: SAC updates at each gradient step")


def train_settings(**named: Any) -> Json:
    """Set all of TrainConfig to defaults, except the given ones: settings registered for an environment are only for
    Headrace's own train()."""
    return {field.name: default_of(field) for field in fields(TrainConfig)} | {"scale": False, **named}


def _schedule(name: str, value: Any) -> tuple[Schedule | None, float]:
    """A schedule, None if it is constant, and its value at the start."""
    if isinstance(value, int | float):
        return None, float(value)
    if not callable(value):
        raise TypeError(f"{name} must be a number, or a function of the remaining fraction 1 .. 0, got {value!r}")
    return value, float(value(1.0))


def _ppo(given: Mapping[str, Any], settings: Json, num_envs: int) -> Schedule | None:
    if given["normalize_advantage"] and given["n_steps"] * num_envs == 1:
        raise ArgumentError(
            "a rollout of one step has no variance: give n_steps=2 or more, or normalize_advantage=False"
        )
    clip, settings["clip"] = _schedule("clip_range", given["clip_range"])
    settings["target_kl"] = given["target_kl"] or 0.0
    if callable(given["clip_range_vf"]):
        raise ValueError("clip_range_vf is a function, and only a number has a counterpart: give its value")
    settings["value_clip"] = given["clip_range_vf"] or 0.0
    return clip


def warn_of_minibatches(given: Mapping[str, Any], num_envs: int) -> None:
    """Warn if minibatches have another size than batch_size, as Stable-Baselines3 warns about a truncated one."""
    rows, size = given["n_steps"] * num_envs, given.get("batch_size", 0)
    if "n_epochs" in given and rows % size:
        number = count(rows, size)
        warnings.warn(
            f"batch_size={size} does not divide the rollout of n_steps * n_envs = {rows} steps: minibatches have one "
            f"size here, {rows // number} ({number} in a rollout). Give a divisor of {rows}",
            stacklevel=4,
        )


def _off_policy(algorithm: str, given: Mapping[str, Any], settings: Json, num_envs: int) -> None:
    settings |= {"batch_size": given["batch_size"], "num_steps": _steps_of(given["train_freq"])}
    # the shortest ring that a row can be drawn from
    settings["buffer_size"] = max(given["buffer_size"], (given["n_steps"] + settings["num_steps"] + 1) * num_envs)
    settings |= {"gradient_steps": max(given["gradient_steps"], 0), "utd_ratio": 1.0}
    if given["gradient_steps"] == 0:
        raise ValueError("gradient_steps=0 would learn nothing: give 1 or more, or -1 for one in each step")
    settings |= _replay(given)
    if algorithm in DISCRETE:
        settings["target_interval"] = _target_interval(given, settings["num_steps"] * num_envs)
        if num_envs > given["target_update_interval"]:
            warnings.warn(
                f"The number of environments used is greater than target_update_interval ({num_envs} > "
                f"{given['target_update_interval']}): the target network is updated after each rollout",
                stacklevel=2,
            )
        settings |= {"double": False} if algorithm == "dqn" else {}
        settings |= {"schedule": "constant", "max_grad_norm": given["max_grad_norm"] or math.inf}
        settings |= of_sums(given, settings) if algorithm == "qrdqn" else {}
    if "ent_coef" in given:
        settings.pop("entropy_coef")
        settings |= _temperature(given["ent_coef"])
        target = given["target_entropy"]
        settings["target_entropy"] = None if target == "auto" else float(target)
    if algorithm in DETERMINISTIC:
        settings |= _noise(given["action_noise"])
    elif given.get("action_noise") is not None and _noise(given["action_noise"])["exploration"]:
        noise = f"action_noise={given['action_noise']!r}"
        raise ValueError(f"{noise} has no counterpart in {class_name(algorithm)}, which explores by itself")


def _target_interval(given: Mapping[str, Any], rows: int) -> int:
    """Gradient steps between updates of a target network. rows: of a rollout. Stable-Baselines3 counts environment
    steps and updates it while collecting, so never between the gradient steps after one rollout."""
    steps = max(given["gradient_steps"], 0) or rows
    return max(steps, round(given["target_update_interval"] * steps / rows))


def _replay(given: Mapping[str, Any]) -> Json:
    """Settings of hindsight for a HerReplayBuffer. Raises ValueError for other classes and arguments."""
    kind, kwargs = given["replay_buffer_class"], dict(given["replay_buffer_kwargs"] or {})
    name = getattr(kind, "__name__", str(kind))
    if kind is None and not kwargs:
        return {}
    if name != "HerReplayBuffer" and not (kind is None and "n_sampled_goal" in kwargs):  # a file has no classes
        text = shown(kind or kwargs, 60)
        raise ValueError(
            f"replay_buffer_class: {text} has no counterpart: the replay buffer is Headrace's own; leave it out"
        )
    number, strategy = kwargs.pop("n_sampled_goal", 4), kwargs.pop("goal_selection_strategy", "future")
    goals = str(getattr(strategy, "name", strategy)).lower()
    if kwargs.keys() - {"copy_info_dict", "online_sampling", "max_episode_length"}:
        raise ValueError(f"replay_buffer_kwargs has {', '.join(kwargs)}, without counterpart: leave it out")
    return {"hindsight": number, "hindsight_goals": goals}


def _steps_of(train_freq: Any) -> int:
    number, unit = train_freq if isinstance(train_freq, tuple | list) else (train_freq, "step")
    if unit != "step":
        raise ValueError(
            f"train_freq={train_freq!r}: learning comes after a number of steps, not of episodes; give one"
        )
    return int(number)


def _temperature(ent_coef: str | float) -> Json:
    """SAC's entropy coefficient: "auto", "auto_0.1" with the value at the start, or a number."""
    if isinstance(ent_coef, str):
        name, _, start = ent_coef.partition("_")
        if name != "auto":
            raise ValueError(f"ent_coef must be a number, 'auto' or 'auto_0.1', got {ent_coef!r}")
        return {"learn_temperature": True, "temperature": float(start or 1.0)}
    return {"learn_temperature": False, "temperature": float(ent_coef)}


def _noise(noise: Any) -> Json:
    """Settings of TD3's and DDPG's exploration from SB3's action noise (for actions in [-1, 1])."""
    if noise is None:
        return {"exploration": 0.0}
    mean, sigma = (np.atleast_1d(getattr(noise, name, math.nan)) for name in ("_mu", "_sigma"))
    kind = type(noise).__name__
    if kind not in ("NormalActionNoise", "OrnsteinUhlenbeckActionNoise") or mean.any() or (sigma != sigma[0]).any():
        raise ValueError(
            f"action_noise={noise!r} has no counterpart: use NormalActionNoise or "
            "OrnsteinUhlenbeckActionNoise of mean 0 and one standard deviation"
        )
    if kind == "NormalActionNoise":
        return {"exploration": float(sigma[0])}
    return ornstein_uhlenbeck(float(sigma[0]), float(noise._theta), float(noise._dt))


def ornstein_uhlenbeck(sigma: float, theta: float = 0.15, dt: float = 1e-2) -> Json:
    """Convert x' = (1 - theta dt) x + sigma sqrt(dt) normal, from 0, to a constant deviation and autocorrelation."""
    keeps = 1 - theta * dt
    return {"exploration": sigma * math.sqrt(dt / (1 - keeps**2)), "noise_autocorrelation": keeps}


def _policy(algorithm: str, policy: Any, given: Mapping[str, Any], spaces: tuple[Space, Space]) -> Json:
    """Settings of the networks from a policy's name and policy_kwargs."""
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", repr(policy))
    name = name.replace("LstmPolicy", "Policy") if algorithm == "recurrent_ppo" else name
    if name not in POLICIES and name not in POLICY_CLASSES:
        instead = "RecurrentPPO takes it" if "Lstm" in name else "for your own network use headrace.Trainer"
        raise ValueError(f"policy must be {', '.join(POLICIES)}, got {name!r}; {instead}")
    if isinstance(spaces[1], MultiBinary) and len(spaces[1].shape) > 1:
        raise ArgumentError(f"Multi-dimensional {spaces[1]} action space is not supported: flatten it by a wrapper")
    if isinstance(spaces[0], Dict) and name in ("MlpPolicy", "CnnPolicy"):
        raise ArgumentError(f"{name} is for one array, and observations are a Dict: use MultiInputPolicy")
    if name == "CnnPolicy" and not is_image(spaces[0]):
        raise ArgumentError(f"CnnPolicy is for images (uint8), and observations are {spaces[0]}: use MlpPolicy")
    if name == "MultiInputPolicy" and not isinstance(spaces[0], Dict | FlatDict):
        raise ArgumentError(f"MultiInputPolicy is for a Dict, and observations are {spaces[0]}: use MlpPolicy")
    hidden, activation = NETWORKS[algorithm]
    kwargs = dict(given["policy_kwargs"] or {})
    kwargs |= {"features_extractor_kwargs": kwargs.get("features_extractor_kwargs") or None}
    own = name != "MlpPolicy" and kwargs["features_extractor_kwargs"]
    if kwargs.pop("features_extractor_class", None) is not None or own:  # see extractors
        kwargs = {key: x for key, x in kwargs.items() if key not in ("features_extractor_kwargs", "normalize_images")}
    settings: Json = {"hidden": hidden, "activation": activation}
    settings |= {"critic_hidden": CRITIC_HIDDEN[algorithm]} if algorithm in CRITIC_HIDDEN else {}
    if name == "CnnPolicy":
        settings |= {"images": "nature"} | ({"hidden": ()} if algorithm in (*ON_POLICY, *DISCRETE) else {})
    if (arch := kwargs.pop("net_arch", None)) is not None:
        settings |= _hidden(algorithm, arch)
    if (function := kwargs.pop("activation_fn", None)) is not None:
        settings["activation"] = _activation(function)
    settings |= _deviation(algorithm, kwargs, given, spaces[1])
    if algorithm in ON_POLICY:
        settings["ortho_init"] = kwargs.pop("ortho_init", True)
    settings |= _of_class(algorithm, kwargs)
    for name in ("optimizer_class", "optimizer_kwargs"):  # see optimizer_of()
        kwargs.pop(name, None)
    harmless = {"normalize_images": True, "use_sde": given.get("use_sde", False), **HARMLESS}
    for key, value in kwargs.items():
        if key not in harmless or value != harmless[key]:
            known = {*harmless, *KNOWN}
            hint = "" if key in known else did_you_mean(key, known)
            text = f"{key}={shown(value, 60)}, which has no counterpart"
            raise ValueError(f"policy_kwargs has {text}: leave it out{hint}")
    return settings


def _of_class(algorithm: str, kwargs: Json) -> Json:
    """Settings from policy_kwargs that only some algorithms have. Removes them from kwargs."""
    if algorithm == "tqc":
        return {"critics": kwargs.pop("n_critics", 2), "quantiles": kwargs.pop("n_quantiles", 25)}
    if algorithm == "qrdqn":
        return {"quantiles": kwargs.pop("n_quantiles", 200)}
    found: Json = {"renorm_warm_up": kwargs.pop("renorm_warmup_steps", 100_000)} if algorithm == "crossq" else {}
    if algorithm == "recurrent_ppo":
        found = {"rnn_size": kwargs.pop("lstm_hidden_size", 256), "shared": kwargs.pop("shared_lstm", False)}
        own = kwargs.pop("enable_critic_lstm", True)
        if own == found["shared"]:
            raise ValueError(
                f"policy_kwargs has enable_critic_lstm={own}, shared_lstm={found['shared']}: the critic has an LSTM of "
                "its own, or with shared_lstm the actor's"
            )
    number = kwargs.pop("n_critics", CRITICS.get(algorithm))
    if number != CRITICS.get(algorithm):
        raise ValueError(f"policy_kwargs has n_critics={number}: {algorithm} has {CRITICS.get(algorithm, 'none')} here")
    return found


def _deviation(algorithm: str, kwargs: Json, given: Mapping[str, Any], space: Space) -> Json:
    """The initial deviation of Box actions, from log_std_init. Removes it from kwargs."""
    log_std, sde = kwargs.pop("log_std_init", None), given.get("use_sde")
    found: Json = {"use_expln": kwargs.pop("use_expln", False)} if "use_sde" in given else {}
    if algorithm in ON_POLICY and isinstance(space, Box):
        squash = kwargs.pop("squash_output", False)
        if squash and not sde:
            raise ArgumentError("squash_output=True is for use_sde=True: leave one out, or give the other")
        found["distribution"] = "squashed" if squash else "unit_gaussian"
        return found | {"initial_std": math.exp(log_std or 0.0)}
    if sde:
        return found | {"initial_std": math.exp(-3.0 if log_std is None else log_std)}
    if log_std is not None:
        print(f"log_std_init={log_std} is without effect, as in Stable-Baselines3: leave it out", file=sys.stderr)
    return found


def _hidden(algorithm: str, arch: Any) -> Json:
    """Sizes of the hidden layers of actor and critic."""
    if isinstance(arch, list) and len(arch) == 1 and isinstance(arch[0], dict):
        arch = arch[0]
        warnings.warn(f"net_arch=[{arch!r}] is the old form: give the dict without a list", stacklevel=2)
    critic = "vf" if algorithm in ON_POLICY else "qf"
    parts = arch if isinstance(arch, dict) else {"pi": arch, critic: arch}
    if parts.keys() - {"pi", critic} or (algorithm not in ON_POLICY and len(parts) < 2):
        raise ValueError(f"net_arch={arch!r}: {algorithm} takes a list of sizes, or a dict of them for pi and {critic}")
    sizes = {name: tuple(parts.get(name, ())) for name in ("pi", critic)}  # no layers if left out
    if not all(isinstance(size, int) for own in sizes.values() for size in own):
        raise ValueError(f"net_arch must be a list of sizes, or a dict of such lists, got {arch!r}")
    alike = sizes["pi"] == sizes[critic]
    if not alike and algorithm in (*DISCRETE, "recurrent_ppo"):
        raise ValueError(f"net_arch={arch!r}: {algorithm} has one list of sizes")
    return {"hidden": sizes["pi"]} | (
        {} if alike and algorithm not in CRITIC_HIDDEN else {"critic_hidden": sizes[critic]}
    )


def _activation(function: Any) -> str:
    name = name_of(function()) if isinstance(function, type) and issubclass(function, nn.Module) else None
    if name is None:
        raise ValueError(f"activation_fn={function!r} has no counterpart: use Tanh, ReLU, ELU, SiLU, GELU or LeakyReLU")
    return name
