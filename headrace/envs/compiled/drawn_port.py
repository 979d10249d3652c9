"""A port with changed parameters, whose reference environment draws the images."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace.core.types import Json, Settings
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.single_env import Single


class DrawnPort(gymnasium.Wrapper):
    """A compiled KernelEnv whose state its reference draws, since the reference has other parameters.

    render() raises TypeError if the reference keeps its state in another form than the port.
    """

    def __init__(self, cls: type[KernelEnv], params: Settings, render_mode: str | None = None) -> None:
        self.port = Single(cls, params, compiled=True)
        super().__init__(self.port)
        assert cls.gymnasium_id is not None
        self._reference = gymnasium.make(cls.gymnasium_id, render_mode=render_mode)
        self.metadata, self.port.render_mode = self._reference.metadata, render_mode

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Any, Json]:
        """Begin an episode of both."""
        self._reference.reset(seed=seed)
        return super().reset(seed=seed, options=options)

    def render(self) -> Any:
        """The reference's image of the port's state."""
        own: Any = self._reference.unwrapped
        state = self.port.state
        known: Any = getattr(own, "state", None)
        if np.shape(known) != (len(state),):
            raise TypeError(f"{own} keeps its state in another form than {self.port.cls.__name__}: no images")
        own.state = np.array(state, np.float64)
        return self._reference.render()

    def close(self) -> None:
        """Close both."""
        self._reference.close()
        super().close()
