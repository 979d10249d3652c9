"""A collector in the learner's process that acts with a copy of the policy: on another device, or while it learns."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

import torch

from headrace.core.device import torch_threads, without_denormals
from headrace.core.precision import computing
from headrace.core.timer import Timer
from headrace.core.types import StateDict
from headrace.data.rollout import Rollout, each_column
from headrace.parallel.collector import InlineCollector
from headrace.parallel.stagger import Stagger
from headrace.parallel.transfer import RolloutTransfer
from headrace.parallel.weights import Weights, WeightsReader, received, sent

STEPPED_MEANWHILE = "collection='overlapped' steps them while the policy learns"


class ApartCollector:
    """A Collector (parallel.collector) in the learner's process. From warm_up() on, `inside` collects with a copy of
    the policy. Its rollouts are copied to `device`, which learns.

    max_steps: of staggered episodes, see Stagger; None for no stagger. precision: see core.precision, that of the
    device that collects. overlapped: a thread collects the next rollout while the policy learns from this one, with the
    weights before the update: lag 1. state_dict() is then the state before the rollout that is being collected.
    Raises TypeError if the policy cannot be copied, ValueError if it is changed such that its copy cannot be updated.
    """

    dropped_steps = 0
    made_of = b""
    stop: Callable[[], bool] | None = None

    def __init__(
        self, inside: InlineCollector, device: torch.device, max_steps: int | None, precision: str, overlapped: bool
    ) -> None:
        self.inside, self.precision, self.overlapped, self.timer = inside, precision, overlapped, inside.timer
        self.atomic = overlapped
        env, rollout = inside.env, inside.rollout
        shape = (rollout.num_steps, rollout.num_envs, rollout.columns)
        self._transfer = RolloutTransfer(*shape, env.device, device)
        self.rollout = self._transfer.target
        self._stagger = Stagger(rollout, max_steps, env.num_agents)
        self._weights: Weights  # of the learner's policy and of its reader
        self._reader: WeightsReader
        self._meanwhile: Future[None] | None = None  # the rollout that is being collected
        self._before: StateDict = {}  # the state of `inside` before that rollout
        self._metrics: dict[str, float] = {}  # of the environments, after the last rollout
        self._closing = False
        inside.stop = self._stops
        if overlapped:
            inside.timer = Timer()
            env.fixed_params = STEPPED_MEANWHILE
            self._thread = ThreadPoolExecutor(1, "collector")
            self.rollout.lag = torch.zeros(rollout.num_envs, device=device)

    def _stops(self) -> bool:
        return self._closing or (self.stop is not None and self.stop())

    @property
    def steps(self) -> int:
        """Number of steps taken so far by each environment, masked ones included."""
        return self.inside.steps if self._meanwhile is None else int(self._before["steps"])

    def collect(self) -> Rollout:
        """Return the next T steps, on the learner's device. The next call overwrites them."""
        if not self.overlapped:
            self._collect()
        else:
            self._wait()
        self.dropped_steps, self._metrics = self.inside.dropped_steps, self.inside.env.metrics()
        with self.timer("gathering"):
            self._transfer.wait_to_write()
            rollout = self.inside.rollout
            for _, here, collected in each_column(rollout.columns, self._transfer.source, rollout):
                here.copy_(collected)
            self._transfer.start()
            self._transfer.finish()
        if self.overlapped:
            self._begin()
        return self.rollout

    def _collect(self) -> None:
        """Collect T steps with `inside`."""
        self._stagger.before(self.inside.steps)
        with computing(self.precision, self.inside.env.device):
            self.inside.collect()
        self._stagger.after()

    def _begin(self) -> None:
        """Start collecting the next rollout in the thread, with the policy that was published last."""
        self._before = self.inside.state_dict()
        self._reader.read(0)
        threads = torch.get_num_threads()

        def collect() -> None:
            with torch_threads(threads), without_denormals():
                self._collect()

        self._meanwhile = self._thread.submit(copy_context().run, collect)

    def _wait(self) -> None:
        """Wait until the thread has collected. Raises its exceptions, and Stopped."""
        lag = self.rollout.lag
        assert lag is not None
        lag.fill_(self._meanwhile is not None)
        if self._meanwhile is None:
            self._begin()
        assert self._meanwhile is not None
        with self.timer("waiting for steps"):
            self._meanwhile.result()
        self._meanwhile = None

    def _give_up(self) -> None:
        """Give up the rollout that is being collected."""
        if self._meanwhile is None:
            return
        self._closing = True
        self._meanwhile.exception()
        self._closing, self._meanwhile = False, None

    def publish(self) -> None:
        """Use the policy's present weights for collecting from now on."""
        with self.timer("publishing"):
            self._weights.write(0)
            if not self.overlapped:
                self._reader.read(0)

    def warm_up(self) -> None:
        """Copy the policy, compile whatever has to be compiled, and leave everything else as it was."""
        inside, env = self.inside, self.inside.env
        self._weights = weights = Weights(inside.policy, 1)
        setting = "collection='overlapped'" if self.overlapped else "collect_device"
        object.__setattr__(inside, "policy", received(sent(inside.policy, setting), env.device))
        inside.rnn_state = inside.policy.initial_state(env.num_envs)
        everything = slice(0, env.num_copies)
        self._reader = WeightsReader(inside.policy, weights.layout, weights.memory, env.num_copies, everything)
        self._weights.write(0)
        with computing(self.precision, self.inside.env.device):
            self.inside.warm_up()

    def metrics(self) -> dict[str, float]:
        """Metrics of the environments, for the last rollout."""
        return self._metrics

    def state_dict(self) -> StateDict:
        """The state of `inside` after the last rollout."""
        return self.inside.state_dict() if self._meanwhile is None else self._before

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(), with the policy's present weights."""
        self._give_up()
        self.inside.load_state_dict(state)
        self.publish()
        self._reader.read(0)

    def close(self) -> None:
        """Free what `inside` holds."""
        if self.overlapped:
            self._give_up()
            self._thread.shutdown()
        self.inside.close()
