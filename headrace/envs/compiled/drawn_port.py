"""A port with parameters of its own, drawn by the Gymnasium environment that it is a port of."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace.core.types import Json, Settings
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.single_env import Single


class DrawnPort(Single):
    """A KernelEnv in plain Python, whose state the reference draws: that has parameters which differ.

    Raises TypeError where the reference keeps its state in another form than the port.
    """

    def __init__(self, cls: type[KernelEnv], params: Settings, render_mode: str | None = None) -> None:
        super().__init__(cls, params)
        assert cls.gymnasium_id is not None
        self._reference = gymnasium.make(cls.gymnasium_id, render_mode=render_mode)
        self.render_mode, self.metadata = render_mode, self._reference.metadata  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[np.ndarray, Json]:
        """As Single."""
        self._reference.reset(seed=seed)
        return super().reset(seed=seed, options=options)

    def render(self) -> Any:
        """The reference's image of the port's state."""
        own: Any = self._reference.unwrapped
        known: Any = getattr(own, "state", None)
        if np.shape(known) != (len(self.state),):
            raise TypeError(f"{self._reference} keeps its state in another form than {self.cls.__name__}: no images")
        own.state = np.array(self.state, np.float64)
        return self._reference.render()

    def close(self) -> None:
        """Close the reference."""
        self._reference.close()
