"""Many simulations of MuJoCo, stepped by compiled loops over its library in threads."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from numbers import Integral
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

from headrace.core.cores import cores
from headrace.core.terminal import tell
from headrace.envs.vector.mujoco_models import without_islands
from headrace.kernels.physics.mujoco_errors import UNSTABLE, Guards
from headrace.kernels.physics.mujoco_errors import functions as guarding
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call, Native
from headrace.kernels.runtime.thread_pool import WORKERS, WorkQueue, queue_state

ANNOUNCEMENT = "compiling steps of MuJoCo (once, about 2 s) ..."
ENVS_PER_THREAD = 16  # with fewer, threads waiting for each other use more CPU time than they save
Fields: TypeAlias = Mapping[str, np.ndarray]  # of mjData, [N, ...]


class Simulations:
    """Simulations of models with the same sizes: an mjData for each, and copies of some of its fields.

    models: one for all, or one for each. repeats: calls of mj_step in a step. name: of the environments, in errors.
    fields: name -> [N, ...], after the last step, or the last begin() of a simulation.
    unstable: how many times MuJoCo found a simulation unstable, and reset it.
    """

    def __init__(self, name: str, models: Sequence[Any], count: int, names: Sequence[str], repeats: int) -> None:
        import mujoco

        self._mujoco, self.name, self.unstable = mujoco, name, 0
        with SILENCE:
            self.datas = [mujoco.MjData(models[i % len(models)]) for i in range(count)]
        self._model_addresses = np.zeros(count, np.uint64)
        self.take(models)
        self._threads = min(cores(), max(1, count // ENVS_PER_THREAD))
        self._queue, self._guards = WorkQueue(), Guards(WORKERS)
        weakref.finalize(self, self._guards.close)
        self._parts = [[*(getattr(data, name) for name in names), _warnings(data)] for data in self.datas]
        shapes = {name: part.shape for name, part in zip(names, self._parts[0], strict=False)}
        sizes = [part.size for part in self._parts[0]]
        self._places = {
            name: (slice(end - size, end), shapes[name])
            for name, size, end in zip(names, sizes, accumulate(sizes), strict=False)
        }
        self._copied, self._actions = np.zeros((count, sum(sizes))), np.zeros((count, self.models[0].nu))
        self._before = np.zeros_like(self._copied)
        self.fields, self._fields_before = self._split(self._copied), self._split(self._before)
        self._due, self._ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        addresses = [[part.ctypes.data for part in parts] for parts in self._parts]
        given = (
            np.array(_called(names), np.uint64),
            self._model_addresses,
            np.array([data._address for data in self.datas], np.uint64),
            np.array([data.ctrl.ctypes.data for data in self.datas], np.uint64),
            self._actions,
            np.ascontiguousarray(np.array(addresses, np.uint64).T),
            np.array(sizes, np.uint64),
            self._copied,
            sum(sizes[:-1]) + _resets(),
            self._due,
            np.uint64(repeats),
            np.uint64(guarding()[0]),
            np.uint64(self._guards.address),
            self._ends,
        )
        arguments = (0, queue_state(), np.uint64(count), given)
        self._call = Call(entry("physics.mujoco_steps", "step", arguments, ANNOUNCEMENT), arguments)
        self._count = self._call.slot(2)

    def take(self, models: Sequence[Any]) -> None:
        """Step by other models of the same sizes from now on: one for all, or one for each."""
        for model in models:
            without_islands(model)
        self.models = [models[i % len(models)] for i in range(len(self.datas))]
        self._model_addresses[:] = [model._address for model in self.models]

    def _split(self, copied: np.ndarray) -> Fields:
        """Views of the fields, by name."""
        return {name: copied[:, part].reshape(-1, *shape) for name, (part, shape) in self._places.items()}

    def kept(self) -> Fields:
        """A copy of the present fields, which is valid until the next call."""
        np.copyto(self._before, self._copied)
        return self._fields_before

    def begin(self, i: int, change: Callable[[Any], None]) -> None:
        """Reset a simulation, let a function change its mjData, and compute the fields that depend on the change."""
        data = self.datas[i]
        with SILENCE, _naming(self.name, i):
            self._mujoco.mj_resetData(self.models[i], data)
            change(data)
            self._mujoco.mj_forward(self.models[i], data)
        np.concatenate([part.ravel() for part in self._parts[i]], out=self._copied[i])

    def step(self, actions: np.ndarray, due: np.ndarray, threads: int | None) -> np.ndarray | None:
        """Step the simulations with the numbers `due`. Returns a mask of those that MuJoCo found unstable, bool [N].

        Returns None if there are none. threads: None for one per ENVS_PER_THREAD simulations, up to the number of
        cores.

        Raises ValueError for actions that are not finite, mujoco.FatalError for an error of MuJoCo.
        """
        if not np.isfinite(actions).all():
            self._check(actions, due)
        self._actions[:], self._due[: len(due)] = actions, due
        self._call.put(self._count, len(due))
        self._ends.fill(0)
        if len(due):
            with SILENCE:
                self._queue.run(self._call, min(threads or self._threads, len(due)))
        return self._unstable() if self._ends.any() else None

    def _check(self, actions: np.ndarray, due: np.ndarray) -> None:
        """Raise ValueError if actions of simulations to be stepped are not finite."""
        wrong = due[~np.isfinite(actions[due]).all(1)]
        if len(wrong):
            i = wrong[0]
            raise ValueError(f"the action of environment {i} of {self.name} is {actions[i].tolist()}")

    def _unstable(self) -> np.ndarray:
        """Return which simulations MuJoCo has reset; raise what it said of the first one that it could not step."""
        unstable: np.ndarray = self._ends == UNSTABLE
        if failed := np.flatnonzero(self._ends > 0).tolist():
            text = self._guards.text(int(self._ends[failed[0]]) - 1)
            raise self._mujoco.FatalError(f"environment {failed[0]} of {self.name}: {text}")
        before, self.unstable = self.unstable, self.unstable + int(unstable.sum())
        if before.bit_length() == self.unstable.bit_length():
            return unstable
        numbers = ", ".join(map(str, np.flatnonzero(unstable)))
        tell(
            f"{self.name}: MuJoCo found the simulation of environment {numbers} unstable and reset it, which ends "
            f"its episode ({self.unstable} so far)"
        )
        return unstable


def check_counts(name: str, **counts: Any) -> None:
    """Raise ValueError for an argument of an environment that has to be a whole number above 0, or None."""
    for argument, value in counts.items():
        if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
            raise ValueError(f"{argument} of {name} is {value!r}: give a whole number of at least 1")


@contextmanager
def _naming(name: str, i: int) -> Iterator[None]:
    """Name the environment in a fatal error of MuJoCo's."""
    import mujoco

    try:
        yield
    except mujoco.FatalError as error:
        raise mujoco.FatalError(f"environment {i} of {name}: {error}") from error


