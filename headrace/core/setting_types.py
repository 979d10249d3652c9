"""Values of settings as the types of their fields, and names that other libraries have for settings.

Imports no torch, so that a command line can be read and its help printed at once.
"""

from __future__ import annotations

import math
import numbers
import os
import types
import typing
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Literal

from headrace.core.text import did_you_mean

SB3_NAMES = {  # arguments of Stable-Baselines3's models -> settings
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "n_epochs": "epochs",
    "target_policy_noise": "target_noise",
    "exploration_initial_eps": "exploration_initial",
    "exploration_final_eps": "exploration_final",
}
LENGTHS = ("rollout_length", "rollout_fragment_length", "unroll_length", "horizon_length")
OTHER_NAMES = {  # names in other libraries, and words that people type -> settings that mean the same
    **SB3_NAMES,
    **dict.fromkeys(("total_timesteps", "timesteps", "num_timesteps", "max_timesteps"), "total_steps"),
    **dict.fromkeys(("n_envs", "nenvs", "n_env", "num_actors"), "num_envs"),
    **dict.fromkeys(("n_steps", "nsteps", "num_steps_per_env", *LENGTHS), "num_steps"),
    **dict.fromkeys(("clip_range", "clip_coef", "clip_eps", "clip_param", "e_clip"), "clip"),
    **dict.fromkeys(("net_arch", "hidden_sizes", "hidden_size", "hidden_dim", "hidden_layers"), "hidden"),
    **dict.fromkeys(("num_epochs", "update_epochs", "mini_epochs", "num_learning_epochs"), "epochs"),
    **dict.fromkeys(("tensorboard_log", "log_dir", "logdir", "save_dir", "output_dir", "save_path"), "log_folder"),
    **dict.fromkeys(("replay_size", "buffer_capacity", "memory_size"), "buffer_size"),
    **dict.fromkeys(("entropy_coeff", "ent_coeff"), "entropy_coef"),
    **dict.fromkeys(("value_loss_coef", "vf_loss_coeff", "vf_coeff", "critic_coef"), "value_coef"),
    **dict.fromkeys(("lam", "lambda", "lambda_", "gae_lam"), "gae_lambda"),
    **dict.fromkeys(("discount", "discount_factor"), "gamma"),
    **dict.fromkeys(("num_workers", "n_workers", "num_processes", "n_jobs", "num_env_runners"), "workers"),
    **dict.fromkeys(("grad_clip", "clip_grad", "max_grad"), "max_grad_norm"),
    **dict.fromkeys(("checkpoint_freq", "checkpoint_interval"), "save_freq"),
    "activation_fn": "activation",
    "alpha": "temperature",
    "batch_size": "minibatch_size",
    "clip_range_vf": "value_clip",
    "lr": "learning_rate",
    "normalize_input": "normalize_observation",
    "policy_freq": "policy_delay",
    "polyak": "tau",
    "verbose": "progress",
}
KINDS = (int, float, bool, str, tuple, dict)  # of Headrace's own settings
RECURRENT, DEVICE = "recurrent policies are made by {}", "the device is chosen by {}"
INSTEAD: dict[str, tuple[str, str, Any]] = {  # the same names -> what there is instead, and for {} a setting and value
    **dict.fromkeys(
        ("callback", "callbacks"), ("a loop of your own has the place for callbacks, see docs/own-loop.md", "", "")
    ),
    **dict.fromkeys(("lstm", "use_lstm", "rnn", "use_rnn"), (RECURRENT, "recurrent", "lstm")),
    **dict.fromkeys(("gru", "use_gru"), (RECURRENT, "recurrent", "gru")),
    **dict.fromkeys(("use_gpu", "gpu", "cuda", "num_gpus", "use_cuda"), (DEVICE, "device", "cuda")),
    **dict.fromkeys(("cpu", "use_cpu", "no_cuda", "no_gpu"), (DEVICE, "device", "cpu")),
    **dict.fromkeys(("wandb", "use_wandb"), ("rows are sent by {}", "track", "wandb")),
    "policy_kwargs": ("settings of the network have names of their own, such as {}", "hidden", (64, 64)),
    "render": ("a policy is shown by `headrace play RUN`, once it is trained", "", ""),
    "render_mode": ("it is an argument of the environment: {}", "env_kwargs", {"render_mode": "human"}),
}


