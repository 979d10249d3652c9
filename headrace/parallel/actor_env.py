"""The environments of actors in the learner's process (ActorEnv), and the protocol of what carries out orders to
collect (Executor), on this machine or on a cluster."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from headrace.core.cores import partition
from headrace.core.types import StateDict
from headrace.data.rollout import Column, Columns, Rollout
from headrace.envs.base import Env
from headrace.envs.gym.agent_groups import AgentGroups
from headrace.envs.workers.env import release, sendable
from headrace.envs.workers.process import Workers
from headrace.envs.workers.protocol import Task
from headrace.envs.workers.resources import check_processes, in_words
from headrace.envs.workers.transport import Transport
from headrace.parallel.actor import Acting, ActorFacts, CollectorSpec, Part
from headrace.parallel.fragments import SLOTS
from headrace.parallel.schedule import Fragment
from headrace.policies.base import Policy

UNDER_WAY = 1.0  # s that an actor has to finish its present step on closing
MakePart = Callable[[int, int], Env]  # (n, number of the first) -> these n environments


class Job(NamedTuple):
    """Facts that all orders of a training share."""

    policy: Policy  # the learner's; publish() writes it as it is then
    spec: CollectorSpec
    columns: Columns  # of rollouts of all environments
    versions: int  # of weights that are kept
    learner: Any = None  # a gradient_actor.LearnerSpec, where actors send gradients
    slots: int = SLOTS  # of each actor's fragments


class Executor(Protocol):
    """Carries out orders to collect, and holds the fragments. An order names the part of the environments that collects
    (its place), the number of the fragment, and the version of the weights.

    A lost process is replaced, and its order carried out again from the state before it, with the same result. A
    fragment's memory is not reused until release(). The states after the last fragments of each place are kept.
    """

    def begin(self) -> None:
        """Start all processes, and wait until they are ready for orders. Raises the exceptions of environments."""

    def order(self, orders: list[Fragment]) -> None:
        """Order these fragments. A place has at most one open order."""

    def wait(self, timeout: float | None) -> list[int]:
        """Return the places that have carried out their orders. If there are none yet, waits until something happens,
        at most `timeout` seconds. Raises the exceptions of environments, and WorkerError if an actor is lost and cannot
        be replaced."""

    def rollout(self, fragment: Fragment) -> Rollout:
        """The rollout of a fragment, [T, n]."""

    def tensors(self, fragment: Fragment) -> list[Tensor]:
        """The columns of a fragment in order, [T, agents, copies, ...]."""

    def release(self, fragments: list[Fragment]) -> None:
        """Allow the memory of these fragments to be reused."""

    def spent(self, place: int) -> tuple[float, float, float]:
        """Seconds that the last fragment of a place took: wall time, CPU time, and the actor's wait for the order."""

    def state(self, place: int, number: int) -> bytes:
        """The state after a fragment, which must be one of the last two of its place."""

    def restore(self, place: int, number: int, state: bytes | None) -> None:
        """Continue at fragment `number` from the state before it; None for the beginning."""

    def publish(self, version: int) -> None:
        """Store the policy's present weights as this version."""

    def weights(self, version: int) -> Tensor:
        """A version's weights as bytes, uint8."""

    def set_weights(self, version: int, weights: Tensor) -> None:
        """Store weights() of an earlier training as this version."""

    def details(self) -> dict[str, float]:
        """Numbers to log."""

    def advice(self, seconds: float) -> str:
        """Advice on a faster setting, "" for none. seconds: time that a fragment takes."""

    def close(self) -> None:
        """Let actors give up what they are collecting."""


