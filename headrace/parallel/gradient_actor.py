"""Actors that send gradients: each computes a gradient from each of its fragments, with a copy of the algorithm.

Losses are means over the rows of all actors, so they need sums over all actors: the number of valid rows, and the sums
that normalise advantages. gradient() asks for them through its `reduce`. If a sum is not known yet, the actor answers
with its part of the sum and gives up the gradient. Once it knows the total it begins again. Both algorithms ask before
they compute anything that takes time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.core.types import StateDict
from headrace.data import finite
from headrace.data.rollout import Rollout
from headrace.data.shared_memory import LINE, Memory, padded
from headrace.parallel.actor import Acting, Part
from headrace.parallel.fragments import SLOTS, packed, unpacked
from headrace.policies.base import Policy
from headrace.policies.normalization import Moments, normalizers

LEARNER, SUMS = 4, 5  # orders, in addition to those of parallel.actor
MOST_SUMS = 1024  # largest number of sums for one gradient


class LearnerSpec(NamedTuple):
    """Message of a learner to an actor that computes gradients."""

    make: bytes  # a function that makes the algorithm for a policy, by cloudpickle
    num_weights: int
    dtype: torch.dtype  # of the gradient
    tally_size: int  # bytes of the longest tally that is expected
    alone: bool  # each gradient is a step of its own, and asks for no sums

    def slots(self, memory: Memory | None = None) -> GradientSlots:
        """Make an actor's shared memory, or open that of the other process."""
        return GradientSlots(self.num_weights, self.dtype, self.tally_size, memory)


class GradientSlots:
    """The shared memory for one actor's gradients. The gradient of fragment `number` is in slot `number % SLOTS`.

    asked: number of totals that the actor has asked for, while one of them is unknown; 0 once the gradient is complete.
    parts, totals: float64: these numbers for the actor's fragment, and their sums over the fragments of all actors.
    """

    def __init__(self, num_weights: int, dtype: torch.dtype, tally_size: int, memory: Memory | None = None) -> None:
        length, self._room = padded(num_weights * dtype.itemsize), padded(8 + tally_size)
        first = LINE + 2 * 8 * MOST_SUMS
        self._tallies = first + SLOTS * length
        self.memory = memory = memory or Memory(self._tallies + SLOTS * self._room)
        self.asked = memory.tensor(0, (1,), torch.int64).numpy()
        self.parts, self.totals = memory.tensor(LINE, (2, MOST_SUMS), torch.float64)
        self._gradients = [memory.tensor(first + slot * length, (num_weights,), dtype) for slot in range(SLOTS)]

    def gradient(self, number: int) -> Tensor:
        """The gradient of a fragment, [P]."""
        return self._gradients[number % SLOTS]

    def write_tally(self, number: int, tally: StateDict) -> None:
        """Store a fragment's tally(). Raises ValueError if it does not fit."""
        self.memory.write(self._tallies + number % SLOTS * self._room, self._room, packed(tally))

    def tally(self, number: int) -> StateDict:
        """Read what write_tally() stored."""
        return unpacked(self.memory.read(self._tallies + number % SLOTS * self._room))


class UnknownSum(Exception):
    """A sum over all actors is not known yet."""


class SumOverActors:
    """The Reduce of an actor: replaces tensors by their sums over all actors. known: number of totals that are known.

    Raises UnknownSum if more are needed, ValueError for more than MOST_SUMS.
    """

    def __init__(self, slots: GradientSlots, known: int) -> None:
        self.slots, self.known, self.end = slots, known, 0

    def __call__(self, *tensors: Tensor) -> None:
        slots, first = self.slots, self.end
        self.end += sum(tensor.numel() for tensor in tensors)
        if self.end > MOST_SUMS:
            raise ValueError(f"a gradient may share {MOST_SUMS} numbers with other actors, and asked for {self.end}")
        slots.parts[first : self.end] = torch.cat([tensor.detach().flatten().double().cpu() for tensor in tensors])
        if self.end > self.known:
            slots.asked[0] = self.end
            raise UnknownSum
        totals = slots.totals[first : self.end].split([tensor.numel() for tensor in tensors])
        for tensor, total in zip(tensors, totals, strict=True):
            tensor.copy_(total.view(tensor.shape))


