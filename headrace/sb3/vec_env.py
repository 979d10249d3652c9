"""Environments with the interface of Stable-Baselines3's VecEnv, which need not be installed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from headrace.core.cores import cores
from headrace.core.types import EnvArgument, Json
from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.construct import entry_of
from headrace.envs.gym.attributes import set_attribute
from headrace.envs.vector_env.compiled_vector import CompiledVectorEnv
from headrace.envs.vector_env.construct_vector import make_vec
from headrace.envs.vector_env.vector_stepping import called
from headrace.envs.vector_env.worker_vector import WorkerVectorEnv

Indices = int | Iterable[int] | None


class VecEnv:
    """N environments as Stable-Baselines3 steps them: SAME_STEP autoreset, `dones`, and a dict of infos for each.

        model = stable_baselines3.PPO("MlpPolicy", headrace.sb3.VecEnv("CartPole-v1", 64))

    source, num_envs, options: as for headrace.make_vec(); or a gymnasium.vector.VectorEnv of make_vec() in SAME_STEP
    mode, with episode_statistics=True for `episode`. Environments are compiled if possible; workers=k steps others in k
    processes.
    infos: `TimeLimit.truncated`; at the end of an episode also `terminal_observation` and `episode`, with r (return), l
    (length) and t (seconds), as from Monitor. If Stable-Baselines3 is loaded, this counts as a subclass of its VecEnv
    for isinstance().
    """

    def __init__(
        self, source: EnvArgument, num_envs: int | None = None, *, seed: int | None = None, **options: Any
    ) -> None:
        if isinstance(source, VectorEnv):
            self.source, self.options, self.vector = None, options, source
        else:
            self.source, self.options = source, options
            self.vector = make_vec(
                source,
                1 if num_envs is None else num_envs,
                autoreset_mode="SameStep",
                **{"episode_statistics": True} | options,
            )  # type: ignore[arg-type]
        mode = self.vector.metadata.get("autoreset_mode")
        if getattr(mode, "value", mode) != "SameStep":
            raise ValueError(f"a VecEnv begins episodes in the step that ends others: autoreset_mode is {mode}")
        self.num_envs = self.vector.num_envs
        self.observation_space, self.action_space = (
            self.vector.single_observation_space,
            self.vector.single_action_space,
        )
        self.render_mode = self.vector.render_mode
        self.metadata = {"render_modes": [] if self.render_mode is None else [self.render_mode]}
        self.reset_infos: list[Json] = [{} for _ in range(self.num_envs)]
        self._seed: int | None = seed
        self._options: Json = {}
        self._actions: Any = None
        self._vectors: list[Any] = [self.vector.unwrapped]  # vectors whose attributes are set; the training's is last
        _register(type(self))

    @property
    def envs(self) -> list[Any]:
        """The environments, if they are objects in this process. Raises AttributeError if not."""
        inner = self.vector.unwrapped
        if not isinstance(inner, SyncVectorEnv):
            where = "compiled" if isinstance(inner, CompiledVectorEnv) else "in other processes"
            raise AttributeError(
                f"the environments are {where}, so a VecEnv has no envs: use get_attr(), set_attr() and env_method()"
            )
        return list(inner.envs)

    @property
    def unwrapped(self) -> VecEnv:
        """Return itself: wrappers around it are Stable-Baselines3's."""
        return self

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the next reset(). Returns a seed for each environment, as VecEnv does; compiled environments draw by
        (seed, number of the environment) instead."""
        self._seed = int(np.random.randint(0, 2**31)) if seed is None else seed
        return [self._seed + index for index in range(self.num_envs)]

    def set_options(self, options: list[Json] | Json | None = None) -> None:
        """Set options of the next reset(), the same for all environments. Raises ValueError for different ones."""
        each = [options or {}] if isinstance(options, dict | None) else options
        if any(one != each[0] for one in each):
            raise ValueError("options must be the same for all environments: give one dict")
        self._options = dict(each[0])

    def reset(self) -> Any:
        """Begin new episodes, with the seed of a preceding seed(). Returns observations [N, ...]."""
        observation, infos = self.vector.reset(seed=self._seed, options=self._options or None)
        self._seed, self._options = None, {}
        self.reset_infos = self._each(infos)
        return observation

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, list[Json]]:
        """Take a step. Returns observations, rewards float32 [N], dones bool [N], and infos."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Keep the actions for step_wait(): an array, or for a Dict or Tuple space also a list of one per
        environment."""
        if isinstance(self.action_space, Dict | Tuple) and isinstance(actions, list):
            batch: Any = create_empty_array(self.action_space, self.num_envs)
            actions = concatenate(self.action_space, actions, batch)
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[Json]]:
        """Step with the actions of step_async()."""
        observation, reward, terminated, truncated, infos = self.vector.step(self._actions)
        reward, terminated, truncated = (np.asarray(x) for x in (reward, terminated, truncated))
        done = terminated | truncated
        late = truncated & ~terminated
        each = self._step_infos(infos, done)
        for index, info in enumerate(each):
            info["TimeLimit.truncated"] = bool(late[index])
        return observation, reward.astype(np.float32, copy=False), done, each

    def _step_infos(self, infos: Json, done: np.ndarray) -> list[Json]:
        """Infos of the step. For an episode's last step these are the step's own, not those of the following reset."""
        if not infos:
            return [{} for _ in range(self.num_envs)]
        rest = {key: value for key, value in infos.items() if key.removeprefix("_") not in ENDS}
        each = self._each(rest)
        if done.any():
            finals, episodes = self._each({key: infos[key] for key in infos if key not in rest}), infos.get("episode")
            for index in np.flatnonzero(done):
                self.reset_infos[index] = each[index]
                each[index] = finals[index].get("final_info", {})
                each[index]["terminal_observation"] = finals[index]["final_obs"]
                if episodes is not None:
                    kinds = {"r": float, "l": int, "t": float}
                    each[index]["episode"] = {name: kind(episodes[name][index]) for name, kind in kinds.items()}
        return each

    def _each(self, infos: Json) -> list[Json]:
        """Convert infos of Gymnasium's form, by name, to a dict for each environment."""
        each: list[Json] = [{} for _ in range(self.num_envs)]
        for key, values in infos.items():
            if f"_{key}" not in infos:  # a mask
                continue
            members = self._each(values) if isinstance(values, dict) else values
            for index in np.flatnonzero(infos[f"_{key}"]):
                each[index][key] = members[index]
        return each

    def train(self, env: Env) -> None:
        """Attach the Env that a model trains in. If its environments are separate from this VecEnv's, because they are
        compiled or in workers, get_attr(), set_attr() and env_method() act on them; the last two also act on this
        VecEnv's."""
        own: Any = self.vector.unwrapped
        trained: Any = None
        if isinstance(own, CompiledVectorEnv) and isinstance(env, CompiledEnv):
            trained = CompiledVectorEnv(env, AutoresetMode.SAME_STEP, own.output)
        elif isinstance(own, WorkerVectorEnv):
            trained = env
        self._vectors = [own] if trained is None else [own, trained]

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of some environments, or of all."""
        return get_attr(self._vectors[-1], attr_name, list(self._indices(indices)))

    def has_attr(self, attr_name: str) -> bool:
        """Tell whether the environments have an attribute."""
        try:
            self.get_attr(attr_name)
        except AttributeError:
            return False
        return True

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of some environments, or of all, to one value."""
        for vector in self._vectors:
            set_attr(vector, attr_name, value, list(self._indices(indices)))

    def env_method(self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any) -> list:
        """Call a method of some environments, or of all, and return the results.

        Raises ValueError for a vector made elsewhere that can only call methods of all environments.
        """
        chosen, how = list(self._indices(indices)), (method_name, method_args, method_kwargs)
        return [env_method(vector, chosen, *how) for vector in self._vectors][-1]

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Tell which environments have this wrapper. True for Monitor, whose statistics are always in the infos."""
        chosen = list(self._indices(indices))
        if wrapper_class.__name__ == "Monitor":
            return [True] * len(chosen)
        envs = getattr(self.vector.unwrapped, "envs", None)
        return [envs is not None and _has_wrapper(envs[index], wrapper_class) for index in chosen]

    def _indices(self, indices: Indices) -> Sequence[int]:
        everything = range(self.num_envs)
        if indices is None:
            return everything
        return [everything[index] for index in ([indices] if isinstance(indices, int) else indices)]

    def get_images(self) -> list[Any]:
        """An RGB image [H, W, 3] of each environment."""
        return list(self.vector.render() or ())

    def render(self, mode: str | None = None) -> np.ndarray | None:
        """Render the environments. With render_mode "rgb_array", returns all of their images as one; otherwise they
        show them.

        Raises ValueError if they cannot render, or not in this mode.
        """
        mode = mode or self.render_mode
        if self.render_mode is None or mode not in (self.render_mode, "human"):
            raise ValueError(
                f"render mode {mode!r} was asked for, and that of the environments is {self.render_mode!r}. Those "
                "given by an id render nothing: give gymnasium.make(id, render_mode=...). `headrace play` makes videos"
            )
        if self.render_mode != "rgb_array":
            self.vector.unwrapped.call("render")  # type: ignore[attr-defined]
            return None
        image = tiled(self.get_images())
        if mode == "human":
            import cv2  # type: ignore[import-not-found,unused-ignore]

            cv2.imshow("VecEnv", image[:, :, ::-1])
            cv2.waitKey(1)
        return image

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """Name of this class if it hides an attribute that Stable-Baselines3's wrappers have found."""
        return f"{type(self).__module__}.{type(self).__name__}" if hasattr(self, name) and already_found else None

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()


