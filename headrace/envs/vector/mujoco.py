"""Gymnasium's MuJoCo tasks as a Source of headrace.envs.vector.adapter: stepped by compiled loops over libmujoco."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.utils.seeding import np_random
from torch import Tensor

from headrace.core.rng import env_seed
from headrace.core.terminal import tell
from headrace.data.spaces import Sample
from headrace.envs.gym.columns import action_caster
from headrace.envs.sources import MUJOCO, EnvSpec, installs_named, mujoco_warns_once
from headrace.envs.vector.adapter import Autoreset, Outcome, threads
from headrace.envs.vector.mujoco_tasks import TASKS, Fields, Task
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call, Native
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state

ANNOUNCEMENT = "compiling steps of MuJoCo (once, about 2 s) ..."
IDS = tuple(f"{name.removesuffix('Env')}-v5" for name in TASKS)
NOT_TAKEN = ("xml_file", "render_mode")  # arguments of Gymnasium's classes that are not for many simulations


class MujocoSource:
    """A task of Gymnasium (v5), by its id, with the episodes of gymnasium.make(id): the same seeds, observations and
    endings, and rewards within rounding. Steps have no infos.

    task: Gymnasium's spec of it. options: of gymnasium.make. num_threads: of the steps; results do not depend on it.
    A simulation that MuJoCo finds unstable and resets ends its episode, where Gymnasium goes on; `unstable` counts
    them.
    Raises ImportError without mujoco, ValueError for other tasks and for a model or a rendering of the user's own.
    """

    device = torch.device("cpu")
    autoreset = Autoreset.NEXT_STEP
    resets_some = True

    def __init__(self, task: EnvSpec, num_envs: int, num_threads: int | None = None, **options: Any) -> None:
        _check(task, [*task.kwargs, *options])
        with mujoco_warns_once(task), installs_named(MUJOCO + task.id, task):
            made = gymnasium.make(task, **options)
        import mujoco

        self.env = cast(Any, made.unwrapped)
        self.name, self.num_envs = MUJOCO + task.id, num_envs
        self.max_steps: int | None = made.spec.max_episode_steps if made.spec is not None else None
        self.observation_space, self.action_space = made.observation_space, made.action_space
        self.unstable = 0
        warnings = mujoco.mjtWarning
        self._resets = [int(x) for x in (warnings.mjWARN_BADQPOS, warnings.mjWARN_BADQVEL, warnings.mjWARN_BADQACC)]
        self._mujoco, self._task = mujoco, TASKS[type(self.env).__name__]
        self._datas = [mujoco.MjData(self.env.model) for _ in range(num_envs)]
        self._simulations = _Simulations(self.env, self._task, self._datas, num_threads or threads(num_envs))
        self._actions = action_caster(self.action_space)
        self._random = [np_random()[0] for _ in range(num_envs)]
        self._steps, self._times = np.zeros(num_envs, np.int64), np.zeros(num_envs)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int | None, first: int = 0) -> Sample:
        if seed is not None:
            self._random = [np_random(env_seed(seed, first + i))[0] for i in range(self.num_envs)]
        self._begin(np.arange(self.num_envs))
        return self._task.observe(self.env, self._simulations.fields)

    def reset_some(self, mask: Tensor) -> Sample:
        self._begin(np.flatnonzero(mask.numpy()))
        return self._task.observe(self.env, self._simulations.fields)

    def _begin(self, envs: np.ndarray) -> None:
        """Begin an episode in some environments."""
        for i in envs.tolist():
            data = self._datas[i]
            self._mujoco.mj_resetData(self.env.model, data)
            data.qpos[:], data.qvel[:] = self._task.begin(self.env, self._random[i])
            self._mujoco.mj_forward(self.env.model, data)
            self._simulations.copy(i)
        self._steps[envs], self._times[envs], self._ended[envs] = 0, 0.0, False

    def step(self, action: Tensor) -> Outcome:
        actions = np.ascontiguousarray(self._actions(action.numpy()))
        begins, goes_on = self._ended.copy(), np.flatnonzero(~self._ended)
        if not np.isfinite(actions[goes_on]).all():
            wrong = goes_on[~np.isfinite(actions[goes_on]).all(1)][0]
            raise ValueError(f"the action of environment {wrong} of {self.name} is {actions[wrong].tolist()}")
        before = self._simulations.kept()
        self._simulations.step(actions, goes_on)
        reward, terminated = self._task.judge(self.env, before, self._simulations.fields, actions)
        unstable = self._unstable()
        terminated = (terminated | unstable) & ~begins
        self._steps += 1
        truncated = (self._steps >= (self.max_steps or np.inf)) & ~begins
        if begins.any():
            self._begin(np.flatnonzero(begins))
        self._ended = terminated | truncated
        seen = self._task.observe(self.env, self._simulations.fields)
        return Outcome(seen, np.where(begins | unstable, 0.0, reward), terminated, truncated)

    def _unstable(self) -> np.ndarray:
        """Simulations that MuJoCo has reset in this step, bool [N]: their time has begun again.

        MuJoCo counts that, which takes longer to read: where an episode has begun, time alone does not tell."""
        times = np.array([data.time for data in self._datas])
        found = (times < self._times + 0.5 * self.env.dt) | (self._steps == 0)
        self._times = times
        for i in np.flatnonzero(found).tolist():
            found[i] = self._datas[i].warning.number[self._resets].any()
        found &= ~self._ended  # of which no step is used
        if found.any():
            self.unstable += int(found.sum())
            numbers = ", ".join(map(str, np.flatnonzero(found)))
            tell(
                f"{self.name}: MuJoCo found the simulation of environment {numbers} unstable and reset it, which ends "
                f"its episode ({self.unstable} so far)"
            )
        return found

    def close(self) -> None:
        self.env.close()


class _Simulations:
    """The steps of many mjData of one model, and copies of some of their fields.

    fields: name -> [N, ...], after the last step, or the last copy() of a simulation.
    """

    def __init__(self, env: Any, task: Task, datas: list[Any], num_threads: int) -> None:
        self.threads, self._queue, count = num_threads, WorkQueue(), len(datas)
        self._parts = [[getattr(data, name) for name in task.fields] for data in datas]
        shapes = {name: part.shape for name, part in zip(task.fields, self._parts[0], strict=True)}
        sizes = [part.size for part in self._parts[0]]
        self._places = {
            name: (slice(end - size, end), shapes[name])
            for name, size, end in zip(task.fields, sizes, accumulate(sizes), strict=True)
        }
        self._copied, self._actions = np.zeros((count, sum(sizes))), np.zeros((count, env.model.nu))
        self._due, self.fields = np.zeros(count, np.int64), self._split(self._copied)
        addresses = [[part.ctypes.data for part in parts] for parts in self._parts]
        given = (
            np.array(_called(task), np.uint64),
            np.uint64(env.model._address),
            np.array([data._address for data in datas], np.uint64),
            np.array([data.ctrl.ctypes.data for data in datas], np.uint64),
            self._actions,
            np.ascontiguousarray(np.array(addresses, np.uint64).T),
            np.array(sizes, np.uint64),
            self._copied,
            self._due,
            np.uint64(env.frame_skip),
        )
        arguments = (0, queue_state(), np.uint64(count), given)
        self._call = Call(entry("physics.mujoco_steps", "step", arguments, ANNOUNCEMENT), arguments)
        self._count = self._call.slot(2)

    def _split(self, copied: np.ndarray) -> Fields:
        """Views of the fields, by name."""
        return {name: copied[:, part].reshape(-1, *shape) for name, (part, shape) in self._places.items()}

    def kept(self) -> Fields:
        """The fields as they are now, which later steps do not change."""
        return self._split(self._copied.copy())

    def copy(self, i: int) -> None:
        """Take over the fields of a simulation that others have changed."""
        np.concatenate([part.ravel() for part in self._parts[i]], out=self._copied[i])

    def step(self, actions: np.ndarray, due: np.ndarray) -> None:
        """Step the simulations of the numbers `due`."""
        self._actions[:], self._due[: len(due)] = actions, due
        self._call.put(self._count, len(due))
        if len(due):
            with SILENCE:
                self._queue.run(self._call, min(self.threads, len(due)))


class _Silence:
    """A block without MuJoCo's warnings, which it would print, and write to a file in the working folder. They are the
    process's: the first of several blocks in several threads switches them off, and the last on."""

    def __init__(self) -> None:
        self._blocks, self._before, self._lock = 0, cast("int | None", None), Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                warning = _warning()
                self._before, warning.value = warning.value, _silent().address
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                _warning().value = self._before