class ActorEnv(Env):
    """N environments in the processes of actors. Only actors step them: see parallel.actors.

    make_part(n, first): makes n environments in an actor's process, numbered from `first` on. It is sent there by
    cloudpickle. actors: the number of processes; or Workers, which stay open when this is closed.
    on_error: what happens when environments that cannot be saved are lost with their process: "raise", or "restart"
    them with new episodes and count it in `restarts`.
    step_timeout: seconds without a step after which an actor counts as hanging.
    set_up, clean_up: called in each process with its number, first and last of all.
    role: the Role of the processes. executor: makes an Executor that starts its own processes, such as those of a
    cluster; None for processes of this machine.
    device: the learner's device. collect_device: the device on which the actors' copies of the policy act.
    Raises TypeError for a function that cannot be sent; ValueError for a number of actors that does not fit.
    """

    backend = "actors"
    fixed_params = "those of actors are in their processes: use workers, or neither"

    def __init__(
        self,
        make_part: MakePart,
        num_copies: int,
        actors: int | Workers,
        *,
        on_error: str = "raise",
        step_timeout: float = 60.0,
        set_up: Callable[[int], None] | None = None,
        clean_up: Callable[[int], None] | None = None,
        device: torch.device | str = "cpu",
        collect_device: torch.device | str = "cpu",
        role: type[Acting] = Acting,
        executor: Callable[[ActorEnv, Job], Executor] | None = None,
    ) -> None:
        if isinstance(actors, int) and not 1 <= actors <= num_copies:
            raise ValueError(f"actors must be between 1 and num_envs = {num_copies}, got {actors}")
        self.device, self.collect_device = torch.device(device), torch.device(collect_device)
        self.on_error, self.step_timeout = on_error, step_timeout
        self.executor, self.make_part = executor, make_part
        self.shared = ""  # describes the memory shared with the actors
        self.lost = 0  # environments made again because their process was gone
        if executor is not None:
            if not isinstance(actors, int):
                raise ValueError("actors of a cluster are started there: give their number in place of Workers")
            self.parts = divided(num_copies, actors)
            self.answers = [0] * actors  # environments that each actor has made again
            self._describe(_facts(make_part), num_copies)
            return
        begin, end = set_up and sendable(set_up), clean_up and sendable(clean_up)
        owner = actors if isinstance(actors, Workers) else Workers(actors)
        check_processes(min(owner.number, num_copies))
        self.transport = Transport(owner.acquire(num_copies), step_timeout)
        self._close = weakref.finalize(self, _release, self.transport, owner, owner is actors)
        count = len(self.transport.workers)
        self.answers = self.transport.answers
        self.parts = divided(num_copies, count)
        try:
            self.transport.assign(
                [
                    Task(
                        partial(role, sendable(partial(make_part, part.size, part.first)), part),
                        f"envs {part.first} to {part.first + part.size - 1}",
                        *(place, count, begin, end, "actor"),
                    )
                    for place, part in enumerate(self.parts)
                ]
            )
            self._describe(self.transport.facts[0], num_copies)
        except BaseException:
            self.close()
            raise

    def _describe(self, facts: ActorFacts, num_copies: int) -> None:
        self.name, self.max_steps = facts.name, facts.max_steps
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.agents, self.groups, self.nested = facts.agents, facts.groups, facts.nested
        self.learned = facts.learned
        self.num_envs = num_copies * len(facts.agents)

    def columns(self) -> dict[str, Column | Columns]:
        """The columns that the environments write, and the action; by group where spaces differ."""
        return AgentGroups(self.groups, self.spaces).columns(self.num_copies)

    def plan(self) -> str:
        """Describe the actors and their shared memory in a line."""
        if self.executor is not None:
            return f"{len(self.parts)} actors with {self.num_copies} environments of {self.name}; {self.shared}"
        pids = [worker.process.pid for worker in self.transport.workers]
        what = f"actors with {self.num_copies} environments of {self.name}"
        return in_words(what, pids, self.shared)

    def computing(self) -> list[int]:
        """A file descriptor for each process of this machine that is collecting. It becomes readable once the process
        has answered or is gone."""
        return [] if self.executor is not None else self.transport.awaited()

    @property
    def restarts(self) -> int:
        return self.lost + sum(self.answers)

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Refused: actors reset and step their own environments."""
        raise NotImplementedError("the environments of actors are not stepped from here")

    def step(self, rollout: Rollout, t: int) -> None:
        """Refused: actors reset and step their own environments."""
        raise NotImplementedError("the environments of actors are not stepped from here")

    def state_dict(self) -> StateDict:
        """Return an empty state: the environments' states are part of the actors' collectors' states."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Do nothing: see state_dict()."""

    def close(self) -> None:
        if self.executor is None:
            self._close()


def _facts(make_part: MakePart) -> ActorFacts:
    """Make one environment here, read its facts, and close it."""
    env = make_part(1, 0)
    try:
        return ActorFacts.of(env)
    finally:
        env.close()


def divided(num_copies: int, actors: int) -> list[Part]:
    """Divide `num_envs` environments among actors."""
    return [Part(part.start, part.stop - part.start, num_copies) for part in partition(num_copies, actors)]


def _release(transport: Transport, owner: Workers, keep: bool) -> None:
    """Return processes to their owner, or end them. Fragments being collected are given up soon."""
    transport.finish_orders(UNDER_WAY)
    release(transport, owner, keep)
