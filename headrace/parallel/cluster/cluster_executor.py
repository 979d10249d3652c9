"""Carries out the orders of actors by processes on the nodes of a cluster.

A fragment arrives as one array of bytes in Ray's object store, with the state after it, and is read there without a
copy. Weights are stored once per version, and each node fetches them once. Small ones are sent with the orders. An
order that is lost with an actor, a node or an object is given again, to any available actor, with the state before it.
"""

from __future__ import annotations

from collections import Counter
from ctypes import c_char
from dataclasses import dataclass
from math import ceil, prod
from time import monotonic
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from torch import Tensor

from headrace.core.terminal import tell
from headrace.data.rollout import Rollout
from headrace.data.shared_memory import LINE, shared_size
from headrace.envs.workers.process import START_TIMEOUT, WorkerError
from headrace.envs.workers.resources import MEGABYTE
from headrace.envs.workers.transport import TRIES
from headrace.parallel.actor_env import ActorEnv, Job
from headrace.parallel.cluster.connection import Connection, Settings
from headrace.parallel.cluster.node_actor import setup_of
from headrace.parallel.cluster.pool import ActorPool, Member, measured, original
from headrace.parallel.fragments import SLOTS, STATES, Fragments, of_copies, part_columns, unpacked
from headrace.parallel.gradient_actor import GradientSlots
from headrace.parallel.schedule import Fragment
from headrace.parallel.weights import Weights

LONGEST_WAIT = 1.0  # s of waiting in Ray's thread, which other calls may need
WITHOUT_ACTORS = 600.0  # s after which a training without actors ends
PROBE = 4_000_000  # bytes sent to measure the connection to a node
CALLS = 20  # a fragment should take at least as long as this many calls
INLINE = 50_000  # bytes of weights that orders carry: an object store would take longer
ROOM = 2.0  # bytes of the object store for each expected byte


class _Bytes:
    """Reads an array of bytes as shared_memory.Memory is read, without a copy. It must not be written."""

    def __init__(self, array: np.ndarray) -> None:
        self.size = array.nbytes
        # as memory that may be written, of which torch does not warn; it keeps the array while there are views
        memory: Any = (c_char * array.nbytes).from_address(array.ctypes.data)
        memory.array = array
        self.bytes = memory

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.frombuffer(self.bytes, dtype=dtype, count=prod(shape), offset=offset).view(shape)

    def read(self, offset: int) -> bytes:
        """Read the bytes that Memory.write() stored."""
        size = int.from_bytes(self.bytes[offset : offset + 8], "little")
        return bytes(self.bytes[offset + 8 : offset + 8 + size])


@dataclass
class _Open:
    """An order that has not been carried out yet."""

    fragment: Fragment
    member: Member


