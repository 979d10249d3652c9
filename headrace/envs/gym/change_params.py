"""Set parameters of Gymnasium environments, when they are made and while they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import torch

from headrace.core.text import shown
from headrace.core.types import Settings
from headrace.envs.base import Env, MultiAgentEnv

METHOD = "set_params"
NUMBERS = "biuf"  # kinds of arrays that a checkpoint holds as tensors


def begin_with(env: Env, params: Settings | None) -> Env:
    """Set the parameters of environments that were just made. If set_params() raises, closes them and raises that."""
    if params:
        try:
            env.set_params(**params)
        except BaseException:
            env.close()
            raise
        env.made_params, env.changed_params = env.changed_params, {}
    return env


def with_params(factory: Callable[..., gymnasium.Env], params: Settings) -> Callable[..., gymnasium.Env]:
    """A function that makes an environment with parameters: one value of each."""

    def build() -> gymnasium.Env:
        env = factory()
        change_each([env], params)
        return env

    return build


def check_numbers(params: Settings, num_envs: int) -> None:
    """Raise ValueError if a parameter has several values, but not one for each of num_envs environments."""
    for name, value in params.items():
        if has_several(value) and len(value) != num_envs:
            raise ValueError(
                f"{name}={shown(value, 60)} has {len(value)} values, and num_envs is {num_envs}: give one value for "
                f"all environments, or {num_envs}, one for each; of a parameter that is a vector {num_envs} vectors"
            )


def change_each(
    envs: Sequence[gymnasium.Env | MultiAgentEnv], params: Settings, first: int = 0, num_envs: int | None = None
) -> None:
    """Change parameters of environments: name -> one value for all, or a sequence with one for each.

    first, num_envs: number of the first of these environments, and size of the set that sequences are for; None if that
    is only these. Raises ValueError as check_numbers() and change_params().
    """
    check_numbers(params, len(envs) if num_envs is None else num_envs)
    for number, env in enumerate(envs, first):
        change_params(env, {name: _own(value, number) for name, value in params.items()})


def change_params(env: gymnasium.Env | MultiAgentEnv, params: Settings) -> None:
    """Call the method set_params(**params) of an environment or of one of its wrappers. Without such a method, set the
    attributes of these names.

    Raises ValueError where there is no such attribute.
    """
    if not params:
        return
    own = getattr(env, "unwrapped", env)
    if isinstance(env, gymnasium.Env) and env.has_wrapper_attr(METHOD):
        env.get_wrapper_attr(METHOD)(**params)
    elif hasattr(own, METHOD):
        getattr(own, METHOD)(**params)
    else:
        for name, value in params.items():
            if not hasattr(own, name):
                kind, given = type(own).__name__, f"{name}={shown(value, 60)}"
                raise ValueError(
                    f"{kind} has neither a method {METHOD}() nor an attribute {name!r} for {given}: give it one, or "
                    f"name one of {', '.join(_numbers_of(own)) or 'its attributes'}"
                )
        for name, value in params.items():
            setattr(own, name, value)


def saved_params(params: Settings) -> dict[str, Any]:
    """Convert parameters for a checkpoint: arrays to tensors, tuples to lists, NumPy's scalars to numbers."""
    return {name: _saved(value) for name, value in params.items()}


def loaded_params(params: Settings) -> dict[str, Any]:
    """Parameters of saved_params(), with NumPy arrays in place of tensors."""
    return {name: _loaded(value) for name, value in params.items()}


def has_several(value: Any) -> bool:
    """True for a sequence of values, False for one."""
    return isinstance(value, list | tuple | range) or getattr(value, "ndim", 0) > 0


def _own(value: Any, number: int) -> Any:
    """The value for environment `number`, as a copy: a Python number in place of NumPy's and torch's scalars."""
    own = value[number] if has_several(value) else value
    if isinstance(own, torch.Tensor):
        own = own.detach().cpu().numpy()
    return own.item() if isinstance(own, np.generic | np.ndarray) and own.ndim == 0 else deepcopy(own)


def _numbers_of(env: object) -> list[str]:
    """Names of attributes of an environment that are numbers."""
    own = vars(env).items() if hasattr(env, "__dict__") else ()
    return sorted(name for name, value in own if isinstance(value, int | float) and not name.startswith("_"))


def _saved(value: Any) -> Any:
    if isinstance(value, list | tuple | range):
        return [_saved(member) for member in value]
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value) if value.ndim and value.dtype.kind in NUMBERS else value.tolist()
    return value


def _loaded(value: Any) -> Any:
    if isinstance(value, list):
        return [_loaded(member) for member in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value