ENDS = ("final_obs", "final_info", "episode")  # infos at the end of an episode


def make_vec_env(
    env_id: str | Callable[..., Any],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., Any] | None = None,
    env_kwargs: Json | None = None,
    vec_env_cls: type | None = None,
    vec_env_kwargs: Json | None = None,
    monitor_kwargs: Json | None = None,
    wrapper_kwargs: Json | None = None,
    *,
    workers: int | None = None,
) -> VecEnv:
    """Make a VecEnv, with the arguments of stable_baselines3.common.env_util.make_vec_env. workers: number of processes
    that step environments which cannot be compiled.

    vec_env_cls: with SubprocVecEnv, and without workers, there is a process for each core, at most one for each
    environment. vec_env_kwargs: options of headrace.make_vec(). With wrapper_class or env_kwargs nothing is compiled.
    Raises ValueError for other classes, and for start_index, monitor_dir and monitor_kwargs.
    """
    for name, value in (("start_index", start_index), ("monitor_dir", monitor_dir), ("monitor_kwargs", monitor_kwargs)):
        if value:
            raise ValueError(f"{name}={value!r} has no counterpart in headrace.sb3: leave it out")
    kind = None if vec_env_cls is None else vec_env_cls.__name__
    if kind not in (None, "DummyVecEnv", "SubprocVecEnv", "VecEnv"):
        raise ValueError(f"vec_env_cls={kind} has no counterpart in headrace.sb3: leave it out, and give workers=2")
    if kind == "SubprocVecEnv" and workers is None:
        workers = min(cores(), n_envs)
    options = {**(vec_env_kwargs or {}), **({} if workers is None else {"workers": workers})}
    options |= {"env_kwargs": env_kwargs} if env_kwargs else {}
    if wrapper_class is not None and wrapper_kwargs:
        wrapper_class = partial(wrapper_class, **wrapper_kwargs)
    wrappers = () if wrapper_class is None else (wrapper_class,)
    if (wrappers or env_kwargs) and workers is None and sources.is_kernel(entry_of(env_id)):
        options.setdefault("backend", "inline")  # what is compiled takes neither
    return VecEnv(env_id, n_envs, seed=seed, wrappers=wrappers, **options)


def tiled(images: list[np.ndarray]) -> np.ndarray:
    """Arrange images [H, W, 3] in one, with about as many columns as rows."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    height, width, colors = images[0].shape
    full = np.zeros((rows * columns, height, width, colors), images[0].dtype)
    full[: len(images)] = images
    return full.reshape(rows, columns, height, width, colors).swapaxes(1, 2).reshape(rows * height, -1, colors)


def _has_wrapper(env: Any, wrapper_class: type) -> bool:
    while env is not env.unwrapped:
        if isinstance(env, wrapper_class):
            return True
        env = env.env
    return False


def _register(cls: type) -> None:
    """Register a class as a VecEnv of Stable-Baselines3 for isinstance(), if Stable-Baselines3 is loaded."""
    base = sys.modules.get("stable_baselines3.common.vec_env.base_vec_env")
    if base is not None:
        base.VecEnv.register(cls)


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
