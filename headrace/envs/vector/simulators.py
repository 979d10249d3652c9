"""Simulators that step many worlds at once on a device, and hand over tensors: torch's, or any by DLPack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.data.spaces import Box, Space
from headrace.envs.vector.adapter import Autoreset, Outcome


class Simulator(Protocol):
    """What a simulator has to bring. Arrays are torch tensors on its device, or speak DLPack; observations may be dicts
    of them.

    Optional: `name`; `max_steps`, after which it truncates; `autoreset`, "NextStep" where the step after an ending
    resets that world (as is assumed), "SameStep" where the step that ends an episode begins the next one, or
    "Disabled"; `reset_some(mask)`, which resets the worlds of a mask, bool [N], and gives observations [N, ...], of
    which those count ("Disabled" needs it); `close()`.
    """

    num_envs: int
    device: Any  # of torch
    observation_space: Space  # of one world
    action_space: Space  # of one world

    def reset(self, seed: int | None) -> Any:
        """Begin an episode in every world, the same ones for the same seed; give observations [N, ...]."""

    def step(self, action: Tensor) -> tuple[Any, ...]:
        """Step every world. action: int64 [N], int64 [N, K], or float32 [N, K] within the bounds of its space;
        contiguous, on the device. Gives observation [N, ...], reward [N], terminated [N], truncated [N]; with
        "SameStep" also what was seen last, [N, ...], of which the worlds count that ended.
        """


class SimulatorSource:
    """A Simulator as envs.vector.adapter.VectorAdapter asks for it. Raises TypeError for one that lacks something."""

    def __init__(self, simulator: Any, name: str | None = None) -> None:
        needed = ("num_envs", "device", "observation_space", "action_space", "reset", "step")
        missing = [member for member in needed if not hasattr(simulator, member)]
        if missing:
            raise TypeError(
                f"{simulator!r} has no {', '.join(missing)}: envs.vector.simulators.Simulator says what one brings"
            )
        self.simulator = simulator
        self.name = getattr(simulator, "name", None) or name or type(simulator).__name__
        self.num_envs, self.device = int(simulator.num_envs), torch.device(simulator.device)
        self.observation_space, self.action_space = simulator.observation_space, simulator.action_space
        self.max_steps: int | None = getattr(simulator, "max_steps", None)
        self.autoreset = Autoreset(getattr(simulator, "autoreset", Autoreset.NEXT_STEP))
        self.resets_some = hasattr(simulator, "reset_some")
        if self.autoreset is Autoreset.DISABLED and not self.resets_some:
            raise TypeError(f"{self.name} never resets its worlds itself, and has no reset_some(mask) either")
        self._actions = _actions(self.action_space, self.device)

    def reset(self, seed: int | None) -> Any:
        return self.simulator.reset(seed)

    def reset_some(self, mask: Tensor) -> Any:
        return self.simulator.reset_some(mask)

    def step(self, action: Tensor) -> Outcome:
        return Outcome(*self.simulator.step(self._actions(action)))

    def close(self) -> None:
        if hasattr(self.simulator, "close"):
            self.simulator.close()


def _actions(space: Space, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function from a row of the action column to actions as a simulator gets them."""
    if not isinstance(space, Box):
        return lambda row: row.to(torch.int64).contiguous()
    low, high = (torch.as_tensor(bound, dtype=torch.float32, device=device) for bound in (space.low, space.high))
    return lambda row: row.clamp(low, high).contiguous()
