"""Vector environments by source: ids with a vector entry point, EnvPool's tasks, classes and functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.core.types import EnvArgument, Settings
from headrace.envs.base import Env
from headrace.envs.sources import ATARI, ENVPOOL, MUJOCO, Entry, EnvSpec, installs_named
from headrace.envs.vector.adapter import VectorAdapter, threads
from headrace.envs.vector.envpool import EnvPoolSource
from headrace.envs.vector.envpool_async import EnvPoolEnv
from headrace.envs.vector.gymnasium_vector import GymnasiumSource
from headrace.envs.vector.halves import HalvesEnv
from headrace.envs.vector.simulators import SimulatorSource

ENV_MEMBERS = [name for name in {**Env.__annotations__, **vars(Env)} if not name.startswith("_")]


def make(name: str, entry: Entry | str, num_envs: int, options: Settings, ignore: Sequence[str] = ()) -> Env:
    """A vector environment of N. options: as the library takes them. ignore: members of a Dict observation that are
    left out.

    Atari games (headrace.envs.gym.atari) step in threads, by ALE's own vector environment. Rewards are clipped to
    -1 .. 1, and returns are not; reward_clipping=False leaves rewards as they are.
    Raises ValueError where its source gives another number of them.
    """
    if name.startswith(ENVPOOL):
        return EnvPoolEnv(EnvPoolSource(name.removeprefix(ENVPOOL), num_envs, **options), ignore=ignore)
    if name.startswith(MUJOCO) and isinstance(entry, EnvSpec):
        from headrace.envs.vector.mujoco import MujocoSource  # which loads what compiles

        return HalvesEnv(partial(MujocoSource, entry, **options), num_envs, ignore)
    if isinstance(entry, EnvSpec):
        clip = None
        if name.startswith(ATARI):
            clip = (-1.0, 1.0) if options.get("reward_clipping", True) else None
            options = {"num_threads": threads(num_envs), **options, "reward_clipping": False}
        with installs_named(name, entry):
            vector = gymnasium.make_vec(entry.id, num_envs, vectorization_mode="vector_entry_point", **options)
        return VectorAdapter(GymnasiumSource(vector, name), clip, ignore)
    assert callable(entry)
    env = adapted(entry(num_envs=num_envs, **options), name, ignore)
    if env.num_envs != num_envs:
        raise ValueError(f"{name} gave {env.num_envs} environments where {num_envs} were asked for")
    return env


def adapted(given: EnvArgument, name: str | None = None, ignore: Sequence[str] = ()) -> Env:
    """An Env of a ready-made object: a gymnasium.vector.VectorEnv, a Simulator, or an Env, as it is.

    Raises TypeError for anything else, ValueError for an Env with `ignore`.
    """
    if isinstance(given, VectorEnv):
        return VectorAdapter(GymnasiumSource(given, name), ignore=ignore)
    if isinstance(given, Env):
        if ignore:
            raise ValueError(f"{name} gives a ready {type(given).__name__}: leave ignore out, or give it what is in it")
        return given
    if hasattr(given, "backend") and hasattr(given, "state_dict"):
        missing = ", ".join(member for member in ENV_MEMBERS if not hasattr(given, member))
        raise TypeError(f"{given!r} has no {missing}: derive its class from headrace.Env, which has defaults for some")
    return VectorAdapter(SimulatorSource(given, name), ignore=ignore)