SILENCE = _Silence()


def _check(task: EnvSpec, given: Sequence[str]) -> None:
    """Raise ValueError where Gymnasium has to step a task: another one, one that a user has registered in its place or
    in wrappers, or with arguments of NOT_TAKEN."""
    own = str(task.entry_point).startswith("gymnasium.envs.mujoco.") and not task.additional_wrappers
    refused = ", ".join(name for name in NOT_TAKEN if name in given)
    if task.id not in IDS or not own or refused:
        what = f"takes no {refused}" if refused else f"has Gymnasium's {', '.join(IDS)}, and not this {task.id}"
        raise ValueError(f"{MUJOCO} {what}: leave {MUJOCO} out, and Gymnasium steps the environments")


@cache
def _library() -> ctypes.CDLL:
    """MuJoCo's own library, which the package has loaded already."""
    import mujoco

    folder = Path(mujoco.__file__).parent
    found = [path for name in ("libmujoco*.so*", "libmujoco*.dylib", "mujoco*.dll") for path in folder.glob(name)]
    if not found:
        raise ImportError(f"{folder} has no libmujoco: install the package mujoco from a wheel")
    return ctypes.CDLL(str(found[0]))


def _called(task: Task) -> list[int]:
    """The addresses of the functions that make a step: what computes forces is left out where nothing reads them."""
    names = ("mj_step", "mj_rnePostConstraint") if "cfrc_ext" in task.fields else ("mj_step",)
    return [ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0 for name in names]


@cache
def _silent() -> Native:
    """A function that does nothing, in place of MuJoCo's for warnings."""
    return entry("physics.mujoco_steps", "silent", (0,), ANNOUNCEMENT)


@cache
def _warning() -> ctypes.c_void_p:
    """The address of the function that MuJoCo calls for a warning."""
    return ctypes.c_void_p.in_dll(_library(), "mju_user_warning")
