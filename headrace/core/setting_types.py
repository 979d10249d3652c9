"""Values of settings as the types of their fields, and names that other libraries have for settings.

Imports no torch, so that a command line can be read and its help printed at once.
"""

from __future__ import annotations

import math
import numbers
import os
import types
import typing
from collections.abc import Collection
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
OTHER_NAMES = {  # names in other libraries -> settings that mean the same
    **SB3_NAMES,
    **dict.fromkeys(("total_timesteps", "timesteps"), "total_steps"),
    **dict.fromkeys(("n_steps", "rollout_length", "unroll_length"), "num_steps"),
    **dict.fromkeys(("clip_range", "clip_coef", "clip_eps"), "clip"),
    **dict.fromkeys(("net_arch", "hidden_sizes"), "hidden"),
    **dict.fromkeys(("num_epochs", "update_epochs"), "epochs"),
    **dict.fromkeys(("tensorboard_log", "log_dir", "save_dir"), "log_folder"),
    **dict.fromkeys(("replay_size", "buffer_capacity"), "buffer_size"),
    "activation_fn": "activation",
    "alpha": "temperature",
    "batch_size": "minibatch_size",
    "clip_range_vf": "value_clip",
    "lr": "learning_rate",
    "num_workers": "workers",
    "policy_freq": "policy_delay",
    "verbose": "progress",
}
KINDS = (int, float, bool, str, tuple, dict)  # of Headrace's own settings
INSTEAD = {  # names in other libraries, or of other algorithms' settings -> what there is instead
    **dict.fromkeys(("callback", "callbacks"), "a loop of your own has the place for callbacks, see docs/own-loop.md"),
    **dict.fromkeys(("lstm", "use_lstm"), "recurrent policies are made by --recurrent lstm"),
    **dict.fromkeys(("use_gpu", "gpu", "cuda", "num_gpus", "use_cuda"), "a GPU is chosen by --device cuda"),
    "critic_members": "critics that see more than their actors are those of ppo, a2c, appo, impala, reinforce and trpo",
    "policy_kwargs": "settings of the network have names of their own, such as hidden and activation",
}


def no_setting(name: str, known: Collection[str]) -> str:
    """A message for a name that is no setting: Headrace's name for it, or the known names closest to it."""
    of_env = (
        f"; is it an argument of the environment? give env_kwargs={{{name!r}: ...}}" if "env_kwargs" in known else ""
    )
    return f"there is no setting {name!r}{name_here(name, known) or did_you_mean(name, known) or of_env}"


def name_here(name: str, known: Collection[str]) -> str:
    """ "; Headrace's name is 'x'" for a setting's name in another library; empty where there is none in `known`."""
    if name in INSTEAD:
        return f"; {INSTEAD[name]}"
    here = OTHER_NAMES.get(name, "")
    return f"; Headrace's name is {here!r}" if here in known else ""


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
