"""N environments of a MujocoTask: MuJoCo's steps and, between them, the class's functions, compiled like a
KernelEnv's."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box

from headrace.core.packages import require
from headrace.core.text import did_you_mean
from headrace.core.types import Settings, StateDict
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.base import Env, Round
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.gym.columns import action_caster
from headrace.envs.vector.mujoco_simulations import SILENCE, Simulations, check_counts
from headrace.kernels.language.ops import array, f32
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.params import pack_params

SETTABLE = ("qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat", "userdata")  # fields that reset() may set
Task: TypeAlias = Any  # a subclass of MujocoTask
CHANGE, UNSTABLE = "_change", "unstable"  # behind a field's name; and a field of ours, 1 where MuJoCo has reset


class _Values(SimpleNamespace):
    """An environment's parameters, for configure()."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(vars(self)) or "nothing"
        raise ValueError(f"configure() reads p.{name}, and Params has {known}{did_you_mean(name, vars(self))}")


class MujocoTaskEnv(Env):
    """An Env (headrace.envs.base) of N environments of a MujocoTask. Steps have no infos.

    If MuJoCo finds a simulation unstable and resets it, its episode ends with a reward of 0, and a line reports it;
    `unstable` counts these. After load_state_dict() each environment begins a new episode.
    Raises ValueError, FileNotFoundError for a model that MuJoCo refuses and for wrong fields or parameters, EnvError
    (kernels.language.errors) for functions that cannot be compiled, ImportError without MuJoCo.
    """

    backend, device = "vector", torch.device("cpu")

    def __init__(self, task: Task, num_envs: int, params: Settings, num_threads: int | None) -> None:
        check_counts(task.__name__, num_envs=num_envs, num_threads=num_threads, frame_skip=task.frame_skip)
        require("mujoco", f'{task.__name__} needs MuJoCo: pip install "headrace[mujoco]"')
        self.name, self.num_envs, self._task, self.made_params = task.__name__, num_envs, task, dict(params)
        self._model = _model_of(task)
        names = dict.fromkeys(name.removesuffix(CHANGE) for name in task.fields)
        shapes = _shapes(task, self._model, names)
        self.max_steps, self.observation_space = task.max_steps, task.observation_space
        self.action_space = _action_space(task, self._model)
        kinds = (_kernel(task, shapes, self.action_space, step) for step in (_step_of(task), None))
        target, starts = (CpuEnvs(read(kind), num_envs, params) for kind in kinds)
        self._target, self._starts = target, starts  # the functions during an episode, and those at its beginning
        self._threads, self._actions = num_threads, action_caster(self.action_space)
        self._simulations = Simulations(self.name, self._models(params), num_envs, list(names), task.frame_skip)
        self._arrays = {name: value.numpy() for name, value in target.arrays.items()}
        self._begun = {name: value.numpy() for name, value in starts.arrays.items()}
        columns = env_columns(starts.ir.observation_space) | {"action": action_column(self.action_space)}
        self._scratch = Rollout(1, num_envs, columns, "cpu")
        self._initial = {name: np.array(getattr(self._simulations.datas[0], name)) for name in names}
        self._reset_all = False

    @property
    def unstable(self) -> int:
        """Number of times that MuJoCo found a simulation unstable."""
        return self._simulations.unstable

    @property
    def simulations(self) -> list[tuple[Any, Any]]:
        """MuJoCo's mjModel and mjData of each environment, to be read, as mujoco.Renderer does."""
        return [*zip(self._simulations.models, self._simulations.datas, strict=True)]

    def _models(self, params: Settings) -> list[Any]:
        """The mjModels by parameters: one for all, or one for each. Raises ValueError for wrong parameters."""
        ir = self._target.ir
        *packs, per_env = pack_params(ir, params, self.num_envs)
        configure: Callable[[Any, Any], None] | None = getattr(self._task, "configure", None)
        if configure is None:
            return [self._model]
        columns = {kind: iter(pack) for kind, pack in zip((True, False), packs, strict=True)}
        values = {p.name: np.atleast_1d(next(columns[p.dtype == "f32"])) for p in ir.params}
        return [self._configured(configure, values, i) for i in range(self.num_envs if per_env else 1)]

    def _configured(self, configure: Callable[[Any, Any], None], values: Mapping[str, np.ndarray], i: int) -> Any:
        """A copy of the model with environment i's parameters, and the constants that follow from them."""
        import mujoco

        model = copy.copy(self._model)
        configure(model, _Values(**{name: value[i].item() for name, value in values.items()}))
        with SILENCE:
            mujoco.mj_setConst(model, mujoco.MjData(model))
        return model

    def _set_params(self, params: Settings) -> None:
        values = {**self.params, **params}
        self._target.set_params(values)
        self._starts.set_params(values)
        self._simulations.take(self._models(values))

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode everywhere; write observation[0] and valid[0]. The same seed gives the same episodes."""
        self._begin(rollout, seed, self.first_env)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        self._begin(rollout, seed, self.first_env + episodes.first)

    def _begin(self, rollout: Rollout, seed: int, first: int) -> None:
        if "info" in rollout.columns:
            raise ValueError(f"log_info is for environments that give infos, and {self.name} gives none: leave it out")
        self._reset_all, self._target.first_env, self._starts.first_env = False, first, first
        self._prepare(np.arange(self.num_envs))
        self._starts.reset(self._scratch, seed)
        self._place(np.arange(self.num_envs))
        self._show(None, self._simulations.fields)
        self._target.reset(rollout, seed)

    def _prepare(self, envs: np.ndarray) -> None:
        """Set some environments to the model's own state before reset()."""
        for name, initial in self._initial.items():
            self._begun[name][envs] = initial

    def _place(self, envs: np.ndarray) -> None:
        """Copy the fields that reset() has set in some environments to their simulations."""
        for i in envs.tolist():
            self._simulations.begin(i, partial(self._put, i))

    def _put(self, i: int, data: Any) -> None:
        for name in SETTABLE:
            if name in self._begun:
                getattr(data, name)[:] = self._begun[name][i]

    def _show(self, unstable: np.ndarray | None, before: Mapping[str, np.ndarray]) -> None:
        """Copy the simulations' fields for the functions. unstable: bool [N], None for none. before: earlier fields."""
        seen = self._simulations.fields
        for name, column in self._arrays.items():
            if name == UNSTABLE:
                column[:, 0] = 0.0 if unstable is None else unstable
            elif name in seen:
                column[:] = seen[name]
            else:
                column[:] = seen[name.removesuffix(CHANGE)] - before[name.removesuffix(CHANGE)]

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""
        if self._reset_all:
            rollout.valid[t] = self._reset_all = False
        valid = rollout.valid[t].numpy()
        actions = np.ascontiguousarray(self._actions(rollout.action[t].numpy()))
        before = self._simulations.kept()
        unstable = self._simulations.step(actions, np.flatnonzero(valid), self._threads)
        if not valid.all():
            begins = np.flatnonzero(~valid)
            self._prepare(begins)
            self._scratch.valid[0] = rollout.valid[t]
            self._starts.step(self._scratch, 0)
            self._place(begins)
            for name, values in before.items():  # in which nothing has changed yet
                values[begins] = self._simulations.fields[name][begins]
        self._show(unstable, before)
        self._target.step(rollout, t)

    def state_dict(self) -> StateDict:
        """Return an empty state: episodes are not saved."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Begin a new episode everywhere: the next row is masked."""
        self._reset_all = True

    def close(self) -> None:
        """Do nothing: only memory is held."""


