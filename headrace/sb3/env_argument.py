"""Interpret a model's `env` argument: the environments to train in, and their number."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.core.types import EnvArgument, Json, Settings
from headrace.data.flat_action import flat_action
from headrace.data.spaces import drawable
from headrace.envs import sources
from headrace.envs.construct import entry_of, make
from headrace.envs.gym.inline import InlineEnv
from headrace.envs.vector_env.compiled_vector import CompiledVectorEnv
from headrace.sb3.steps import Watched, success_of
from headrace.sb3.vec_env import VecEnv
from headrace.training.config import MAKE_SETTINGS

# wrappers that gymnasium.make(id) puts around an environment, and those that only record
STANDARD = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "Monitor", "RecordEpisodeStatistics"}
LOOKED = 50  # number of steps: attributes of an environment that they do not change count as settings


class Given(NamedTuple):
    """Environments to train in.

    vec_env: the result of get_env(). objects: the user's environments that compiled ones replace. made: whether vec_env
    and its contents were made here.
    """

    source: EnvArgument  # for Trainer
    num_envs: int
    settings: Settings  # of TrainConfig
    vec_env: Any
    objects: Sequence[gymnasium.Env] = ()
    made: bool = False


def given(env: Any) -> Given:
    """Make the environments for an `env` argument: an id, a class or a function, a gymnasium.Env, a VecEnv of
    headrace.sb3 or of Stable-Baselines3.

    An environment of gymnasium.make(id) without further wrappers, arguments or changed attributes is replaced by a
    compiled one, if the id has one. All others are stepped as they are.
    Raises TypeError for other objects.
    """
    if isinstance(env, VecEnv):
        return _of_own(env)
    if isinstance(env, gymnasium.Env):
        return _of_objects([env], VecEnv(lambda: env, 1))
    if hasattr(env, "step_async") and hasattr(env, "env_method"):
        inner = getattr(env, "envs", None)
        if type(env).__name__ == "DummyVecEnv" and inner:
            return _of_objects(inner, env)
        return Given(OtherVecEnv(env), env.num_envs, {}, env)
    if isinstance(env, str) or callable(env):
        return _of_own(VecEnv(env, 1))._replace(made=True)
    raise TypeError(
        f"env must be an id, a gymnasium.Env, a function that makes one, or a VecEnv, got {env!r}; a "
        "gymnasium.vector.VectorEnv is for headrace.Trainer"
    )


def _of_own(env: VecEnv) -> Given:
    """Environments for training with a VecEnv: its own if it steps them in this process, new ones if they are compiled
    or in workers."""
    inner = env.vector.unwrapped
    if env.source is None:
        raise TypeError(f"{env.vector} was made by you: give VecEnv what makes it, an id, a class or a function")
    options = {name: value for name, value in env.options.items() if value not in (None, ())}
    if isinstance(inner, CompiledVectorEnv):
        if options.keys() <= set(MAKE_SETTINGS):
            return Given(env.source, env.num_envs, options, env)
        return Given(make(env.source, env.num_envs, **options), env.num_envs, {}, env)
    if isinstance(inner, SyncVectorEnv):
        return Given(in_turn(inner.envs), env.num_envs, {}, env)
    wrappers = (*options.pop("wrappers", ()), Watched)
    return Given(make(env.source, env.num_envs, wrappers=wrappers, **options), env.num_envs, {}, env)


def _of_objects(envs: Sequence[gymnasium.Env], vec_env: Any) -> Given:
    """Environments for training with a user's own: compiled ones if all are of one id that has them."""
    ids = {plain_id(one) for one in envs}
    name = ids.pop() if len(ids) == 1 else None
    source = in_turn(envs) if name is None else name
    return Given(source, len(envs), {}, vec_env, () if name is None else tuple(envs))