def no_setting(name: str, known: Collection[str], flags: bool = False, owners: Sequence[str] = ()) -> str:
    """A message for a name that is no setting: Headrace's name for it, the algorithms that have it, or the known names
    closest to it.

    flags: as they are written on the command line. owners: names of these algorithms.
    """
    of_others = f"; it is one of {', '.join(owners)}" if owners else ""
    of_env = (
        f"; is it an argument of the environment? give env_kwargs={{{name!r}: ...}}" if "env_kwargs" in known else ""
    )
    known_as = name_here(name, known, flags) or of_others or did_you_mean(name, known) or of_env
    return f"there is no setting {_flag(name) if flags else repr(name)}{known_as}"


def name_here(name: str, known: Collection[str], flags: bool = False) -> str:
    """ "; Headrace's name is 'x'" for a setting's name in another library; empty where there is none in `known`."""
    if name in INSTEAD:
        text, setting, value = INSTEAD[name]
        return f"; {text.format(_words(setting, value) if flags else f'{setting}={value!r}')}"
    here = OTHER_NAMES.get(name, "")
    return f"; Headrace's name is {_flag(here) if flags else repr(here)}" if here in known else ""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _words(name: str, value: Any) -> str:
    """A setting on the command line."""
    parts = [f"{key}={x}" for key, x in value.items()] if isinstance(value, dict) else value
    return " ".join((_flag(name), *map(str, parts if isinstance(parts, list | tuple) else (parts,))))


@cache
def hints_of(config: type) -> dict[str, Any]:
    """The type of each field of a dataclass, by its name."""
    return typing.get_type_hints(config)


def fit_fields(config: Any) -> None:
    """Replace each value of a frozen dataclass by itself as its field's type. Raises as fit()."""
    try:
        hints = hints_of(config.__class__)
    except NameError:  # an algorithm's own config may name types that are imported for type checkers alone
        return
    for setting in fields(config):
        value = getattr(config, setting.name)
        object.__setattr__(config, setting.name, fit(setting.name, value, hints[setting.name]))


def fit(name: str, value: Any, hint: Any) -> Any:
    """`value` as its field's type, where that loses nothing: 1e6 for an int, 3 for a float, "none" for None.

    Raises TypeError for a value of another type, ValueError for NaN and for none of a Literal's values.
    """
    if hint is Any:
        return value
    if getattr(value, "shape", ()):  # an array
        value = value.tolist()
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if (value is None or value == "none") and type(None) in choices:
        return None
    if typing.get_origin(hint) is Literal:
        if value in typing.get_args(hint):
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, typing.get_args(hint)))}, got {value!r}")
    for choice in choices:
        kind = typing.get_origin(choice) or choice
        if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
            if math.isnan(value):
                raise ValueError(f"{name} must be a number, got {value!r}")
            return float(value)
        whole = hasattr(value, "__index__") or (isinstance(value, numbers.Real) and value == value // 1)
        if kind is int and whole and not isinstance(value, bool):
            return int(value)
        if kind is tuple and isinstance(value, list | tuple):
            of, *more = typing.get_args(choice) or (Any,)
            return tuple(fit(f"each of {name}", part, of) for part in value) if more in ([], [...]) else tuple(value)
        if kind is dict and isinstance(value, typing.Mapping):
            return dict(value)
        if kind is Literal and value in typing.get_args(choice):
            return value
        if kind in (bool, str) and isinstance(value, kind):
            return value
        if kind is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        if kind is str and type(value).__module__ == "torch" and type(value).__name__ == "device":
            return str(value)
        if isinstance(kind, type) and kind not in KINDS and isinstance(value, kind):  # of an algorithm's own config
            return value
    raise TypeError(f"{name} must be {' | '.join(map(_named, choices))}, got {value!r}")


def _named(hint: Any) -> str:
    """A type as it is written in code."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(repr, typing.get_args(hint)))
    if hint is type(None):
        return "None"
    return str(hint if typing.get_args(hint) else getattr(hint, "__name__", hint))
