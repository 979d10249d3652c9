"""The work of an actor on a node of a cluster: as headrace.parallel.actor, for any place, and for several at once."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
from functools import partial
from multiprocessing import Pipe
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch

from headrace.core.fused import kernels_serve, plain_only
from headrace.core.packages import installed
from headrace.data.rollout import Columns
from headrace.data.shared_memory import Memory
from headrace.envs.workers.env import sendable
from headrace.parallel.actor import Acting, CollectorSpec, Part
from headrace.parallel.actor_env import Job, MakePart
from headrace.parallel.fragments import Fragments, part_columns, unpacked
from headrace.parallel.gradient_actor import GradientActing, LearnerSpec

SPARE = 4096  # bytes by which a state may be longer than twice its first length
LOOKS = 8  # the watch is renewed at most this often within step_timeout
SOURCES = "(sources)"  # the version of Headrace where it is not installed


class Setup(NamedTuple):
    """Facts that an actor needs to collect for any place."""

    make_parts: list[bytes]  # by place: a function without arguments that makes the environments, by cloudpickle
    parts: list[Part]
    spec: CollectorSpec
    columns: Columns  # of rollouts of all environments
    step_timeout: float  # s without a step after which an actor counts as hanging
    plain: bool  # whether plain functions run instead of kernels
    version: str  # of Headrace
    learner: LearnerSpec | None  # where gradients are sent


class Place:
    """The environments of a place and a copy of the policy, with memory for one fragment, the state after it, and its
    gradient."""

    def __init__(self, setup: Setup, place: int) -> None:
        part, spec = setup.parts[place], setup.spec
        role = Acting if setup.learner is None else GradientActing
        self.acting = role(setup.make_parts[place], part, Pipe()[0])  # orders come by calls instead
        with plain_only(setup.plain):
            state_size = self.acting.begin(spec)
        columns = part_columns(setup.columns, part.total, part.size)
        envs = self.acting.collector.rollout.num_envs
        self.fragment = Fragments(spec.num_steps, envs, columns, 2 * state_size + SPARE, slots=1, states=1)
        self.fragment.plain[0] = setup.plain
        self._gradient = np.empty(0, np.uint8)
        if setup.learner is not None:  # before the weights, which its copy of the algorithm moves
            assert isinstance(self.acting, GradientActing)
            self.acting.begin_learner(setup.learner)
            self._gradient = np.frombuffer(self.acting.slots.memory.bytes, np.uint8)
        self.weights = Memory(spec.layout.size)
        self.acting.attach(self.fragment, self.weights)
        self._watch = _Watch(setup.step_timeout)
        self.acting.collector.stop = self._watch
        self._array = np.frombuffer(self.fragment.memory.bytes, np.uint8)

    def restore(self, state: bytes) -> None:
        """Continue from a state."""
        self.acting.collector.load_state_dict(unpacked(state))

    def collect(self, number: int, weights: np.ndarray) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Collect the next fragment with the state after it, and compute its gradient if gradients are sent."""
        np.copyto(np.frombuffer(self.weights.bytes, np.uint8)[: len(weights)], weights)
        try:
            self.acting.collect(number, 0)
        finally:
            self._watch.end()
        return (self._array, self._gradient) if len(self._gradient) else self._array

    def go_on(self, known: int, totals: np.ndarray) -> np.ndarray:
        """Go on with the gradient. known: number of sums over all actors that are known."""
        assert isinstance(self.acting, GradientActing)
        self.acting.slots.totals[:known] = torch.from_numpy(totals.copy())
        self.acting.go_on(known)
        return self._gradient


class _Watch:
    """Ends this process if a step hangs. It is called before each step of environments in Python; if no further call
    follows in time, a thread in C ends the process, even if the step holds Python's lock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._noted = -seconds

    def __call__(self) -> bool:
        now = monotonic()
        if now - self._noted > self.seconds / LOOKS:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__ or 2)
            self._noted = now
        return False

    def end(self) -> None:
        """Stop watching: the steps of a fragment are taken."""
        faulthandler.cancel_dump_traceback_later()
        self._noted = -self.seconds


class ClusterActor:
    """A process on a node. Its methods are called from the learner's process, one after another."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.places: dict[int, Place] = {}

    def begin(self, setup: Setup) -> tuple[str, str, int]:
        """Receive the Setup. Returns node, host name and process. Raises ImportError for another version of Headrace,
        RuntimeError for a GPU that torch cannot use."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        if (version := installed("headrace", SOURCES)) != setup.version:
            raise ImportError(f"{socket.gethostname()} has headrace {version}, and the learner {setup.version}")
        if setup.spec.device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(
                f"{socket.gethostname()} has a GPU by what Ray knows, and torch {torch.__version__} there finds none: "
                "install torch for CUDA on the node, or leave out collect_device"
            )
        self.setup = setup
        return node, socket.gethostname(), os.getpid()

    def prepare(self, place: int) -> None:
        """Make the environments of a place and the copy of the policy; compile what has to be compiled."""
        self.places[place] = Place(self.setup, place)

    def collect(self, order: list, weights: np.ndarray | None = None) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Collect a fragment of a place, as bytes that Fragments reads. If gradients are sent, also return the
        gradient, as bytes of GradientSlots.

        order: the place; the fragment's number; the state to continue from, b"" for the beginning, None if the last
        fragment was collected here; and the weights as bytes, None if they are an argument of their own. It is a list
        because Ray takes several times as long for several arguments."""
        place, number, state, small = order
        if place not in self.places or state == b"":
            self.drop(place)
            self.prepare(place)
        if state:
            self.places[place].restore(state)
        return self.places[place].collect(number, np.frombuffer(small, np.uint8) if weights is None else weights)

    def go_on(self, place: int, known: int, totals: np.ndarray) -> np.ndarray:
        """Go on with the gradient of the place's last fragment. known: number of sums over all actors that are
        known."""
        return self.places[place].go_on(known, totals)

    def drop(self, place: int) -> None:
        """Close the environments of a place, which another actor continues."""
        if found := self.places.pop(place, None):
            found.acting.close()

    def echo(self, size: int) -> np.ndarray:
        """Return `size` bytes, to measure the connection."""
        return np.zeros(size, np.uint8)

    def close(self) -> None:
        """Close all environments."""
        for place in list(self.places):
            self.drop(place)


def setup_of(make_part: MakePart, parts: list[Part], job: Job, timeout: float) -> Setup:
    """Make a Setup. Raises TypeError for a function that cannot be sent."""
    return Setup(
        [sendable(partial(make_part, part.size, part.first)) for part in parts],
        parts,
        job.spec._replace(threads=1),
        job.columns,
        timeout,
        not kernels_serve(),
        installed("headrace", SOURCES),
        job.learner,
    )
