"""Carries out orders with processes of this machine, in shared memory."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from headrace.core.fused import kernels_serve
from headrace.data.rollout import Rollout
from headrace.data.shared_memory import FOLDER, shared_size
from headrace.envs.workers.process import START_TIMEOUT
from headrace.envs.workers.protocol import ASSIGN
from headrace.envs.workers.resources import check_rollout
from headrace.parallel.actor import COLLECT, MEMORY, POLICY, RESTORE, SLOTS
from headrace.parallel.actor_env import ActorEnv, Job
from headrace.parallel.fragments import Fragments, of_copies, part_columns, unpacked
from headrace.parallel.gradient_actor import LEARNER, SUMS, GradientSlots
from headrace.parallel.schedule import Fragment
from headrace.parallel.weights import Weights

SPARE = 4096  # bytes by which a state may be longer than twice its first length


class LocalExecutor:
    """An Executor on this machine. Each place has a process, which env.transport starts and replaces.

    gradients: the shared memory of each place for gradients, if actors send these.
    """

    def __init__(self, env: ActorEnv, job: Job) -> None:
        self.env, self.job = env, job
        self.fragments: dict[int, Fragments] = {}  # by place
        self.gradients: dict[int, GradientSlots] = {}  # by place
        self.open: dict[int, Fragment] = {}  # orders not carried out yet, by place
        self._tensors: dict[int, list[list[Tensor]]] = {}  # by place and slot
        self._new: dict[int, int] = {}  # by place of an unready process: it makes its role (ASSIGN) or POLICY
        self._begun = [0] * len(env.parts)  # the fragment at which each actor began new episodes
        self._beginning: set[int] = set()  # places whose processes load or restore something before their first step
        self._weights = Weights(job.policy, job.versions)

    def begin(self) -> None:
        """Send the policy and shared memory to all actors, which compile what they need."""
        steps, columns, parts = self.job.spec.num_steps, self.job.columns, self.env.parts
        envs = parts[0].total * self.env.num_agents
        check_rollout(self.job.slots * shared_size(steps, envs, columns), steps, envs, FOLDER)
        self.env.transport.heartbeat = partial(_steps_begun, self.fragments)
        for place in range(len(parts)):
            self._send_policy(place)
        while self._new:
            self.wait(None)
        size, each = self._weights.layout.size, self.fragments[0].memory.size
        self.env.shared = f"weights {size / 1e3:,.3g} kB, fragments {len(parts)} x {each / 1e3:,.3g} kB, shared"
        if self.gradients:
            self.env.shared += f"; gradients {len(parts)} x {self.gradients[0].memory.size / 1e3:,.3g} kB"

    def _send_policy(self, place: int) -> None:
        """Order a process to make its copy of the policy and compile what it needs."""
        self._new[place] = POLICY
        self.env.transport.start(place, POLICY, not kernels_serve(), self.job.spec, timeout=START_TIMEOUT)

    def _new_fragments(self, place: int, state_size: int) -> None:
        """Make the shared memory of an actor. state_size: bytes of its state now."""
        size = self.env.parts[place].size
        columns = part_columns(self.job.columns, self.env.num_copies, size)
        steps, num_envs = self.job.spec.num_steps, size * self.env.num_agents
        fragments = Fragments(steps, num_envs, columns, 2 * state_size + SPARE, slots=self.job.slots)
        self._tensors[place] = [of_copies(x, size, slice(None)) for x in fragments.rollouts]
        self.fragments[place] = fragments

    def _attach(self, place: int) -> None:
        """Send an actor its shared memory and that of the weights."""
        worker, learner = self.env.transport.workers[place], self.job.learner
        if learner is not None:  # before the weights, which its copy of the algorithm moves
            if place not in self.gradients:
                self.gradients[place] = learner.slots()
            memory = self.gradients[place].memory
            worker.tell(LEARNER, 0, (learner, memory.size), memory.descriptor)
        fragments, weights = self.fragments[place], self._weights.memory
        what = (fragments.rollouts[0].columns, fragments.room - 8, fragments.memory.size, weights.size, fragments.slots)
        worker.tell(MEMORY, 0, what, fragments.memory.descriptor, weights.descriptor)

    def order(self, orders: list[Fragment]) -> None:
        for order in orders:
            self.open[order.place] = order
            self._send(order)

    def _send(self, order: Fragment) -> None:
        where = order.number * SLOTS + self._weights.slot(order.version)
        timeout = START_TIMEOUT if order.place in self._beginning else None  # until its first step
        self._beginning.discard(order.place)
        self.fragments[order.place].plain[0] = not kernels_serve()
        self.env.transport.start(order.place, COLLECT, where, timeout=timeout)

    def add_sums(self, order: Fragment, known: int) -> None:
        """Let an actor go on with its gradient. known: number of sums over all actors that are known."""
        self.open[order.place] = order
        self.env.transport.start(order.place, SUMS, known)

    def wait(self, timeout: float | None) -> list[int]:
        done = []
        ready, lost = self.env.transport.get(timeout)
        for place in ready:
            if place in self._new:
                self._prepare(place)
            else:
                del self.open[place]
                done.append(place)
        for place in lost:
            self._replace(place)
        return done

    def _replace(self, place: int) -> None:
        """Replace a lost process. Raises the reason for the loss if its state is unknown and on_error does not allow
        new episodes, or if it has been lost several times at the same fragment."""
        env, order = self.env, self.open.get(place)
        number = order.number if order else 0
        if not self._known(place, number):
            if env.on_error != "restart":
                error = env.transport.failure(place)
                error.add_note("Its environments cannot be saved: on_error='restart' begins new episodes instead.")
                raise error
            env.lost += env.parts[place].size
        env.lost += env.transport.answers[place]
        env.transport.begin_replacing(place, number)
        self._new[place] = ASSIGN

    def _known(self, place: int, number: int) -> bool:
        """Tell whether another process can collect an actor's fragment `number` with the same result."""
        return number == self._begun[place] or bool(unpacked(self.fragments[place].state(number - 1))["env"])

    def _prepare(self, place: int) -> None:
        """Send a new process what it needs next, and finally the order of the process that it replaces."""
        if self._new[place] == ASSIGN:
            self._send_policy(place)
            return
        del self._new[place]
        self._beginning.add(place)
        if place not in self.fragments:
            self._new_fragments(place, self.env.transport.answers[place])
        self.env.transport.answers[place] = 0
        self._attach(place)
        if order := self.open.get(place):
            self._restore(place, order.number)
            self._send(order)

    def _restore(self, place: int, number: int) -> None:
        """Restore an actor's environments to their state before a fragment."""
        if not number:
            return
        if not unpacked(self.fragments[place].state(number - 1))["env"]:
            self._begun[place] = number
        self._beginning.add(place)
        self.env.transport.workers[place].tell(RESTORE, number)

    def rollout(self, fragment: Fragment) -> Rollout:
        return self.fragments[fragment.place].rollout(fragment.number)

    def tensors(self, fragment: Fragment) -> list[Tensor]:
        slots = self._tensors[fragment.place]
        return slots[fragment.number % len(slots)]

    def release(self, fragments: list[Fragment]) -> None:
        """Do nothing: the schedule orders no fragment into a slot that is still in use."""

    def spent(self, place: int) -> tuple[float, float, float]:
        seconds, core, waited = self.fragments[place].spent
        return float(seconds), float(core), float(waited)

    def state(self, place: int, number: int) -> bytes:
        return self.fragments[place].state(number)

    def restore(self, place: int, number: int, state: bytes | None) -> None:
        if state is not None:
            self.fragments[place].write_state(number - 1, state)
        self._restore(place, number)

    def publish(self, version: int) -> None:
        self._weights.write(version)

    def weights(self, version: int) -> Tensor:
        return self._weights.state(version)

    def set_weights(self, version: int, weights: Tensor) -> None:
        self._weights.set_state(version, weights)

    def details(self) -> dict[str, float]:
        return {}

    def advice(self, seconds: float) -> str:
        return ""

    def close(self) -> None:
        for fragments in self.fragments.values():
            fragments.give_up[0] = 1


def _steps_begun(fragments: dict[int, Fragments], place: int) -> int:
    """Number of steps that an actor's environments have begun, for environments in Python."""
    return int(fragments[place].heartbeat[0]) if place in fragments else 0
