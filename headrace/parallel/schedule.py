"""Decides which fragments actors are ordered to collect, and which of them make up the next rollout.

The lag of a fragment is the number of updates between the policy that collected it and the one that learns from it. It
is bounded by waiting, never by throwing fragments away, which would favour short and fast episodes.

Why no lag is above the bound L (`max_lag`), and why the learner never waits for ever. Let a rollout have c fragments
(`count`), and let x_0, x_1, ... be the fragments that were ordered and not taken, the oldest first. Before a rollout,
lag(x_i) + i // c <= L for all i: taken in this order, none is too old. This stays true:
- A new order has the newest version, so it comes last. Before a rollout its lag is 0 and there are at most c * (L + 1)
  in all; after one its lag has yet to grow by 1, and there are at most c * L.
- A rollout is taken only where it stays true of the others, each of which is an update older then.
- Once all open orders are answered, the c oldest can be taken: x_(i + c) becomes x_i when its lag grows by 1. And there
  are c, since an actor with a free slot is given an order while there is room.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.parallel.fragments import SLOTS

LOG = "fragments.bin"  # in a run's folder: the fragments that were learned, in their order
RECORD = np.dtype([("actor", "<i4"), ("version", "<i4"), ("number", "<i8")])  # 16 bytes


class Fragment(NamedTuple):
    """An order to collect, or what came of it. The oldest are the first when sorted."""

    version: int  # of the weights: number of updates before they were written
    number: int  # position among its actor's fragments
    place: int  # the actor's number


def records(fragments: list[Fragment]) -> bytes:
    """Fragments as they are logged."""
    return np.array([(x.place, x.version, x.number) for x in fragments], RECORD).tobytes()


def check_equal(num_envs: int, actors: int) -> None:
    """Raise ValueError if actors would have different numbers of environments, and so fragments of different sizes."""
    if num_envs % actors == 0:
        return
    less = num_envs // actors * actors
    divisors = [number for number in range(1, num_envs + 1) if num_envs % number == 0]
    near = sorted({max(x for x in divisors if x < actors), min(x for x in divisors if x > actors)})
    raise ValueError(
        f"collection='async' needs as many environments in each actor, and {num_envs} do not divide by {actors}: give "
        f"num_envs={less} or {less + actors}, or actors={' or '.join(map(str, near))}"
    )


class ReplayOrder:
    """The fragments of all rollouts of a run, in the order in which they were learned, read from its log.

    count: number of fragments of a rollout; None for the number of actors.
    Raises ValueError for a log that does not begin with the run, has rows missing, or is of another number of actors.
    """

    def __init__(self, path: Path, actors: int, count: int | None = None) -> None:
        logged = np.fromfile(path, RECORD)
        self.count = count or actors
        self.rounds = len(logged) // self.count
        self._rows = logged[: self.rounds * self.count]
        self._versions = [self._rows["version"][self._rows["actor"] == place] for place in range(actors)]
        if len(logged) and (found := int(logged["actor"].max()) + 1) > actors:
            raise ValueError(f"{path} is the log of {found} actors, and these are {actors}: give actors={found}")
        for place in range(actors):
            numbers = self._rows["number"][self._rows["actor"] == place]
            if (gaps := np.flatnonzero(numbers != np.arange(len(numbers)))).size:
                at = int(gaps[0])
                raise ValueError(
                    f"{path} has fragment {numbers[at]} of actor {place} where {at} belongs: rows are missing"
                )

    def rollout(self, number: int) -> list[Fragment]:
        """The fragments of a rollout; empty after the last."""
        rows = self._rows[number * self.count : (number + 1) * self.count]
        return [Fragment(int(row["version"]), int(row["number"]), int(row["actor"])) for row in rows]

    def version(self, place: int, number: int) -> int | None:
        """The version of the weights with which an actor collected a fragment; None after its last."""
        versions = self._versions[place]
        return int(versions[number]) if number < len(versions) else None


class Schedule:
    """Plans the orders of some actors. It deals with numbers alone, not with processes or memory.

    in_step: whether a rollout is made of one fragment of each actor, all of the same number. Otherwise it is made of
    the oldest finished fragments, several of which may be of one actor. max_lag: 0 if actors and the learner take
    turns, 1 or more if not. replay: the rollouts of another run, which are repeated first. count: fragments of a
    rollout; None for the number of actors. slots: largest number of an actor's fragments that are ordered or collected,
    but not taken.
    """

    def __init__(
        self,
        actors: int,
        in_step: bool,
        max_lag: int,
        replay: ReplayOrder | None = None,
        count: int | None = None,
        slots: int = SLOTS,
    ) -> None:
        self.in_step, self.max_lag, self.replay = in_step, max_lag, replay
        self.count, self.slots = count or actors, slots
        self.version = 0  # number of updates so far
        self.rounds = 0  # number of rollouts so far
        self.taken = [0] * actors  # number of fragments of each actor learned from
        self.ordered = [0] * actors  # number of fragments of each actor ordered
        self.open: dict[int, Fragment] = {}  # orders not answered yet, by place
        self.held: list[Fragment] = []  # collected and not yet taken
        self.planned: dict[tuple[int, int], int] = {}  # (place, number) -> the version to collect it with

    @property
    def replaying(self) -> bool:
        """True if the next rollout repeats one of the other run."""
        return self.replay is not None and self.rounds < self.replay.rounds

    def ended(self) -> bool:
        """Tell whether the last rollout was the last one of the other run."""
        return self.replay is not None and self.rounds == self.replay.rounds

    def orders(self, learning: bool = False) -> list[Fragment]:
        """Return the orders that can be given now, and record them as given.

        learning: whether the policy is about to be updated from the rollout that was taken last."""
        self._plan()
        found = []
        room = self.count * (self.max_lag + (not learning)) - len(self.waiting())
        # actors with the fewest orders first, since there may not be room for all
        for number, place in sorted((number, place) for place, number in enumerate(self.ordered)):
            if place in self.open or number - self.taken[place] >= self.slots:
                continue
            version = self.planned.get((place, number))
            if version is None and not self.replaying and room > 0:
                version, room = self.version, room - 1
            if version is None or version > self.version:
                continue
            self.planned.pop((place, number), None)
            self.ordered[place] += 1
            self.open[place] = Fragment(version, number, place)
            found.append(self.open[place])
        return found

    def _plan(self) -> None:
        """Plan the next fragments of each actor as they were in the run that is replayed."""
        if self.replay is None or not self.replaying:
            return
        for place, number in enumerate(self.ordered):
            for coming in range(number, self.taken[place] + self.slots):
                if (version := self.replay.version(place, coming)) is not None:
                    self.planned[place, coming] = version

    def answer(self, place: int) -> None:
        """Record that an actor has carried out its order."""
        self.held.append(self.open.pop(place))

    def ask(self, fragment: Fragment) -> None:
        """Reopen an order that was carried out: its actor is asked for more."""
        self.held.remove(fragment)
        self.open[fragment.place] = fragment

    def complete(self) -> list[Fragment]:
        """The fragments of the next rollout; empty if it has to wait for more."""
        if self.replay is not None and self.replaying:
            found = self.replay.rollout(self.rounds)
        elif self.in_step:
            found = sorted(fragment for fragment in self.held if fragment.number == self.rounds)
        else:
            found = sorted(self.held)[: self.count]
        if len(found) < self.count or not set(found) <= set(self.held):
            return []
        # the others will be one update older, and are taken in this order
        others = sorted(set(self.waiting()) - set(found))
        late = any(self.lag(x) + 1 + at // self.count > self.max_lag for at, x in enumerate(others))
        return [] if late else found

    def take(self, fragments: list[Fragment]) -> None:
        """Record that a rollout was made of these fragments: their slots are free."""
        for fragment in fragments:
            self.taken[fragment.place] = fragment.number + 1
            self.held.remove(fragment)
        self.rounds += 1

    def lag(self, fragment: Fragment) -> int:
        """Number of updates since the fragment's weights were written."""
        return self.version - fragment.version

    def waiting(self) -> list[Fragment]:
        """Fragments that were ordered and not taken, and those planned with a version that exists already."""
        planned = (Fragment(version, number, place) for (place, number), version in self.planned.items())
        return [*self.open.values(), *self.held, *(x for x in planned if x.version <= self.version)]

    def resume(self, version: int, rounds: int, taken: list[int], waiting: list[Fragment]) -> None:
        """Continue from the numbers of another schedule. Raises ValueError if that was of another kind."""
        if self.in_step and set(taken) != {rounds}:
            raise ValueError("saved were rollouts of collection='async': it cannot become another on resuming")
        lag = max((version - fragment.version for fragment in waiting), default=0)
        if lag > self.max_lag:
            raise ValueError(
                f"saved were orders to collect with policies {lag} updates old, and here they may be {self.max_lag}: "
                "keep collection and max_policy_lag"
            )
        self.version, self.rounds, self.taken, self.ordered = version, rounds, list(taken), list(taken)
        self.planned = {(x.place, x.number): x.version for x in waiting}