class ClusterExecutor:
    """An Executor on a cluster. While there are fewer actors than places, each actor carries out the orders of several
    places."""

    def __init__(self, settings: Settings, env: ActorEnv, job: Job) -> None:
        self.env, self.job = env, job
        places = len(env.parts)
        self._columns = [part_columns(job.columns, env.num_copies, part.size) for part in env.parts]
        self._size = max(map(self._bytes_of, range(places)))  # of a fragment without its state
        self._open: dict[Any, _Open] = {}  # by Ray's reference to the result
        self._waiting: list[Fragment] = []  # orders without an actor
        self._fragments: dict[tuple[int, int], Fragments] = {}  # by place and number
        self._states: dict[tuple[int, int], bytes] = {}  # likewise
        self.gradients: dict[int, GradientSlots] = {}  # last answer of each place, if actors send gradients
        self._collected: dict[int, Member] = {}  # the actor that answered each place's last order
        self._spent = [(0.0, 0.0, 0.0)] * places
        self._begun = [0] * places  # the fragment at which each began new episodes
        self._lost: Counter[tuple[int, int]] = Counter()  # how often an actor died at a fragment
        self._weights = Weights(job.policy, 1)
        self._versions: dict[int, Any] = {}  # by version: the weights as bytes, or a reference to them
        self._alone_since: float | None = None
        self._closed = False
        self.seconds_per_call = 0.0
        self.pool = ActorPool(places, self._movable, gpus=int(env.collect_device.type == "cuda"))
        try:
            self.connection = Connection(settings, places, self._store())
        except ConnectionError as error:
            error.add_note(
                "Or give `--cluster none` (cluster=None) for actors of this machine: a run that is resumed goes on "
                "with the same result."
            )
            raise

    def _bytes_of(self, place: int) -> int:
        envs = self.env.parts[place].size * self.env.num_agents
        return LINE + shared_size(self.job.spec.num_steps, envs, self._columns[place])

    def _store(self) -> int:
        """Bytes of an object store for all fragments and weights that can exist at a time."""
        fragments = len(self.env.parts) * (SLOTS + 1) * self._size
        weights = self.job.versions * self.job.spec.layout.size + len(self.job.spec.policy)
        gradients = 0 if self.job.learner is None else len(self.env.parts) * self.job.learner.slots().memory.size
        return int(ROOM * (fragments + weights + gradients))

    def begin(self) -> None:
        self.connection.call(self._begin)

    def _begin(self) -> None:
        env, job = self.env, self.job
        setup = setup_of(env.make_part, env.parts, job, env.step_timeout)
        self.pool.start(ray.put(setup))
        preparing = {member.actor.prepare.remote(place): member for place, member in self.pool.of.items()}
        while preparing:
            ready, late = ray.wait(list(preparing), timeout=START_TIMEOUT)
            if not ready:
                raise WorkerError(f"{preparing[late[0]]} had not made its environments after {START_TIMEOUT:g} s")
            for ref in ready:
                try:
                    ray.get(ref)
                except RayError as error:
                    raise original(error, preparing[ref]) from None
                del preparing[ref]
        for place, member in self.pool.of.items():
            member.next[place] = 0
        self._measure()

    def _measure(self) -> None:
        """Measure the connection to each node, and describe the cluster."""
        one_of_each = {member.node: member for member in self.pool.members}.values()
        self.seconds_per_call = max(measured(member, 1) for member in one_of_each)
        slowest = max(measured(member, PROBE, 3) for member in one_of_each)
        transfer = slowest - self.seconds_per_call
        # a transfer that takes no longer than a call alone is too short to be measured
        rate = f"{PROBE / transfer / MEGABYTE:,.0f} MB/s" if transfer > self.seconds_per_call / 4 else "fast transfers"
        cores = Counter(member.host for member in self.pool.members)
        where = ", ".join(f"{count} on {host}" for host, count in cores.items())
        cluster = (
            "a Ray cluster of its own" if self.connection.local else f"the Ray cluster at {self.connection.address}"
        )
        self.env.shared = (
            f"on {cluster}, {len(one_of_each)} {'node' if len(one_of_each) == 1 else 'nodes'} ({where}): a call takes "
            f"{self.seconds_per_call * 1e3:.2g} ms, {rate}; weights "
            f"{self.job.spec.layout.size / 1e3:,.3g} kB, fragments {self._size / 1e3:,.3g} kB each"
        )
        if self.connection.local:
            self.env.shared += f", object store {self.connection.store / MEGABYTE:,.0f} MB"

    def order(self, orders: list[Fragment]) -> None:
        if orders:
            self.connection.call(self._order, orders)

    def _order(self, orders: list[Fragment]) -> None:
        for order in orders:
            member = self.pool.of.get(order.place)
            if member is None:
                self._waiting.append(order)
            else:
                self._give(order, member)

    def _give(self, order: Fragment, member: Member) -> None:
        """Order a fragment from an actor. If another actor collected the last one, the order has the state before
        it."""
        place, number = order.place, order.number
        state = None if member.next.get(place) == number else self._state_before(place, number)
        weights = self._versions[order.version]
        if isinstance(weights, bytes):
            ref = member.actor.collect.remote([place, number, state, weights])
        else:
            ref = member.actor.collect.remote([place, number, state, None], weights)
        member.next[place] = number + 1
        self._open[ref] = _Open(order, member)

    def add_sums(self, order: Fragment, known: int) -> None:
        """Let the actor of an order go on with its gradient. known: number of sums over all actors that are known."""
        self.connection.call(self._add_sums, order, known)

    def _add_sums(self, order: Fragment, known: int) -> None:
        member = self.pool.of.get(order.place)
        if member is None or member is not self._collected[order.place]:  # whoever has the place begins again
            self._order([order])
            return
        totals = self.gradients[order.place].totals[:known].numpy()
        self._open[member.actor.go_on.remote(order.place, known, totals)] = _Open(order, member)

    def _movable(self, place: int) -> bool:
        """Tell whether another actor can continue a place: its last state has its environments, or it has not begun."""
        last = max((number for other, number in self._states if other == place), default=-1)
        return last < 0 or bool(unpacked(self._states[place, last])["env"])

    def _state_before(self, place: int, number: int) -> bytes:
        """The state to begin a fragment from. Raises WorkerError if it is lost and on_error allows no new episodes."""
        env = self.env
        env.lost += env.answers[place]
        env.answers[place] = 0
        if not number:
            return b""
        state = self._states[place, number - 1]
        if number != self._begun[place] and not unpacked(state)["env"]:
            if env.on_error != "restart":
                raise WorkerError(
                    f"the actor with envs {self._envs(place)} is lost, and its environments cannot be saved: "
                    "on_error='restart' begins new episodes instead"
                )
            env.lost += env.parts[place].size
            self._begun[place] = number
        return state

    def wait(self, timeout: float | None) -> list[int]:
        return self.connection.call(self._wait, LONGEST_WAIT if timeout is None else min(timeout, LONGEST_WAIT))

    def _wait(self, timeout: float) -> list[int]:
        self.pool.look()
        waiting, self._waiting = self._waiting, []
        self._order(waiting)
        self._check_alone()
        refs = [*self._open, *self.pool.joining]
        if not refs:
            return []
        ready, rest = ray.wait(refs, timeout=timeout)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        done = []
        for ref in ready:
            if ref in self.pool.joining:
                self._join(ref)
            elif self._receive(order := self._open.pop(ref), ref):
                done.append(order.fragment.place)
        return done

    def _check_alone(self) -> None:
        """Report once that there is no actor. Raises WorkerError after WITHOUT_ACTORS seconds without one."""
        if self.pool.members:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = monotonic()
            tell("all actors are lost: waiting for a node with a free core")
        elif monotonic() - self._alone_since > WITHOUT_ACTORS:
            raise WorkerError(f"there has been no actor for {WITHOUT_ACTORS:g} s: is a node of the cluster left?")

    def _join(self, ref: Any) -> None:
        if error := self.pool.join(ref):
            tell(f"an actor could not be started again, and is tried later: {str(error).splitlines()[0]}")

    def _receive(self, order: _Open, ref: Any) -> bool:
        """Take the result of an order; returns whether it is a fragment. If it is lost, gives the order again."""
        try:
            self._take(order, ray.get(ref))
            return True
        except RayTaskError as error:
            raise original(error, order.member) from None
        except RayError as error:
            self._lose(order, error)
        return False

    def _take(self, order: _Open, answer: Any) -> None:
        """Keep an answer to an order: a fragment; if actors send gradients, one with its gradient, or a gradient."""
        place, learner = order.fragment.place, self.job.learner
        self._collected[place] = order.member
        if learner is None:
            self._keep(order.fragment, answer)
            return
        if isinstance(answer, tuple):
            self._keep(order.fragment, answer[0])
            answer = answer[1]
        slots = self.gradients.get(place) or self.gradients.setdefault(place, learner.slots())
        np.copyto(np.frombuffer(slots.memory.bytes, np.uint8), answer)

    def _keep(self, order: Fragment, array: np.ndarray) -> None:
        place, number = order.place, order.number
        envs = self.env.parts[place].size * self.env.num_agents
        memory: Any = _Bytes(array)
        steps, columns = self.job.spec.num_steps, self._columns[place]
        fragment = Fragments(steps, envs, columns, 0, memory, slots=1, states=1)
        self._fragments[place, number] = fragment
        self._states[place, number] = fragment.state(number)
        self._states.pop((place, number - STATES), None)
        seconds, core, waited = map(float, fragment.spent)
        self._spent[place] = seconds, core, waited
        self.env.answers[place] = int(fragment.restarts[0])

    def _lose(self, order: _Open, error: RayError) -> None:
        """Give an order again whose actor or object is lost. Raises the error once this has happened TRIES times at the
        same fragment."""
        fragment, member = order.fragment, order.member
        if not isinstance(error, ActorUnavailableError):
            self._lost[fragment.place, fragment.number] += 1
            if self._lost[fragment.place, fragment.number] == TRIES:
                failure = original(error, member)
                failure.add_note(
                    f"It is not tried again: this has happened {TRIES} times at fragment {fragment.number} of envs "
                    f"{self._envs(fragment.place)}."
                )
                raise failure
        if isinstance(error, RayActorError):
            if member in self.pool.members:
                tell(f"{member} is lost: {str(error).splitlines()[0]}")
            self.pool.lose(member)
        else:
            member.next.pop(fragment.place, None)
        self._order([fragment])

    def _envs(self, place: int) -> str:
        part = self.env.parts[place].slice
        return f"{part.start} to {part.stop - 1}"

    def rollout(self, fragment: Fragment) -> Rollout:
        return self._fragments[fragment.place, fragment.number].rollouts[0]

    def tensors(self, fragment: Fragment) -> list[Tensor]:
        return of_copies(self.rollout(fragment), self.env.parts[fragment.place].size, slice(None))

    def release(self, fragments: list[Fragment]) -> None:
        for fragment in fragments:
            del self._fragments[fragment.place, fragment.number]

    def spent(self, place: int) -> tuple[float, float, float]:
        return self._spent[place]

    def state(self, place: int, number: int) -> bytes:
        return self._states[place, number]

    def restore(self, place: int, number: int, state: bytes | None) -> None:
        if state is None:
            return
        self._states[place, number - 1] = state
        for member in self.pool.members:
            member.next.pop(place, None)
        if not unpacked(state)["env"]:
            self._begun[place] = number

    def publish(self, version: int) -> None:
        self._weights.write(version)
        self.set_weights(version, self._weights.state(version))

    def weights(self, version: int) -> Tensor:
        kept = self._versions[version]
        array = np.frombuffer(kept, np.uint8) if isinstance(kept, bytes) else self.connection.call(ray.get, kept)
        return torch.from_numpy(array.copy())

    def set_weights(self, version: int, weights: Tensor) -> None:
        array = weights.numpy()
        small = array.nbytes <= INLINE
        self._versions[version] = array.tobytes() if small else self.connection.call(ray.put, array)
        self._versions.pop(version - self.job.versions, None)

    def details(self) -> dict[str, float]:
        pool = self.pool
        return {"actors": len(pool.members), "actors_lost": pool.lost, "seconds_lost": pool.seconds_lost}

    def advice(self, seconds: float) -> str:
        least = CALLS * self.seconds_per_call
        if seconds >= least:
            return ""
        steps = self.job.spec.num_steps
        enough = ceil(steps * least / max(seconds, 1e-9))
        return (
            f". A fragment takes {seconds * 1e3:.3g} ms, less than {CALLS} calls of {self.seconds_per_call * 1e3:.2g} "
            f"ms: num_steps={enough} would do, and without cluster it is faster"
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self.connection.lost:
                self.connection.call(self._end)
            self.connection.close()

    def _end(self) -> None:
        self._open.clear()
        self._versions.clear()
        self.pool.close()
