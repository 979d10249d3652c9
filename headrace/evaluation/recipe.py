"""The source and options of an environment, from which evaluations make others like it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace import envs
from headrace.core.types import Settings
from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.gym.several import Several
from headrace.envs.registry import Source


class Recipe(NamedTuple):
    """A source of environments, and options of make()."""

    source: Source
    options: Settings  # of make()


def source_of(env: Env | Source) -> Source:
    """The source from which environments can be made again: for a ready Env its class, function or name.

    Raises TypeError for an Env that has none of these.
    """
    if isinstance(env, str | list | tuple) or callable(env):
        return env
    if not isinstance(env, Env):
        raise TypeError(f"{env!r} is one environment, and others like it are needed: give a name, class or function")
    if env.factory is not None:
        return env.factory
    try:
        envs.factory(env.name)
    except (ValueError, ImportError, FileNotFoundError) as error:
        raise TypeError(
            f"{env!r} cannot be made again: evaluate(policy, env=...) needs a name, class or function"
        ) from error
    return env.name


def can_be_made(env: Env | Source) -> bool:
    """Tell whether source_of() finds a source from which environments can be made again."""
    try:
        source_of(env)
    except TypeError:
        return False
    return True


def recipe_of(env: Env | Source | Recipe) -> Recipe:
    """The source and options that make environments like a ready Env. Raises TypeError as source_of() does."""
    if isinstance(env, Recipe):
        return env
    if isinstance(env, str | list | tuple) or callable(env):
        return Recipe(env, {})
    return Recipe(source_of(env), {**env.made_with, **({"params": env.made_params} if env.made_params else {})})


def kernel_class(source: Source) -> type[KernelEnv] | None:
    """The KernelEnv of a name or class; None for other environments."""
    entry: Any = envs.spec(source).entry
    if isinstance(entry, str) and ":" in entry:
        entry = sources.find(entry)
    return entry if sources.is_kernel(entry) else None


def kinds_of(source: Source) -> Sequence[Source]:
    """The functions that make environments in turn, for a list; a list of one for any other source."""
    if isinstance(source, Several):
        return source.factories
    return source if isinstance(source, list | tuple) else [source]


def is_port(source: Source) -> bool:
    """Tell whether the source is a KernelEnv that is a port of an environment of Gymnasium, its reference."""
    kernel = kernel_class(source)
    return kernel is not None and kernel.gymnasium_id is not None