class GradientActing(Acting):
    """A Role that answers an order to collect once it has a gradient, or waits for sums over all actors."""

    def __init__(self, make: bytes, part: Part, orders: Connection) -> None:
        super().__init__(make, part, orders)
        self.learner: Any  # an algorithm that defines gradient()
        self.slots: GradientSlots
        self._number = self._slot = 0  # of the fragment, and of the weights that it was collected with

    def carry_out(self, what: int, where: int) -> int | None:
        """Same as Acting.carry_out(). SUMS is answered with restarts, as COLLECT is."""
        if what == SUMS:
            return self.go_on(where)
        if what == LEARNER:
            spec, size = self.orders.recv()
            memory = Memory(size, recv_handle(self.orders))
            self.begin_learner(LearnerSpec(*spec), memory)
            memory.close()
            return None
        return super().carry_out(what, where)

    def begin_learner(self, spec: LearnerSpec, memory: Memory | None = None) -> None:
        """Make the copy of the algorithm, which moves the policy's parameters into one buffer. memory: where gradients
        are written; None for new memory."""
        self._learner_spec = spec
        build: Callable[[Policy], Any] = pickle.loads(spec.make)
        self.learner = build(self.policy)
        self.slots = spec.slots(memory)
        agents, part, total = self.env.num_agents, self.part.slice, self.part.total
        numbers = torch.arange(agents * total, device=self.env.device).view(agents, total)
        self.collector.rollout.env = numbers[:, part].flatten()

    def go_on(self, known: int) -> int:
        """Go on with the gradient. known: number of sums over all actors that are known. Returns restarts."""
        self.weights.read(self._slot)  # a tally has changed the normalisers
        with self.computing():
            return self._learn(known)

    def _collect(self, number: int, slot: int) -> int:
        """Collect a fragment, and compute its gradient as far as that is possible alone."""
        restarts = super()._collect(number, slot)
        rollout = self.collector.rollout
        if not self.fragments.give_up[0]:
            finite.check_rollout(rollout, self.collector.steps - rollout.num_steps)
            self._number, self._slot = number, slot
            self._targets_of_rollout = self.learner.process(rollout)
            self._learn(0)
        return restarts

    def _learn(self, known: int) -> int:
        """Compute the gradient from the first `known` sums, or ask for the next ones."""
        learner, slots, rollout = self.learner, self.slots, self.collector.rollout
        began = perf_counter(), process_time()
        learner.optimizer.gradient.zero_()
        slots.asked[0] = 0
        if not self._learner_spec.alone:
            learner.reduce = SumOverActors(slots, known)
        with suppress(UnknownSum):
            metrics = learner.gradient(rollout, self._targets_of_rollout)
            slots.gradient(self._number).copy_(learner.optimizer.gradient)
            slots.write_tally(self._number, tally(self.policy, rollout, self._targets_of_rollout, metrics))
        self.ended = perf_counter()
        self.fragments.spent[:2] += (self.ended - began[0], process_time() - began[1])
        return self.env.restarts


def tally(policy: Policy, rollout: Rollout, targets: Any, metrics: dict[str, Tensor]) -> StateDict:
    """Collect what a learner needs from a fragment in addition to its gradient: its part of the metrics, moments of
    (returns, returns - value), and moments of the rows that normalisers are updated with. Changes the policy's
    normalisers."""
    valued = torch.stack((targets.returns, targets.returns - rollout.value[:-1]), -1).flatten(0, 1)
    statistics = [normalizer.statistics for normalizer in normalizers(policy)]
    for part in statistics:
        for tensor in part.buffers():
            tensor.zero_()
    policy.update_statistics(rollout, targets.returns)
    return {
        "metrics": {name: float(value) for name, value in metrics.items()},
        "valued": list(vars(Moments.of(valued, targets.valid.flatten())).values()),
        "statistics": [list(vars(part.moments()).values()) for part in statistics],
    }
