"""The actors on the nodes of a cluster: starts them, replaces lost ones, and assigns places to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from headrace.core.terminal import tell
from headrace.envs.workers.process import START_TIMEOUT, WorkerError
from headrace.envs.workers.transport import TRIES
from headrace.parallel.cluster.node_actor import ClusterActor

COLORS = re.compile("\x1b\\[[0-9;]*m")  # in Ray's tracebacks
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # s between two tries to start an actor; each is twice as long as the one before
UNDER_WAY = 1.0  # s that an actor has to finish on closing
STALLED = 30.0  # s without a new actor after which those that have started begin: the other cores may be taken


@dataclass(eq=False)
class Member:
    """An actor: a process on a node."""

    actor: Any  # Ray's handle
    node: str = ""
    host: str = ""
    pid: int = 0
    next: dict[int, int] = field(default_factory=dict)  # by place: the fragment that it can collect without a state

    def __str__(self) -> str:
        return f"the actor on {self.host or 'its way'} (node {self.node[:8] or 'unknown'})"


class ActorPool:
    """Actors that are ready, actors that are starting, and the actor of each place.

    places: the number of places, and so of actors wanted. Each actor has one core. While there are fewer actors than
    places, each has several.
    gpus: number of GPUs of each actor.
    movable: whether another actor can continue a place without a loss.
    All of this runs in Ray's thread.
    """

    def __init__(self, places: int, movable: Callable[[int], bool], gpus: int = 0) -> None:
        self.places, self._movable = places, movable
        self._needs = {"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}
        self._setup: Any = None  # a reference to a Setup
        self.members: list[Member] = []
        self.joining: dict[Any, Member] = {}  # by a Ray reference that is fulfilled once they are ready
        self.of: dict[int, Member] = {}  # the actor of each place
        self.lost = 0  # number of actors lost so far
        # not in a placement group: Ray places what a group has lost only where there is room for all of that
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        options["enable_task_events"] = False  # Ray's record of each actor's tasks is not used
        self._class: Any = ray.remote(**options)(ClusterActor)
        self._pause, self._next_try = FIRST_PAUSE, 0.0
        self._short_since: float | None = None
        self._seconds_lost = 0.0

    def start(self, setup: Any) -> None:
        """Start as many actors as there is room for; others follow when there is more. Raises WorkerError without room,
        and the error of an actor that does not start.

        setup: a reference to a Setup."""
        self._setup = setup
        free, all_of_them = ray.available_resources(), ray.cluster_resources()
        room = min(self.places, *(int(free.get(kind, 0) // number) for kind, number in self._needs.items()))
        if not room:
            kind = next(kind for kind, number in self._needs.items() if free.get(kind, 0) < number)
            used = int(all_of_them.get(kind, 0))
            others = f"{used} are in use by others. Wait for them, or add" if used else "none of its nodes has one. Add"
            what = {"CPU": "core", "GPU": "GPU"}[kind]
            raise WorkerError(
                f"the cluster has no free {what} for an actor: {others} a node (`ray start --address ...`)"
            )
        if room < self.places:
            tell(f"the cluster has room for {room} of {self.places} actors; the others follow when there is more")
        self._await_start(room)
        for place in range(self.places):
            self.of[place] = self.members[place % len(self.members)]
        if len(self.members) < self.places:
            self._note_strength()

    def _await_start(self, room: int) -> None:
        """Wait until `room` actors are ready, or until no more follow. Raises the error if one does not start."""
        self._request()
        failures, last = 0, monotonic()
        while len(self.members) < room:
            ready, _ = ray.wait(list(self.joining), timeout=1.0)
            for ref in ready:
                if error := self.join(ref):
                    failures += 1
                    if failures == TRIES:
                        raise error
                last = monotonic()
            self._request()
            if self.members and monotonic() - last > STALLED:
                tell(f"{len(self.members)} of {self.places} actors have started; the others follow when there is room")
                return
            if monotonic() - last > START_TIMEOUT:  # since the last one: many take long on few cores
                raise WorkerError(f"no actor has started in {START_TIMEOUT:g} s: are the nodes busy with other work?")

    def _request(self) -> None:
        """Ask for the actors that are missing, once the pause after the last failure is over."""
        if monotonic() < self._next_try:
            return
        for _ in range(self.places - len(self.members) - len(self.joining)):
            actor = self._class.remote()
            self.joining[actor.begin.remote(self._setup)] = Member(actor)

    def join(self, ref: Any) -> Exception | None:
        """Take an actor that is ready, and give it places. If it failed, return the error and request another one
        later."""
        member = self.joining.pop(ref)
        try:
            member.node, member.host, member.pid = ray.get(ref)
        except RayError as error:
            ray.kill(member.actor)
            if monotonic() >= self._next_try:
                self._next_try = monotonic() + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return original(error, member)
        self._pause = FIRST_PAUSE
        self.members.append(member)
        if self.of:
            self._share_with(member)
            self._note_strength()
            tell(f"{member} is there: {len(self.members)} of {self.places} actors")
        return None

    def _share_with(self, new: Member) -> None:
        """Give an actor places of the actors that have most, until it has its share."""
        have: dict[Member, list[int]] = {member: [] for member in self.members}
        for place, member in self.of.items():
            if self._movable(place):
                have[member].append(place)
        while len(most := max(have.values(), key=len)) > len(have[new]) + 1:
            place = most.pop()
            have[new].append(place)
            self.of[place].actor.drop.remote(place)  # after what it was ordered before
            self.of[place].next.pop(place, None)
            self.of[place] = new

    def lose(self, member: Member) -> None:
        """Remove a lost actor: the others take its places until another one has started."""
        if member not in self.members:
            return
        self.members.remove(member)
        self.lost += 1
        ray.kill(member.actor)  # if only the connection is lost, it must not come back
        places = [place for place, other in self.of.items() if other is member]
        for place in places:
            del self.of[place]
        self.spread(places)
        self._note_strength()

    def spread(self, places: list[int]) -> None:
        """Give places to the actors that have fewest. Without actors, the places stay without one."""
        for place in places:
            counts = {member: 0 for member in self.members}
            for member in self.of.values():
                counts[member] += 1
            if counts:
                self.of[place] = min(counts, key=lambda member: counts[member])

    def look(self) -> None:
        """Request missing actors, and give places without an actor to those that are ready."""
        self._request()
        if missing := [place for place in range(self.places) if place not in self.of]:
            self.spread(missing)

    def _note_strength(self) -> None:
        now, short = monotonic(), len(self.members) < self.places
        if self._short_since is not None:
            self._seconds_lost += now - self._short_since
        self._short_since = now if short else None

    @property
    def seconds_lost(self) -> float:
        """Seconds so far with fewer actors than places."""
        self._note_strength()
        return self._seconds_lost

    def close(self) -> None:
        """End all actors. Those that are in a step have a second to finish it."""
        closing = [member.actor.close.remote() for member in self.members]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=UNDER_WAY)
        for member in [*self.members, *self.joining.values()]:
            ray.kill(member.actor)


def original(error: Exception, member: Member) -> Exception:
    """An actor's exception, to be raised here, with the actor's traceback."""
    if isinstance(error, RayTaskError):
        cause: Exception = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error.cause))
        cause.add_note(f"in {member}:\n{COLORS.sub('', str(error))}")
        return cause
    return WorkerError(f"{member} is lost: {error}")


def measured(member: Member, size: int, calls: int = 5) -> float:
    """Seconds of a call of an actor that returns `size` bytes, the minimum of several calls."""
    spent = []
    for _ in range(calls):
        began = monotonic()
        ray.get(member.actor.echo.remote(size))
        spent.append(monotonic() - began)
    return min(spent)
