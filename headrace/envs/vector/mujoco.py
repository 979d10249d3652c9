"""Gymnasium's MuJoCo tasks as a Source of headrace.envs.vector.adapter: stepped by compiled loops over libmujoco."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.utils.seeding import np_random
from torch import Tensor

from headrace.core.rng import env_seed
from headrace.data.spaces import Sample
from headrace.envs.gym.columns import action_caster
from headrace.envs.sources import MUJOCO, EnvSpec, installs_named, mujoco_warns_once
from headrace.envs.vector.adapter import Autoreset, Outcome
from headrace.envs.vector.mujoco_infos import INFOS, Infos
from headrace.envs.vector.mujoco_models import listed
from headrace.envs.vector.mujoco_simulations import Simulations, check_counts
from headrace.envs.vector.mujoco_tasks import TASKS

IDS = tuple(f"{name.removesuffix('Env')}-v5" for name in TASKS)
RENDERING = ("camera_id", "camera_name", "default_camera_config", "height", "max_geom", "visual_options", "width")
NOT_TAKEN = (
    "xml_file",
    "render_mode",
    *RENDERING,
)  # arguments that are not for many simulations


class MujocoSource:
    """A task of Gymnasium (v5), by its id, with the episodes of gymnasium.make(id): seeds, observations and endings are
    the same, rewards and infos equal up to rounding.

    task: Gymnasium's spec of it. options: of gymnasium.make. num_threads: of the steps; results do not depend on it.
    If MuJoCo finds a simulation unstable and resets it, its episode ends, while Gymnasium continues; `unstable` counts
    these.
    Raises ImportError without mujoco, ValueError for other tasks and for a model or a rendering of the user's own.
    """

    device = torch.device("cpu")
    autoreset = Autoreset.NEXT_STEP
    resets_some = True

    def __init__(self, task: EnvSpec, num_envs: int, num_threads: int | None = None, **options: Any) -> None:
        _check(task, [*task.kwargs, *options])
        check_counts(MUJOCO + task.id, num_threads=num_threads, frame_skip=options.get("frame_skip"))
        with mujoco_warns_once(task), installs_named(MUJOCO + task.id, task):
            made = gymnasium.make(task, **options)
            self.env = env = cast(Any, made.unwrapped)
            model = listed(env.fullpath, env.model, env.frame_skip)
        self.name, self.num_envs = MUJOCO + task.id, num_envs
        self.max_steps: int | None = made.spec.max_episode_steps if made.spec is not None else None
        self.observation_space, self.action_space = made.observation_space, made.action_space
        kind = type(self.env).__name__
        self._task, self._infos = TASKS[kind], INFOS[kind]
        # what formulas read: in Gymnasium dt is a property, which asks MuJoCo for its factors each time
        self._made = SimpleNamespace(**vars(self.env), dt=self.env.dt)
        self.simulations = Simulations(self.name, [model], num_envs, self._task.fields, self.env.frame_skip)
        self._threads, self._actions = num_threads, action_caster(self.action_space)
        self._random = [np_random()[0] for _ in range(num_envs)]
        self._limit, self._every = self.max_steps or np.inf, np.arange(num_envs)
        self._steps, self._ended = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)

    @property
    def unstable(self) -> int:
        return self.simulations.unstable

    def reset(self, seed: int | None, first: int = 0) -> Sample:
        if seed is not None:
            self._random = [np_random(env_seed(seed, first + i))[0] for i in range(self.num_envs)]
        self._begin(np.arange(self.num_envs))
        return self._task.observe(self._made, self.simulations.fields)

    def reset_some(self, mask: Tensor) -> Sample:
        self._begin(np.flatnonzero(mask.numpy()))
        return self._task.observe(self._made, self.simulations.fields)

    def _begin(self, envs: np.ndarray) -> None:
        """Begin an episode in some environments."""
        for i in envs.tolist():
            self.simulations.begin(i, partial(self._place, self._random[i]))
        self._steps[envs], self._ended[envs] = 0, False

    def _place(self, random: np.random.Generator, data: Any) -> None:
        data.qpos[:], data.qvel[:] = self._task.begin(self._made, random)

    def step(self, action: Tensor) -> Outcome:
        actions, begins = np.ascontiguousarray(self._actions(action.numpy())), self._ended
        due = np.flatnonzero(~begins) if (some := bool(begins.any())) else self._every
        before, after = self.simulations.kept(), self.simulations.fields
        unstable = self.simulations.step(actions, due, self._threads)
        reward, terminated = self._task.judge(self._made, before, after, actions)
        self._steps += 1
        truncated = self._steps >= self._limit
        if unstable is not None:
            reward, terminated = np.where(unstable, 0.0, reward), terminated | unstable
        if some:
            reward, terminated, truncated = np.where(begins, 0.0, reward), terminated & ~begins, truncated & ~begins
            self._begin(np.flatnonzero(begins))
        self._ended = terminated | truncated
        infos = Infos(self._infos, self._made, before, after, actions)
        return Outcome(self._task.observe(self._made, after), reward, terminated, truncated, infos=infos)

    def close(self) -> None:
        self.env.close()


def is_own(task: EnvSpec) -> bool:
    """True for a task as Gymnasium registers it, but not for a user's replacement, or one in wrappers."""
    own = str(task.entry_point).startswith("gymnasium.envs.mujoco.") and not task.additional_wrappers
    return own and task.id in IDS


def _check(task: EnvSpec, given: Sequence[str]) -> None:
    """Raise ValueError if only Gymnasium can step a task: an unsupported one, or one with arguments of NOT_TAKEN."""
    refused = ", ".join(name for name in NOT_TAKEN if name in given)
    if not is_own(task) or refused:
        what = f"takes no {refused}" if refused else f"has Gymnasium's {', '.join(IDS)}, and not this {task.id}"
        raise ValueError(f"{MUJOCO} {what}: leave {MUJOCO} out, and Gymnasium steps the environments")
