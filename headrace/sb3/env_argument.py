"""What a model's `env` argument means: which environments to train in, and how many."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.core.types import EnvArgument, Json, Settings
from headrace.envs import sources
from headrace.envs.construct import entry_of, make
from headrace.sb3.vec_env import VecEnv
from headrace.training.config import MAKE_SETTINGS

# wrappers that gymnasium.make(id) puts around an environment, and those that only record
STANDARD = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "Monitor", "RecordEpisodeStatistics"}
LOOKED = 50  # steps after which what an environment's attributes hold is taken for settings, if it is what it was


class Given(NamedTuple):
    """Environments to train in."""

    source: EnvArgument  # for Trainer
    num_envs: int
    settings: Settings  # of TrainConfig
    vec_env: Callable[[], Any]  # makes what get_env() returns; or returns what was given


def given(env: Any, successes: deque[float] | None = None) -> Given:
    """The environments that an `env` argument stands for: an id, a class or a function, a gymnasium.Env, a VecEnv of
    headrace.sb3 or of Stable-Baselines3.

    An environment that gymnasium.make(id) gives, without wrappers, arguments or attributes of its own, is made again by
    its id where that is compiled. Everything else is stepped as it is; then info["is_success"] of ended episodes is
    appended to successes.
    Raises TypeError for other objects.
    """
    if isinstance(env, VecEnv):
        return _of_own(env)
    if isinstance(env, gymnasium.Env):
        found = plain_id(env)
        return Given(found or (lambda: Successes(env, successes)), 1, {}, lambda: VecEnv(lambda: env, 1))
    if hasattr(env, "step_async") and hasattr(env, "env_method"):
        return _of_sb3(env, successes)
    if isinstance(env, str) or callable(env):
        return Given(env, 1, {}, lambda: VecEnv(env, 1))
    raise TypeError(
        f"env must be an id, a gymnasium.Env, a function that makes one, or a VecEnv, got {env!r}; a "
        "gymnasium.vector.VectorEnv is for headrace.Trainer"
    )


def _of_own(env: VecEnv) -> Given:
    options = {name: value for name, value in env.options.items() if value not in (None, ())}
    if env.source is None:
        raise TypeError(f"{env.envs} was made by you: give VecEnv what makes it, an id, a class or a function")
    if options.keys() <= set(MAKE_SETTINGS):
        return Given(env.source, env.num_envs, options, lambda: env)
    return Given(make(env.source, env.num_envs, **options), env.num_envs, {}, lambda: env)


def _of_sb3(env: Any, successes: deque[float] | None) -> Given:
    """Environments of Stable-Baselines3's VecEnv: one by one those of a DummyVecEnv, others as a vector."""
    inner = getattr(env, "envs", None)
    if type(env).__name__ == "DummyVecEnv" and inner:
        ids = {plain_id(one) for one in inner}
        if len(ids) == 1 and (name := ids.pop()) is not None:
            return Given(name, len(inner), {}, lambda: env)
        return Given(_in_turn([Successes(one, successes) for one in inner]), len(inner), {}, lambda: env)
    return Given(OtherVecEnv(env, successes), env.num_envs, {}, lambda: env)


def _in_turn(envs: list[gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    """A function that gives environments that exist already, one after another."""
    remaining = iter(list(envs))
    return lambda: next(remaining)


def plain_id(env: gymnasium.Env) -> str | None:
    """The id by which an equal environment is compiled; None where wrappers or arguments were added, attributes were
    set, or a file is written."""
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
    if changed := _changed(one, made.id):
        print(f"{made.id} is stepped in Python, because its {changed} is {getattr(one, changed)!r}", file=sys.stderr)
    return None if changed else made.id


def _changed(env: gymnasium.Env, name: str) -> str | None:
    """An attribute that has another value than gymnasium.make(name) gives it, and was no state; None if none has."""
    values = _settings_of(name)
    return next((key for key, value in _plain(env).items() if values.get(key, value) != value), None)


@lru_cache
def _settings_of(name: str) -> Json:
    """The numbers, flags and texts among the attributes of an environment that steps do not change."""
    env = gymnasium.make(name)
    before = _plain(env.unwrapped)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(LOOKED):
        if any(env.step(env.action_space.sample())[2:4]):
            break
    after = _plain(env.unwrapped)
    env.close()
    return {key: value for key, value in before.items() if key in after and after[key] == value}


def _plain(env: Any) -> Json:
    """The numbers, flags and texts among the attributes of an environment and its class."""
    found = {**vars(type(env)), **vars(env), "render_mode": None}
    return {key: value for key, value in found.items() if isinstance(value, bool | int | float | str | np.number)}


class Successes(gymnasium.Wrapper):
    """Appends info["is_success"] of the last step of each episode to a list."""

    headrace_logs = ("is_success",)

    def __init__(self, env: gymnasium.Env, successes: deque[float] | None) -> None:
        super().__init__(env)
        self.successes = successes

    def reset(self, **how: Any) -> tuple[Any, Json]:
        """Begin an episode, with the arguments that are given alone: some environments know no options."""
        return self.env.reset(**how)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Json]:
        """A step."""
        outcome = self.env.step(action)
        if len(outcome) == 5 and (outcome[2] or outcome[3]):  # others are refused by what reads them
            _note(outcome[4], self.successes)
        return outcome


def _note(info: Json, successes: deque[float] | None) -> None:
    if successes is not None and "is_success" in info:
        successes.append(float(info["is_success"]))


class OtherVecEnv(VectorEnv):
    """A VecEnv of Stable-Baselines3, such as SubprocVecEnv or one in VecNormalize, as a gymnasium.vector.VectorEnv."""

    def __init__(self, env: Any, successes: deque[float] | None = None) -> None:
        self.env, self.successes = env, successes
        self.num_envs = env.num_envs
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
        infos: Json = {}
        late = np.zeros(self.num_envs, bool)
        for index in np.flatnonzero(done):  # some give infos at the ends of episodes alone
            _note(each[index], self.successes)
            late[index] = each[index].get("TimeLimit.truncated", False)
            infos = self._add_info(infos, {"final_obs": each[index]["terminal_observation"]}, int(index))
        return observation, reward, done & ~late, late, infos

    def close_extras(self, **kwargs: Any) -> None:
        """The environments are the user's."""
