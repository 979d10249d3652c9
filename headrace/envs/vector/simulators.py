"""Simulators that step many environments at once on a device, with tensors of torch, or of others by DLPack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.data.spaces import Box, Sample, Space
from headrace.envs.vector.adapter import Autoreset, Outcome
from headrace.envs.vector.terms import Terms


class Simulator(Protocol):
    """The interface of a simulator. Arrays are torch tensors on its device, or have DLPack; observations may be dicts
    of them.

    Optional: `name`; `max_steps`, after which it truncates; `autoreset`, "NextStep" where the step after an ending
    resets that environment (the default), "SameStep" where the step that ends an episode begins the next one, or
    "Disabled"; `reset_some(mask)`, which resets the environments of a mask, bool [N], or `reset_ids(ids)`, those of
    numbers, int64 [k]. Both return observations [N, ...]; only those of the reset environments are used. They are
    called once per episode, if there are environments to reset. "Disabled" needs one of them. `close()`. `log`: numbers
    by name, such as terms of the reward, of the last call of step() or of one that reset some; a run logs the mean of
    each iteration. `single`: true where a process may have one simulator only, so that evaluations are in that of the
    training.
    """

    num_envs: int
    device: torch.device | str
    observation_space: Space  # of one environment
    action_space: Space  # of one environment

    def reset(self, seed: int | None) -> Sample:
        """Begin an episode in every environment, the same ones for the same seed; return observations [N, ...]."""

    def step(self, action: Tensor) -> tuple[Sample, ...]:
        """Step every environment. action: int64 [N], int64 [N, K], or float32 [N, K] within the bounds of its space;
        contiguous, on the device. Returns observation [N, ...], reward [N], terminated [N], truncated [N]; with
        "SameStep" also the final observations, [N, ...], valid where an episode ended, where the simulator has them.
        """


class SimulatorSource:
    """A Simulator as a Source of envs.vector.adapter. Raises TypeError for an incomplete one."""

    def __init__(self, simulator: Any, name: str | None = None) -> None:
        needed = ("num_envs", "device", "observation_space", "action_space", "reset", "step")
        missing = [member for member in needed if not hasattr(simulator, member)]
        if missing:
            raise TypeError(f"{simulator!r} has no {', '.join(missing)}: see envs.vector.simulators.Simulator")
        self.simulator = simulator
        self.name = getattr(simulator, "name", None) or name or type(simulator).__name__
        self.num_envs, self.device = int(simulator.num_envs), torch.device(simulator.device)
        self.observation_space, self.action_space = simulator.observation_space, simulator.action_space
        self.max_steps: int | None = getattr(simulator, "max_steps", None)
        self.autoreset = Autoreset(getattr(simulator, "autoreset", Autoreset.NEXT_STEP))
        self.single = bool(getattr(simulator, "single", False))
        self._by_mask = hasattr(simulator, "reset_some")
        self.resets_some = self._by_mask or hasattr(simulator, "reset_ids")
        if self.autoreset is Autoreset.DISABLED and not self.resets_some:
            raise TypeError(
                f"{self.name} never resets its environments itself, and has neither reset_some(mask) nor reset_ids(ids)"
            )
        self._actions, self.terms = _actions(self.action_space, self.device), Terms(self.device)

    def reset(self, seed: int | None, first: int = 0) -> Sample:
        return self.simulator.reset(None if seed is None else seed + first)

    def reset_some(self, mask: Tensor) -> Sample:
        by_ids = not self._by_mask
        first = self.simulator.reset_ids(mask.nonzero().flatten()) if by_ids else self.simulator.reset_some(mask)
        self.terms.add(getattr(self.simulator, "log", None))
        return first

    def step(self, action: Tensor) -> Outcome:
        outcome = Outcome(*self.simulator.step(self._actions(action)))
        self.terms.add(getattr(self.simulator, "log", None))
        return outcome

    def close(self) -> None:
        if hasattr(self.simulator, "close"):
            self.simulator.close()


def _actions(space: Space, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function from a row of the action column to the simulator's actions."""
    if not isinstance(space, Box):
        return lambda row: row.to(torch.int64).contiguous()
    low, high = (torch.as_tensor(bound, dtype=torch.float32, device=device) for bound in (space.low, space.high))
    return lambda row: row.clamp(low, high).contiguous()
