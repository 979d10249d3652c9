"""A library's environments in two halves: one steps while the policy acts for the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from headrace.core.types import StateDict
from headrace.data.rollout import Rollout
from headrace.envs.base import AsyncEnv
from headrace.envs.vector.adapter import Source, VectorAdapter


class HalvesEnv(VectorAdapter, AsyncEnv):
    """An AsyncEnv (headrace.envs.base) of a Source whose steps release Python's lock.

    make_source: makes a Source of a number of environments. They step together until make_async() is called. Afterwards
    `parts` are two halves, each with its own Source and thread. The episodes are the same.
    """

    def __init__(self, make_source: Callable[[int], Source], num_envs: int, ignore: Sequence[str] = ()) -> None:
        super().__init__(make_source(num_envs), ignore=ignore)
        middle = num_envs // 2
        self.parts = [slice(0, middle), slice(middle, num_envs)][num_envs == 1 :]
        self._make_source = make_source
        self._halves: list[VectorAdapter] = []  # none before make_async()
        self._stepping: dict[Future, int] = {}  # the step of a part -> its number
        self._views: tuple[Rollout, list[Rollout]] | None = None  # a rollout, and its columns for each part
        self._threads = ThreadPoolExecutor(len(self.parts))

    def make_async(self) -> None:
        """Step each half on its own from the next reset() on, which must come before the next step."""
        self._halves = [
            VectorAdapter(self._make_source(part.stop - part.start), ignore=self._ignored) for part in self.parts
        ]
        self.source.close()

    def _begin_all(self, rollout: Rollout, seed: int, first: int) -> None:
        if not self._halves:
            super()._begin_all(rollout, seed, first)
            return
        self._forget()
        for half, part, view in zip(self._halves, self.parts, self._viewed(rollout), strict=True):
            half._begin_all(view, seed, first + part.start)

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""
        if not self._halves:
            super().step(rollout, t)
            return
        self._finish()
        for part in range(len(self.parts)):
            self.start(rollout, t, part)
        self._finish()

    def start(self, rollout: Rollout, t: int, part: int) -> None:
        """Start the step of a half from row t, and do not wait for it.

        Raises ValueError for a half that is still at a step, and before make_async().
        """
        if not self._halves:
            raise ValueError(f"the environments of {self.name} step together: call make_async() and reset()")
        if part in self._stepping.values():
            raise ValueError(f"part {part} is still at a step: get() tells when it is ready")
        view = self._viewed(rollout)[part]
        self._stepping[self._threads.submit(self._halves[part].step, view, t)] = part

    def get(self, timeout: float | None = None) -> list[int]:
        """The halves that have finished their step, as soon as there is one; none after `timeout` seconds, or where
        none was started. Raises what a step raised."""
        done = wait(self._stepping, timeout, FIRST_COMPLETED).done
        parts = sorted(self._stepping.pop(step) for step in done)
        for step in done:
            step.result()
        return parts

    def _viewed(self, rollout: Rollout) -> list[Rollout]:
        """The columns of each part in a rollout."""
        if self._views is None or self._views[0] is not rollout:
            self._views = rollout, [rollout[:, part] for part in self.parts]
        return self._views[1]

    def _finish(self) -> None:
        """Wait until no part is at a step."""
        while self._stepping:
            self.get()

    def _forget(self) -> None:
        """Wait for steps, whose results are not used."""
        while self._stepping:
            with suppress(Exception):
                self.get()

    def load_state_dict(self, state: StateDict) -> None:
        """Begin a new episode everywhere: the next row is masked."""
        self._finish()
        for env in self._halves:
            env.load_state_dict(state)
        super().load_state_dict(state)

    def close(self) -> None:
        """Close the environments, after the steps that they are at."""
        self._forget()
        self._threads.shutdown()
        for env in self._halves:
            env.close()
        super().close()