def in_turn(envs: Sequence[gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    """A function that returns existing environments, one at each call. They are closed elsewhere."""
    remaining = iter([Watched(env, closes=False) for env in envs])
    return lambda: next(remaining)


def spaces_of(env: Any) -> tuple[Space, Space]:
    """The spaces of observations and actions of an env argument, as policies are made for them."""
    known = env if hasattr(env, "action_space") else given(env).vec_env
    return known.observation_space, flat_action(known.action_space)


def plain_id(env: gymnasium.Env) -> str | None:
    """The id of an equal compiled environment; None if wrappers or arguments were added, attributes were set, or a file
    is written."""
    one: Any = env
    limits = []
    while isinstance(one, gymnasium.Wrapper):
        if type(one).__name__ not in STANDARD or getattr(one, "results_writer", None) is not None:
            return None
        if type(one).__name__ == "TimeLimit":
            limits.append(one._max_episode_steps)  # type: ignore[attr-defined]
        one = one.env
    made = one.spec
    if made is None or made.id not in gymnasium.registry or not sources.is_kernel(entry_of(made.id)):
        return None
    known = gymnasium.registry[made.id]
    own = {key: value for key, value in made.kwargs.items() if key != "render_mode"}
    usual = {key: value for key, value in known.kwargs.items() if key != "render_mode"}
    same_limit = limits == ([] if known.max_episode_steps is None else [known.max_episode_steps])
    if own != usual or not same_limit:
        return None
    return None if was_changed(one, made.id) else made.id


def was_changed(env: gymnasium.Env, name: str) -> bool:
    """Tell whether an attribute has another value than after gymnasium.make(name), and print which. Attributes of the
    state do not count."""
    own, values = env.unwrapped, _settings_of(name)
    changed = next((key for key, value in _plain(own).items() if values.get(key, value) != value), None)
    if changed is not None:
        print(f"{name} is stepped in Python, because its {changed} is {getattr(own, changed)!r}", file=sys.stderr)
    return changed is not None


def changed_since(found: Given, seed: int) -> InlineEnv | None:
    """The user's own environments, for new episodes, if their attributes have changed since compiled ones replaced
    them."""
    name = str(found.source)
    if not any(was_changed(env, name) for env in found.objects):
        return None
    env = InlineEnv(in_turn(found.objects), found.num_envs, name)
    env.take_over(seed, 0)
    env.load_state_dict({})
    return env


@lru_cache
def _settings_of(name: str) -> Json:
    """Attributes of an environment that are numbers, flags and texts, and that steps do not change."""
    env = gymnasium.make(name)
    before = _plain(env.unwrapped)
    env.reset(seed=0)
    actions = drawable(env.action_space)
    actions.seed(0)
    for _ in range(LOOKED):
        if any(env.step(actions.sample())[2:4]):
            break
    after = _plain(env.unwrapped)
    env.close()
    return {key: value for key, value in before.items() if key in after and after[key] == value}


def _plain(env: Any) -> Json:
    """Attributes of an environment and its class that are numbers, flags and texts."""
    found = {**vars(type(env)), **vars(env), "render_mode": None}
    return {key: value for key, value in found.items() if isinstance(value, bool | int | float | str | np.number)}


class OtherVecEnv(VectorEnv):
    """A VecEnv of Stable-Baselines3, such as SubprocVecEnv or one in VecNormalize, as a gymnasium.vector.VectorEnv."""

    def __init__(self, env: Any) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.infos: list[Json] = [{} for _ in range(self.num_envs)]  # of the last step
        self.successes: list[float] = []  # of episodes that have ended
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Any, Json]:
        """Begin new episodes."""
        if seed is not None:
            self.env.seed(seed)
        return self.env.reset(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Json]:
        """A step of all environments."""
        observation, reward, done, each = self.env.step(actions)
        self.infos = each
        infos: Json = {}
        late = np.zeros(self.num_envs, bool)
        ended = np.flatnonzero(done).tolist()
        for index in ended:  # some have infos only at the ends of episodes
            self.successes += success_of(each[index])
            late[index] = each[index].get("TimeLimit.truncated", False)
        if all("terminal_observation" in each[index] for index in ended):  # otherwise unknown: see VectorAdapter
            for index in ended:
                infos = self._add_info(infos, {"final_obs": each[index]["terminal_observation"]}, index)
        return observation, reward, done & ~late, late, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Do nothing: the environments are the user's."""
