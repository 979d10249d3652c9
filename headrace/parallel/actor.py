"""The work of an actor's process: it holds environments and a policy's copy, and collects a fragment per order."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.on_policy import PROCESSED
from headrace.core import rng
from headrace.core.device import copy_all, without_denormals
from headrace.core.fused import plain_only, silence
from headrace.core.looking import looked_once
from headrace.core.precision import computing
from headrace.core.stopping import Stopped
from headrace.data.rollout import Column, Columns
from headrace.data.shared_memory import Memory
from headrace.data.spaces import Space
from headrace.envs.base import Env
from headrace.envs.gym.learned import Learned
from headrace.envs.workers.env import sendable
from headrace.envs.wrappers.device_env import DeviceEnv
from headrace.parallel.collector import InlineCollector
from headrace.parallel.fragments import Fragments, columns_of, packed, unpacked
from headrace.parallel.stagger import Stagger
from headrace.parallel.weights import Layout, WeightsReader, received, take_part

POLICY, MEMORY, RESTORE, COLLECT = range(4)
SLOTS = 2**8  # of weights, at most: an order's number is stored in the bits above its slot


class ActorFacts(NamedTuple):
    """Report of an actor whose environments are made."""

    name: str
    observation_space: Space
    action_space: Space
    max_steps: int | None
    agents: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]
    nested: bool
    learned: tuple[Learned, ...]  # wrappers that learn

    @classmethod
    def of(cls, env: Env) -> ActorFacts:
        """Collect the facts of an actor's environments."""
        spaces = (env.observation_space, env.action_space)
        learned = tuple(env.learned)
        return cls(env.name, *spaces, env.max_steps, env.agents, dict(env.groups), env.nested, learned)


class Part(NamedTuple):
    """Range of environment copies of one actor."""

    first: int
    size: int
    total: int  # of all actors together

    @property
    def slice(self) -> slice:
        """The range of environment copies."""
        return slice(self.first, self.first + self.size)


class CollectorSpec(NamedTuple):
    """Message of a learner to an actor, in addition to the environments."""

    policy: bytes
    num_steps: int
    columns: dict[str, Column | Columns]  # those that the algorithm declares
    seed: int
    layout: Layout  # of the weights
    stagger: bool
    threads: int  # of kernels
    algorithm: bytes | None  # by cloudpickle: makes the algorithm for a policy; the actor calls its process()
    precision: str  # see core.precision
    device: torch.device  # that the policy acts on


