"""The reference environment of a port: a gymnasium.Env whose state can be read, and perhaps set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, cast

import gymnasium
import numpy as np

from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language import kinds
from headrace.kernels.language.ir import EnvIR

State: TypeAlias = dict[str, np.ndarray]  # by field of a kernel's State, in the kernel's dtypes


class _HasState(Protocol):
    state: Sequence[float] | np.ndarray


class Reference:
    """The reference of a kernel, with its state in the fields and dtypes of the kernel's State.

    env: the environment, after a reset. If the kernel's class has from_original(env), this function reads the state of
    the unwrapped environment, and to_original(env, state), if present, sets it. Without from_original the numbers of
    `env.state` are the fields of State in order, as in Gymnasium's classic control, and can be set.
    Raises TypeError if the state cannot be read.
    """

    def __init__(self, source: EnvIR, env: gymnasium.Env) -> None:
        self.source, self.env = source, env.unwrapped
        self._plain = cast(_HasState, self.env)
        self._read: Callable[[gymnasium.Env], Iterable[float | np.ndarray]] | None
        self._read = getattr(source.cls, "from_original", None)
        self._write: Callable[[gymnasium.Env, tuple[np.ndarray, ...]], None] | None
        self._write = getattr(source.cls, "to_original", None)
        self.settable = self._write is not None or self._read is None
        numbers = getattr(self.env, "state", ())
        if self._read is None and (source.arrays or np.shape(numbers) != (len(source.state),)):
            raise TypeError(self._remedy())

    def state(self) -> State:
        """The current state."""
        values = self._plain.state if self._read is None else self._read(self.env)
        pairs = zip(self.source.state, values, strict=True)
        return {field.name: np.asarray(value).astype(kinds.STORAGE[field.dtype]) for field, value in pairs}

    def set(self, state: State) -> None:
        """Set a state that state() returned."""
        if self._write is not None:
            self._write(self.env, cast(type[KernelEnv], self.source.cls).State(**state))
            return
        numbers = [float(value) for value in state.values()]
        self._plain.state = np.array(numbers) if isinstance(self._plain.state, np.ndarray) else tuple(numbers)

    def _remedy(self) -> str:
        name, fields = self.source.cls.__name__, ", ".join(field.name for field in self.source.state)
        return (
            f"the state of {self.env} cannot be read as {name}.State({fields}): its attribute `state` does not hold "
            f"these numbers. Give {name} a function from_original(env), which returns the State of the unwrapped "
            "reference, and, if possible, to_original(env, state), which sets it"
        )
