"""The original of a kernel: a gymnasium.Env whose state can be read, and perhaps set."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace.kernels.language import kinds
from headrace.kernels.language.ir import EnvIR


class Original:
    """A world whose state is seen as a kernel's State, in the dtypes in which the kernel keeps it.

    Where the kernel's class has from_original(env), that reads the state of `env`, the world without its wrappers; and
    to_original(env, state), where it is there too, sets it. Without them the numbers of `env.state` are the fields of
    State in their order, as in Gymnasium's classic control, and can be set.
    The world has been reset. Raises TypeError where nothing tells how its state is read.
    """

    def __init__(self, source: EnvIR, world: gymnasium.Env) -> None:
        self.source, self.env = source, world.unwrapped
        self.cls: Any = source.cls
        self._reads = hasattr(self.cls, "from_original")
        self.settable = hasattr(self.cls, "to_original") or not self._reads
        numbers: Any = getattr(self.env, "state", ())
        if not self._reads and (source.arrays or np.shape(numbers) != (len(source.state),)):
            raise TypeError(self._remedy())

    def state(self) -> Any:
        """The state now, as the kernel would keep it."""
        env: Any = self.env
        given = self.cls.from_original(env) if self._reads else env.state
        pairs = zip(self.source.state, given, strict=True)
        return self.cls.State(*(np.asarray(value).astype(kinds.STORAGE[field.dtype]) for field, value in pairs))

    def set(self, state: Any) -> None:
        """Put the world into a state that state() gave."""
        env: Any = self.env
        if hasattr(self.cls, "to_original"):
            self.cls.to_original(env, state)
        else:
            numbers = [float(value) for value in state]
            env.state = np.array(numbers) if isinstance(env.state, np.ndarray) else tuple(numbers)

    def _remedy(self) -> str:
        name, fields = self.cls.__name__, ", ".join(field.name for field in self.source.state)
        return (
            f"the state of {self.env} cannot be read as {name}.State({fields}): its attribute `state` is not these "
            f"numbers. Give {name} a function from_original(env), which makes a State of the unwrapped original; and, "
            "where it can be done, to_original(env, state), which sets it"
        )
