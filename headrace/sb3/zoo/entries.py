"""Translate entries of rl_zoo3's YAML files of hyperparameters to settings of a training.

An entry has arguments of a model of Stable-Baselines3 or sb3-contrib, and settings of the environments. Keys without
counterpart are refused by name. See docs/from_sb3.md for the keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from gymnasium.spaces import Space

from headrace.core.terminal import tell
from headrace.core.text import did_you_mean, shown
from headrace.core.types import Json
from headrace.core.writing import check_file
from headrace.envs import make
from headrace.sb3 import contrib, models
from headrace.sb3.parameters import optimizer_of
from headrace.sb3.translation import ON_POLICY, ornstein_uhlenbeck, translate
from headrace.sb3.zoo.entry_wrappers import Wrapping, callbacks, wrapping_of
from headrace.sb3.zoo.literals import parse

MODELS: dict[str, Any] = {
    **{kind.algorithm_name: kind for kind in (models.PPO, models.A2C, models.SAC, models.TD3, models.DQN)},
    **{kind.algorithm_name: kind for kind in (contrib.DDPG, contrib.TQC, contrib.CrossQ, contrib.TRPO)},
    **{kind.algorithm_name: kind for kind in (contrib.RecurrentPPO, contrib.QRDQN)},
}
OF_ENVS = {"n_timesteps", "n_envs", "normalize", "frame_stack", "env_kwargs", "noise_type", "noise_std", "policy"}
OF_ENVS |= {"env_wrapper", "vec_env_wrapper", "callback", "monitor_kwargs"}
OLD_HER = {"n_sampled_goal", "goal_selection_strategy", "online_sampling", "max_episode_length", "model_class"}
IN_PYTHON = (
    "policy_kwargs",
    "replay_buffer_class",
    "replay_buffer_kwargs",
    "normalize",
    "env_kwargs",
    "monitor_kwargs",
)
SCHEDULED = ("learning_rate", "clip_range")
OF_ALL_MODELS = {
    "seed": "seed",
    "device": "device",
    "stats_window_size": "window",
}  # arguments -> settings of a training
NUMBER = re.compile(r"[-+]?\d+\.?\d*e[-+]?\d+", re.IGNORECASE)


def settings(file: str | Path, algorithm: str, env: Any) -> Json:
    """Settings from the entry of an environment. Raises ImportError without PyYAML, FileNotFoundError, TypeError for an
    environment without an id, ValueError for keys without counterpart."""
    if not isinstance(env, str):
        raise TypeError(f"zoo has an entry for each id of an environment, and env is {shown(env)}: give an id")
    entry = entry_of(read(file), env, file)
    where = f"{file}, {env}"
    kind, own = checked(entry, algorithm, where)
    wrapping = wrapping_of(own, env, where)
    with closing(make(env, 1, **wrapping.of_make())) as made:
        spaces = made.observation_space, made.action_space
    return translated(kind, own, wrapping, spaces, where)


def read(file: str | Path) -> Json:
    """The entries of a file, by their ids, read by PyYAML's safe loader."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError('zoo needs PyYAML, which is not installed: pip install "headrace[zoo]"') from error
    try:
        found = yaml.safe_load(check_file(Path(file)).read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {file} of hyperparameters") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise ValueError(f"{file} has no hyperparameters by the ids of environments, as rl_zoo3's files have")
    return found


def entry_of(entries: Mapping[str, Json], env: str, file: str | Path) -> Json:
    """The entry of an environment: its own, that of all Atari games, or the default. Raises ValueError without one."""
    atari = env.startswith("ALE/") or "NoFrameskip" in env
    names = (env, *(["atari"] if atari else []), "default")
    if found := next((name for name in names if name in entries), None):
        return dict(entries[found])
    raise ValueError(f"{file} has no hyperparameters of {env}{did_you_mean(env, entries)}; it has {', '.join(entries)}")


def checked(entry: Json, algorithm: str, where: str) -> tuple[str, Json]:
    """The model of an entry, and the entry with Python in strings parsed. Raises ValueError for keys that the model
    does not have."""
    recurrent = algorithm == "ppo" and str(entry.get("policy", "")).endswith("LstmPolicy")
    kind = "recurrent_ppo" if recurrent else algorithm
    if kind not in MODELS:
        raise ValueError(f"{where}: there is no model of {algorithm}, but of {', '.join(sorted(MODELS))}")
    if (of_file := entry.get("model_class", algorithm)) != algorithm:
        raise ValueError(f"{where}: model_class is {of_file}: train {of_file}")
    known = {*signature(MODELS[kind].__init__).parameters, *OF_ENVS, *(OLD_HER if "model_class" in entry else ())}
    for name in entry:
        if name not in known:
            near = did_you_mean(name, known)
            raise ValueError(f"{where}: {name} is no argument of {MODELS[kind].__name__}{near}; leave it out")
    return kind, {name: _value(name, x, where) if isinstance(x, str) else x for name, x in entry.items()}


def _value(name: str, text: str, where: str) -> Any:
    """Parse the value of a text: Python, and numbers such as 1e5, which PyYAML reads as text."""
    if name in IN_PYTHON:
        return parse(text, f"{where}: {name}")
    if not NUMBER.fullmatch(text):
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


def translated(kind: str, own: Json, wrapping: Wrapping, spaces: tuple[Space, Space], where: str) -> Json:
    """The settings of an entry. spaces: of observations and actions. Raises ValueError, naming the entry."""
    num_envs, policy = int(own.get("n_envs", 1)), own.get("policy", "MlpPolicy")
    if extractors := [name for name, x in (own.get("policy_kwargs") or {}).items() if x and "extractor" in name]:
        raise ValueError(f"{where}: policy_kwargs has {', '.join(extractors)}, which models of headrace.sb3 alone have")
    parameters = signature(MODELS[kind].__init__).parameters.items()
    defaults = {name: x.default for name, x in parameters if x.default is not Parameter.empty}
    given, schedules = _scheduled({name: own[name] for name in own.keys() & defaults.keys()}, where)
    try:
        config = translate(kind, policy, {**defaults, **given, **_her(own)}, defaults, spaces, num_envs).config
        found = {field.name: getattr(config, field.name) for field in fields(config)}
        found |= _noise(kind, own) | _normalized(kind, own) | callbacks(own) | _optimizer(kind, own)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error
    if "learning_rate" in schedules:
        found["schedule"] = "linear"
    if "clip_range" in schedules:
        found["schedules"] = {"clip": f"linear:{found['clip']}:{found['clip'] / 1000}"}  # a clip of 0 would mean none
    if "n_timesteps" in own:
        found["total_steps"] = int(own["n_timesteps"])
    found |= {setting: own[name] for name, setting in OF_ALL_MODELS.items() if own.get(name) is not None}
    return {**found, **wrapping.settings(), "num_envs": num_envs, "registered": False, "scale": False}


def _scheduled(given: Json, where: str) -> tuple[Json, set[str]]:
    """Arguments with the first values of their schedules, lin_0.001, and the names of these."""
    schedules = set()
    for name, value in given.items():
        if name == "train_freq" and isinstance(value, list):
            given[name] = tuple(value)
        if not isinstance(value, str) or name in ("ent_coef", "target_entropy", "device", "tensorboard_log"):
            continue
        shape, _, start = value.partition("_")
        if shape != "lin" or name not in SCHEDULED:
            raise ValueError(f"{where}: {name} is {value!r}: give a number{', or lin_0.001' * (name in SCHEDULED)}")
        given[name] = float(start)
        schedules.add(name)
    return given, schedules


def _her(own: Json) -> Json:
    """Hindsight of older files, in which algorithm `her` had a model_class."""
    if "model_class" not in own:
        return {}
    kwargs = {name: own[name] for name in ("n_sampled_goal", "goal_selection_strategy") if name in own}
    return {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": kwargs}


def _noise(kind: str, own: Json) -> Json:
    """Exploration by noise_type and noise_std."""
    if "noise_type" not in own:
        if "noise_std" in own:
            raise ValueError(
                f"noise_std={own['noise_std']!r} is without noise_type: give noise_type: normal, or leave it out"
            )
        return {}
    name, std = own["noise_type"], float(own.get("noise_std", 0.0))
    if kind not in ("td3", "ddpg"):
        raise ValueError(f"noise_type={name!r}: {kind} explores by itself; leave noise_type and noise_std out")
    if name == "normal":
        return {"exploration": std}
    if name == "ornstein-uhlenbeck":
        return ornstein_uhlenbeck(std)
    raise ValueError(f"noise_type={name!r} has no counterpart: normal, or ornstein-uhlenbeck")


def _optimizer(kind: str, own: Json) -> Json:
    """Settings of Adam from an entry. For A2C, whose optimizer is RMSprop there, a line says that it is Adam here."""
    found = optimizer_of(kind, own.get("policy_kwargs") or {})
    beta2 = {"adam_beta2": found.pop("beta2")} if "beta2" in found else {}
    others = {name: x for name, x in found.items() if (name, x) != ("beta1", 0.9)}
    if others:
        raise ValueError(f"policy_kwargs: of Adam's settings the second beta alone is one, and it has {others}")
    if kind == "a2c" and own.get("use_rms_prop", True):
        tell("the optimizer of A2C is Adam here, and RMSprop in Stable-Baselines3 (use_rms_prop)")
    return beta2


def _normalized(kind: str, own: Json) -> Json:
    """Normalisation by running statistics, which are part of the policy here."""
    asked = own.get("normalize", False)
    kwargs = {"norm_obs": bool(asked), "norm_reward": bool(asked), **(asked if isinstance(asked, dict) else {})}
    observation, reward = kwargs.pop("norm_obs"), kwargs.pop("norm_reward")
    kwargs.pop("gamma", None)
    if kwargs:
        raise ValueError(f"normalize has {', '.join(kwargs)}, without counterpart: norm_obs and norm_reward")
    if kind in ON_POLICY:
        return {"normalize_observation": observation, "normalize_return": reward}
    if reward:
        raise ValueError(
            f"normalize={asked!r} divides rewards by their running deviation, and rows of a replay buffer stay as they "
            "are: write normalize: {norm_obs: true, norm_reward: false}, and reward_scale=0.1 or so"
        )
    return {"normalize_observation": observation}