class PartCollector(InlineCollector):
    """Collects with some of the environments exactly what a collector of all environments collects with them."""

    total: int  # copies of the environment in all

    def _random(self, first_step: int | Tensor) -> Tensor:
        """Draw the numbers that these environments have among all, where agent a of copy i is column a * total + i."""
        env, steps = self.env, self.rollout.num_steps
        first = [agent * self.total + env.first_env for agent in range(env.num_agents)]
        shape = (steps, env.num_copies, self.policy.num_draws)
        parts = [rng.uniform(self.seed, rng.Purpose.ACTION, first_step, *shape, env.device, x) for x in first]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class Acting:
    """A Role (envs.workers.protocol). It answers an order to collect with the number of environments made again so far.

    make: a function that makes the environments, pickled by cloudpickle.
    """

    def __init__(self, make: bytes, part: Part, orders: Connection) -> None:
        silence()
        self.orders, self.part = orders, part
        build: Callable[[], Env] = pickle.loads(make)
        self.env = build()
        self.facts = ActorFacts.of(self.env)
        self.spec: CollectorSpec
        self.collector: PartCollector
        self.fragments: Fragments
        self.weights: WeightsReader
        self.ended = 0.0  # when the last fragment was done; 0 before the first

    def carry_out(self, what: int, where: int) -> int | None:
        """Carry out one of the orders above. Answers POLICY with a state's size in bytes, COLLECT with restarts."""
        if what == COLLECT:
            return self.collect(*divmod(where, SLOTS))
        if what == POLICY:
            with plain_only(bool(where)):
                return self.begin(self.orders.recv())
        if what == MEMORY:
            self._attach(*self.orders.recv())
        elif what == RESTORE:
            self._restore(where)
        return None

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let networks compute as they do in the learner's process, within this block."""
        plain = plain_only(bool(self.fragments.plain[0]))
        with without_denormals(), computing(self.spec.precision, self.env.device), plain:
            yield

    def begin(self, spec: CollectorSpec) -> int:
        """Make the copy of the policy and the collector. Returns the bytes that its state takes."""
        os.environ["HEADRACE_THREADS"] = str(spec.threads)
        self.spec, device = spec, spec.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # so that nothing of this process is on another GPU
        if device.type != "cpu":
            self.env = DeviceEnv(self.env, device)
        env = self.env
        self.policy = received(spec.policy, device)
        take_part(self.policy, self.part.total, self.part.slice)
        self.algorithm = pickle.loads(spec.algorithm)(self.policy) if spec.algorithm else None
        self.collector = PartCollector(env, self.policy, spec.num_steps, spec.columns, spec.seed)
        self.collector.total = self.part.total
        self.collector.warm_up()
        self._act_once()
        self.stagger = Stagger(
            self.collector.rollout, env.max_steps if spec.stagger else None, env.num_agents, self.part.first
        )
        return len(packed(self.collector.state_dict()))

    @torch.no_grad()
    def _act_once(self) -> None:
        """Compile what acting needs now, since compiling within a step would count against the step's time limit."""
        collector = self.collector
        self.policy.act(collector.rollout.observation[0], collector.rnn_state, collector._random(0)[0])
        if "value" in collector.rollout.columns:
            self.policy.value(collector.rollout.observation[0], collector.rnn_state)

    def _attach(self, columns: Columns, state_size: int, size: int, weights_size: int, slots: int) -> None:
        """Take the shared memory, whose descriptors follow the message."""
        memory = Memory(size, recv_handle(self.orders))
        steps, num_envs = self.spec.num_steps, self.collector.rollout.num_envs
        fragments = Fragments(steps, num_envs, columns, state_size, memory, slots=slots)
        weights = Memory(weights_size, recv_handle(self.orders))
        self.attach(fragments, weights)
        memory.close()
        weights.close()

    def attach(self, fragments: Fragments, weights: Memory) -> None:
        """Write fragments, and read weights, there."""
        rollout, columns = self.collector.rollout, fragments.rollouts[0].columns
        assert columns == {name: rollout.columns[name] for name in columns}, (columns, rollout.columns)
        self.fragments = fragments
        self.weights = WeightsReader(self.policy, self.spec.layout, weights, self.part.total, self.part.slice)
        self._columns = columns_of(rollout, columns)
        self._targets = [columns_of(fragment) for fragment in self.fragments.rollouts]
        self.collector.stop = self._beat

    def _beat(self) -> bool:
        """Return whether to give up the fragment; called before each step of environments in Python."""
        self.fragments.heartbeat[0] += 1
        return bool(self.fragments.give_up[0])

    def collect(self, number: int, slot: int) -> int:
        """Collect a fragment with the weights in a slot, and write it and the state after it. Returns restarts."""
        with self.computing():
            return self._collect(number, slot)

    def _collect(self, number: int, slot: int) -> int:
        collector, began = self.collector, (perf_counter(), process_time())
        self.weights.read(slot)
        self.stagger.before(collector.steps)
        # examined once per fragment: examining before each step takes a quarter of the actor's time between two steps
        with looked_once(none_of_the_users=True), suppress(Stopped):  # a fragment stopped will not be read
            collector.collect()
        self.stagger.after()
        if self.algorithm is not None:
            self._process(self.algorithm)
        copy_all(self._targets[number % len(self._targets)], self._columns)
        state = packed(collector.state_dict())
        if len(state) + 8 > self.fragments.room:  # too large now: if this process is lost, new episodes begin
            state = packed({**collector.state_dict(), "env": {}})
        self.fragments.write_state(number, state)
        waited = began[0] - self.ended if self.ended else 0.0
        self.ended = perf_counter()
        self.fragments.spent[:] = self.ended - began[0], process_time() - began[1], waited
        self.fragments.restarts[0] = self.env.restarts
        return self.env.restarts

    def _process(self, algorithm: Any) -> None:
        """Fill the columns that the algorithm's process() computes from a rollout."""
        rollout = self.collector.rollout
        targets = algorithm.process(rollout)
        for name, value in zip(PROCESSED, (targets.advantage, targets.returns, targets.valid), strict=True):
            getattr(rollout, name).copy_(value)

    def _restore(self, number: int) -> None:
        """Continue from the state before a fragment, read from shared memory."""
        self.collector.load_state_dict(unpacked(self.fragments.state(number - 1)))

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


def constructor(algorithm: Any) -> bytes:
    """Pickle, by cloudpickle, a function that makes an algorithm like this one for a policy."""
    kind: Any = type(algorithm)
    return sendable(partial(kind, config=algorithm.config, seed=algorithm.seed))