def _model_of(task: Task) -> Any:
    """The mjModel of a class. Raises FileNotFoundError, or ValueError with the file and MuJoCo's message."""
    import mujoco

    text = getattr(task, "xml", None)
    if not isinstance(text, str):
        raise ValueError(f"{task.__name__} has no xml: give a file of MuJoCo's, or the text of one")
    is_text = text.lstrip().startswith("<")
    path = Path(inspect.getfile(task)).resolve().parent / Path(text).expanduser() if not is_text else None
    if path is not None and not path.is_file():
        raise FileNotFoundError(f"{task.__name__}.xml names {path}, and there is no such file")
    try:
        with SILENCE:
            if path is not None:
                return mujoco.MjModel.from_xml_path(str(path))
            return mujoco.MjModel.from_xml_string(text)
    except (ValueError, mujoco.FatalError) as error:
        where = f"the xml of {task.__name__}" if path is None else str(path)
        raise ValueError(f"MuJoCo does not take {where}: {' '.join(str(error).split())}") from error


def _shapes(task: Task, model: Any, names: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each of the class's fields. Raises ValueError for a field that mjData does not have."""
    import mujoco

    with SILENCE:
        data = mujoco.MjData(model)
    found = {}
    for name in names:
        value = getattr(data, name, None)
        if not isinstance(value, np.ndarray) or value.dtype != np.float64 or not value.size:
            what = "is empty for this model" if isinstance(value, np.ndarray) and not value.size else "mjData has not"
            raise ValueError(
                f"{task.__name__}.fields has {name!r}, which {what}: give names of its arrays of numbers, such as "
                "qpos, qvel, xpos, site_xpos, sensordata"
            )
        found[name] = value.shape
    return {name: found[name.removesuffix(CHANGE)] for name in task.fields}


def _action_space(task: Task, model: Any) -> Box:
    """The space of the actuators' controls. Raises ValueError for another one."""
    space = task.action_space
    if space is None:
        limited, (low, high) = model.actuator_ctrllimited.astype(bool), model.actuator_ctrlrange.T
        low, high = (np.where(limited, bound, sign * np.inf) for bound, sign in ((low, -1), (high, 1)))
        space = Box(low.astype(np.float32), high.astype(np.float32))
    if not isinstance(space, Box) or space.shape != (model.nu,) or not model.nu:
        raise ValueError(
            f"{task.__name__} has {model.nu} actuators and the action space {space}: give a Box of one number for each"
        )
    return space


def _kernel(task: Task, shapes: Mapping[str, tuple[int, ...]], actions: Box, step: Any) -> type[KernelEnv]:
    """A KernelEnv of the class's functions, whose State has the fields: with reward() and ended(), or, without a
    `step`, with reset() alone."""
    kinds = {name: array(f32, *shape) for name, shape in shapes.items()} | {UNSTABLE: array(f32, 1)}
    own = {name: value for base in reversed(task.__mro__) for name, value in vars(base).items()}
    own = {name: value for name, value in own.items() if not name.startswith("__") or name == "__module__"}
    own |= {"State": NamedTuple("State", kinds.items()), "action_space": actions}  # type: ignore[misc]
    name = task.__name__
    if step is None:
        name = f"{name}.reset"
        own |= {"step": _unchanged, "observe": _nothing, "observation_space": Box(-1, 1, (1,))}
    else:
        own |= {"step": step, "reset": _as_it_is}
    return type(name, (KernelEnv,), own)


def _step_of(task: Task) -> Callable:
    """A KernelEnv's step() of the class's reward() and ended(). Raises ValueError without reward()."""
    if not callable(getattr(task, "reward", None)):
        raise ValueError(f"{task.__name__} has no reward: write `def reward(s, p, action): return ...`")
    reward, ended = task.reward, task.ended

    def step(s, p, action, key):  # type: ignore[no-untyped-def]
        unstable = s.unstable[0] != 0.0
        value = reward(s, p, action)
        return s, 0.0 if unstable else value, unstable or ended(s, p)

    return step


def _unchanged(s, p, action, key):  # type: ignore[no-untyped-def]
    return s, 0.0, False


def _nothing(s, p):  # type: ignore[no-untyped-def]
    return (0.0,)


def _as_it_is(s, p, key):  # type: ignore[no-untyped-def]
    return s