class _Silence:
    """Replace three of MuJoCo's functions within this block: warnings, which it would print and write to a file in
    the working folder; fatal errors, which would end the process; and timers, which take a tenth of a step. The
    functions belong to the process: the first of several blocks in several threads replaces them, and the last one
    restores them."""

    def __init__(self) -> None:
        self._blocks, self._before, self._lock = 0, list[int | None](), Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._before = [place.value for place in _handlers()]
                warning, error, clock = _handlers()
                warning.value, error.value, clock.value = _silent().address, guarding()[1] or error.value, None
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                for place, function in zip(_handlers(), self._before, strict=True):
                    place.value = function


SILENCE = _Silence()


@cache
def _library() -> ctypes.CDLL:
    """MuJoCo's own library, which the package has loaded already."""
    import mujoco

    folder = Path(mujoco.__file__).parent
    found = [path for name in ("libmujoco*.so*", "libmujoco*.dylib", "mujoco*.dll") for path in folder.glob(name)]
    if not found:
        raise ImportError(f"{folder} has no libmujoco: install the package mujoco from a wheel")
    return ctypes.CDLL(str(found[0]))


def _called(names: Sequence[str]) -> list[int]:
    """The addresses of the functions of a step. The one for contact forces is left out if nothing reads them."""
    functions = ("mj_step", "mj_rnePostConstraint") if "cfrc_ext" in names else ("mj_step",)
    return [ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0 for name in functions]


@cache
def _silent() -> Native:
    """A function that does nothing, in place of MuJoCo's for warnings."""
    return entry("physics.mujoco_steps", "silent", (0,), ANNOUNCEMENT)


@cache
def _handlers() -> tuple[ctypes.c_void_p, ...]:
    """The variables with MuJoCo's functions for warnings, for fatal errors, and for the time."""
    names = ("mju_user_warning", "mju_user_error", "mjcb_time")
    return tuple(ctypes.c_void_p.in_dll(_library(), name) for name in names)


def _resets() -> np.ndarray:
    """The kinds of warnings that say that MuJoCo has reset a simulation, int64 [3]."""
    import mujoco

    kinds = mujoco.mjtWarning
    return np.array([int(kind) for kind in (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC)])


def _warnings(data: Any) -> np.ndarray:
    """The counts of MuJoCo's warnings in an mjData as float64 [kinds], which are copied with the fields. Each has the
    bits of two int32: the last warning's number and the count."""
    counts = data.warning.number
    assert counts.dtype == np.int32 and counts.strides == (8,)
    pairs = (ctypes.c_double * len(counts)).from_address(counts.ctypes.data - 4)
    return np.ctypeslib.as_array(pairs)
