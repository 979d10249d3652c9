"""Attributes and methods of some environments, of a VectorEnv or of an Env that a model trains in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv

from headrace.core.types import Json
from headrace.envs.base import Env
from headrace.envs.gym.attributes import set_attribute
from headrace.envs.vector_env.compiled_vector import CompiledVectorEnv
from headrace.envs.vector_env.vector_stepping import called
from headrace.envs.vector_env.worker_vector import WorkerVectorEnv


def get_attr(vector: Any, name: str, chosen: Sequence[int]) -> list[Any]:
    """An attribute of some environments."""
    if isinstance(vector, Env):
        return vector.apply(partial(_attribute, name), chosen)
    if isinstance(vector, SyncVectorEnv):
        return [_attribute(name, vector.envs[index]) for index in chosen]
    found = vector.get_attr(name)
    return [found[index] for index in chosen]


def set_attr(vector: Any, name: str, value: Any, chosen: Sequence[int]) -> None:
    """Set an attribute of some environments to one value, without changing the others."""
    change = partial(_set, name, value)
    if isinstance(vector, Env):
        vector.apply(change, chosen)
    elif isinstance(vector, SyncVectorEnv):
        for index in chosen:
            change(vector.envs[index])
    elif len({*chosen}) == vector.num_envs:
        vector.set_attr(name, [value] * vector.num_envs)
    else:
        before = vector.get_attr(name)
        vector.set_attr(name, [value if index in chosen else before[index] for index in range(vector.num_envs)])


def env_method(vector: Any, chosen: Sequence[int], name: str, args: tuple, kwargs: Json) -> list[Any]:
    """Call a method of some environments; return the results. Raises ValueError where a vector can only call all."""
    if isinstance(vector, Env):
        return vector.apply(partial(_called, name, args, kwargs), chosen)
    if isinstance(vector, SyncVectorEnv):
        return [called(vector.envs[index], name, args, kwargs) for index in chosen]
    if isinstance(vector, WorkerVectorEnv):
        return vector.call_some(chosen, name, *args, **kwargs)
    # compiled environments have static functions, which change none of them
    if not isinstance(vector, CompiledVectorEnv) and [*chosen] != [*range(vector.num_envs)]:
        kind = type(vector).__name__
        raise ValueError(f"{kind} calls {name}() of all {vector.num_envs} environments: leave out indices")
    found = vector.call(name, *args, **kwargs)
    return [found[index] for index in chosen]


def _attribute(name: str, env: gymnasium.Env) -> Any:
    return env.get_wrapper_attr(name)


def _set(name: str, value: Any, env: gymnasium.Env) -> None:
    set_attribute(env, name, value)


def _called(name: str, args: tuple, kwargs: Json, env: gymnasium.Env) -> Any:
    return called(env, name, args, kwargs)
