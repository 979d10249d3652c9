"""A collector of one device, behind a learner of another."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headrace.core.precision import computing
from headrace.core.types import StateDict
from headrace.data.rollout import Rollout, each_column
from headrace.parallel.collector import InlineCollector
from headrace.parallel.stagger import Stagger
from headrace.parallel.transfer import RolloutTransfer
from headrace.parallel.weights import Weights, WeightsReader, received, sent


class DeviceCollector:
    """A Collector (parallel.collector) in the learner's process, on a device of its own: `inside` collects there, from
    warm_up() on with a copy of the policy, and what it has collected is copied to `device`, which learns.

    max_steps: of staggered episodes, see Stagger; None for no stagger. precision: see
    core.precision, that of the device that collects.
    Raises TypeError where the policy cannot be copied, ValueError where it is changed so that its copy cannot follow.
    """

    dropped_steps = 0
    made_of = b""
    atomic = False

    def __init__(self, inside: InlineCollector, device: torch.device, max_steps: int | None, precision: str) -> None:
        self.inside, self.precision = inside, precision
        env, rollout = inside.env, inside.rollout
        shape = (rollout.num_steps, rollout.num_envs, rollout.columns)
        self._transfer = RolloutTransfer(*shape, env.device, device)
        self.rollout = self._transfer.target
        self._stagger = Stagger(rollout, max_steps, env.num_agents)
        self._weights: Weights  # of the learner's policy, and of what reads it
        self._reader: WeightsReader

    @property
    def steps(self) -> int:
        """Taken so far by each environment, masked ones included."""
        return self.inside.steps

    @property
    def stop(self) -> Callable[[], bool] | None:
        """Asked before each step in Python: where true, collect() raises Stopped."""
        return self.inside.stop

    @stop.setter
    def stop(self, ask: Callable[[], bool] | None) -> None:
        self.inside.stop = ask

    def collect(self) -> Rollout:
        """The next T steps, on the device that learns. The next call overwrites them."""
        self._stagger.before(self.steps)
        with computing(self.precision, self.inside.env.device):
            rollout = self.inside.collect()
        self._stagger.after()
        self.dropped_steps = self.inside.dropped_steps
        with self.inside.timer("gathering"):
            self._transfer.wait_to_write()
            for _, here, collected in each_column(rollout.columns, self._transfer.source, rollout):
                here.copy_(collected)
            self._transfer.start()
            self._transfer.finish()
        return self.rollout

    def publish(self) -> None:
        """The policy as it is now is the one to collect with from now on."""
        with self.inside.timer("publishing"):
            self._weights.write(0)
            self._reader.read(0)

    def warm_up(self) -> None:
        """Copy the policy, compile whatever has to be compiled, and leave everything else as it was."""
        inside, env = self.inside, self.inside.env
        self._weights = weights = Weights(inside.policy, 1)
        object.__setattr__(inside, "policy", received(sent(inside.policy, "collect_device"), env.device))
        inside.rnn_state = inside.policy.initial_state(env.num_envs)
        everything = slice(0, env.num_copies)
        self._reader = WeightsReader(inside.policy, weights.layout, weights.memory, env.num_copies, everything)
        with computing(self.precision, self.inside.env.device):
            self.inside.warm_up()

    def state_dict(self) -> StateDict:
        """That of the collector inside."""
        return self.inside.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(), with the policy as it is now."""
        self.inside.load_state_dict(state)
        self.publish()

    def close(self) -> None:
        """Free what the collector inside holds."""
        self.inside.close()
