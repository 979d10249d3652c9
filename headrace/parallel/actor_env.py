"""The environments of actors, as the learner's process sees them: what they are, the processes that hold them, and what
carries out the orders of these (Executor): processes of this machine, or of a cluster."""

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

UNDER_WAY = 1.0  # s in which an actor may end the step that it is taking when all is closed
MakePart = Callable[[int, int], Env]  # of n and the number of the first: these environments


class Job(NamedTuple):
    """What is the same for all orders of a training."""

    policy: Policy  # the learner's; publish() writes it as it is then
    spec: CollectorSpec
    columns: Columns  # of rollouts of all environments
    versions: int  # of weights that are kept
    learner: Any = None  # a gradient_actor.LearnerSpec, where actors send gradients
    slots: int = SLOTS  # of each actor's fragments


class Executor(Protocol):
    """Carries out orders, and holds what came of them. An order says which part of the environments (its place)
    collects its fragment of which number with weights of which version.

    A lost process is replaced, and its order carried out again from the state before it: the result is the same.
    Until release() a fragment stays where it is; the states after the last ones of each place are kept.
    """

    def begin(self) -> None:
        """Start what is needed, and wait until all are ready for orders. Raises the exceptions of environments."""

    def order(self, orders: list[Fragment]) -> None:
        """Let these fragments be collected. A place has one order at a time."""

    def wait(self, timeout: float | None) -> list[int]:
        """The places whose orders are carried out. Returns at once where there are some, else when something has
        happened, or after `timeout` seconds. Raises the exceptions of environments; WorkerError where an actor is lost
        and cannot be replaced."""

    def rollout(self, fragment: Fragment) -> Rollout:
        """What was collected, [T, n]."""

    def tensors(self, fragment: Fragment) -> list[Tensor]:
        """Its columns in their order, [T, agents, copies, ...]."""

    def release(self, fragments: list[Fragment]) -> None:
        """These are not read any more."""

    def spent(self, place: int) -> tuple[float, float, float]:
        """Seconds of the last fragment of a place: in all, of a core, and of waiting for its order."""

    def state(self, place: int, number: int) -> bytes:
        """The state after a fragment, one of the last two of its place."""

    def restore(self, place: int, number: int, state: bytes | None) -> None:
        """Go on at fragment `number` from the state before it; None for the beginning."""

    def publish(self, version: int) -> None:
        """The policy as it is now has this version."""

    def weights(self, version: int) -> Tensor:
        """A version's weights as bytes, uint8."""

    def set_weights(self, version: int, weights: Tensor) -> None:
        """Put back what weights() gave."""

    def details(self) -> dict[str, float]:
        """What is to be logged."""

    def advice(self, seconds: float) -> str:
        """What would be faster, where that is plain; "" for nothing. seconds: of collecting a fragment."""

    def close(self) -> None:
        """Let actors give up what they are collecting."""


class ActorEnv(Env):
    """N environments in the processes of actors. Only actors step them: see parallel.actors.

    make_part(n, first): makes n of them in an actor's process, the first of which is number `first` of all; it is sent
    there by cloudpickle. actors: the number of processes; or Workers, which are kept when this is closed.
    on_error: what happens when environments that cannot be saved are lost with their process: "raise", or "restart"
    them with new episodes and count it in `restarts`.
    step_timeout: seconds without a step after which an actor counts as hanging.
    set_up, clean_up: called in each process with its number, first and last of all.
    role: what its processes do. executor: makes what carries out orders, and starts processes elsewhere, such as
    those of a cluster; None: processes of this machine.
    device: on which rollouts are learned from. collect_device: on which the actors' copies of the policy act.
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
        self.shared = ""  # what memory is shared with the actors, in words
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
        """The memory of processes, weights and fragments, in a line."""
        if self.executor is not None:
            return f"{len(self.parts)} actors with {self.num_copies} environments of {self.name}; {self.shared}"
        pids = [worker.process.pid for worker in self.transport.workers]
        what = f"actors with {self.num_copies} environments of {self.name}"
        return in_words(what, pids, self.shared)

    def computing(self) -> list[int]:
        """A descriptor of each process of this machine that is collecting, which can be read once it has answered or is
        gone."""
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
        """Empty: their states are in those of the actors' collectors."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Nothing: see state_dict()."""

    def close(self) -> None:
        if self.executor is None:
            self._close()


def _facts(make_part: MakePart) -> ActorFacts:
    """Those of one environment, made here and closed again."""
    env = make_part(1, 0)
    try:
        return ActorFacts.of(env)
    finally:
        env.close()


def divided(num_copies: int, actors: int) -> list[Part]:
    """Which of so many environments each of some actors has."""
    return [Part(part.start, part.stop - part.start, num_copies) for part in partition(num_copies, actors)]


def _release(transport: Transport, owner: Workers, keep: bool) -> None:
    """Give processes back to their owner, or end them; what they are collecting is soon given up."""
    transport.finish_orders(UNDER_WAY)
    release(transport, owner, keep)
