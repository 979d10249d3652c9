"""Find settings of a run that could cause arbitrary code to run, without code in the run's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from headrace.core.text import shown
from headrace.core.trust import Untrusted, is_trusted, refused_folder
from headrace.core.types import Json
from headrace.envs.base import Env
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.construct import entry_of

# whose subclasses are made with what a run names; PettingZoo's may be missing here, and is a function mostly
ENVIRONMENTS = (Env, KernelEnv, gymnasium.Env, gymnasium.vector.VectorEnv)


def check_settings(run: Path, settings: Json) -> None:
    """Raise Untrusted if settings of a run could cause arbitrary code to run. Call this within code_of() of the run.

    settings: the run's, without those that the user has replaced. Three kinds are refused: arguments for a function,
    such as a command for subprocess:getoutput; arguments that name a file of the run's folder, which an environment
    would load; and the address of a Ray cluster, since this machine unpickles what the cluster's machines send.
    """
    if is_trusted(run):
        return
    env, arguments = settings.get("env"), settings.get("env_kwargs")
    if arguments and isinstance(env, str) and ":" in env and not _makes_environments(env):
        raise Untrusted(
            f"{run} has {env} called with {shown(arguments)}, and that is no class of environments: it could be any "
            "function. Add --trust if you trust who made this folder"
        )
    for text in _texts(arguments):
        if os.path.exists(text) and refused_folder(text):
            raise Untrusted(
                f"{run} has {text!r} for its environment to load, which is in the run's own folder and could be a "
                "pickle, that is, code. Add --trust if you trust who made this folder"
            )
    cluster = settings.get("cluster")
    if isinstance(cluster, str) and not _is_near(cluster):
        raise Untrusted(
            f"{run} has its actors on the Ray cluster at {cluster!r}, whose machines could run code here: give "
            "--cluster yourself, or add --trust if you trust who made this folder"
        )


def _makes_environments(env: str) -> bool:
    """Tell whether this names a class of environments or an id. Such classes are allowed in any module."""
    entry = entry_of(env)
    bases = entry.__mro__ if isinstance(entry, type) else ()
    return isinstance(entry, EnvSpec) or bool(set(ENVIRONMENTS) & set(bases))


def _texts(value: Any) -> Iterator[str]:
    """All strings in a value of a TOML or JSON file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield key
            yield from _texts(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _texts(member)


def _is_near(cluster: str) -> bool:
    """Tell whether a setting `cluster` names no machine, or one of a private network."""
    host = cluster.removeprefix("ray://").rpartition(":")[0].strip("[]") or cluster
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host  # local, auto, none, localhost or the name of a machine in this network
