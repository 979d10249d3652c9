"""Counts of compilations of losses, and reasons why losses are not compiled. They are saved with a run, so that a
resumed run decides the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

from headrace.core.types import StateDict

MOST = 16  # conditions that are known: of more, those are dropped that were not met for the longest


@dataclass
class Use:
    """Calls of one program, also of those before a run was resumed."""

    calls: int = 0


@dataclass(eq=False)
class Tries:
    """Findings about one loss, for calls with one module.

    calls: of the loss. made: programs. given_up: why no more are made; empty while they are. known: calls of programs
    by the digests of their conditions; the one that was used last is the last. refused: reasons by such digests.
    varying: names of numbers that modules hold, and that have changed: they are inputs of programs.
    run: which keeps this; None without one. fresh: whether learners have yet to compare what was found out.
    """

    calls: int = 0
    made: int = 0
    given_up: str = ""
    known: dict[str, Use] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    run: RunTries | None = None
    fresh: bool = True

    def __post_init__(self) -> None:
        self._here = set[str]()  # digests whose programs this process has made

    def had(self, digest: str) -> bool:
        """True if the run had a program for these conditions before it was resumed, and this process has none so
        far."""
        resumed = digest in self.known and digest not in self._here
        self._here.add(digest)
        return resumed

    def vary(self, names: frozenset[str]) -> None:
        """Note numbers that have changed, which become inputs of later programs."""
        if not names <= self.varying:
            self.varying |= names

    def refuse(self, digest: str, reason: str) -> None:
        """Note why there is no program for conditions."""
        self.refused[digest] = reason
        for old in [*self.refused][:-MOST]:
            del self.refused[old]

    def use(self, digest: str) -> Use:
        """Find the calls of a program, which becomes the last used one. digest: empty for conditions without one."""
        found = self.known.pop(digest, None) or Use()
        if digest:
            self.known[digest] = found
            for old in [*self.known][:-MOST]:
                del self.known[old]
        return found

    def state_dict(self) -> StateDict:
        """All from which another process goes on, in JSON's types."""
        known = [[digest, use.calls] for digest, use in self.known.items()]
        counts: StateDict = {"calls": self.calls, "made": self.made, "given_up": self.given_up}
        return {**counts, "known": known, "refused": dict(self.refused), "varying": sorted(self.varying)}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from state_dict()."""
        self.calls, self.made, self.given_up = state["calls"], state["made"], state["given_up"]
        self.known = {digest: Use(calls) for digest, calls in state["known"]}
        self.refused = dict(state["refused"])
        if self.varying != {*state["varying"]}:
            self.varying = frozenset(state["varying"])


class RunTries:
    """The Tries of a run: by the names of losses, in the order in which modules were first given to each."""

    def __init__(self) -> None:
        self._of: dict[str, list[Tries]] = {}
        self._taken: dict[str, int] = {}

    def take(self, name: str) -> Tries:
        """The Tries of a loss for a module that it has not been given in this process."""
        own, number = self._of.setdefault(name, []), self._taken.get(name, 0)
        if number == len(own):
            own.append(Tries(run=self))
        self._taken[name] = number + 1
        return own[number]

    @contextmanager
    def active(self, settings: AbstractContextManager[None] | None = None) -> Iterator[None]:
        """Count losses that are called within this block, which is within `settings` too, as losses of this run."""
        before = _active.set(self)
        try:
            with settings or nullcontext():
                yield
        finally:
            _active.reset(before)

    def state_dict(self) -> StateDict:
        """All from which another process goes on, in JSON's types."""
        return {name: [tries.state_dict() for tries in own] for name, own in self._of.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from state_dict(). Losses that were called before, as by a warm-up, keep their Tries, with what the
        state says."""
        for name, saved in state.items():
            own = self._of.setdefault(name, [])
            own += [Tries(run=self) for _ in saved[len(own) :]]
            for tries, known in zip(own, saved, strict=False):
                tries.load_state_dict(known)


_active: ContextVar[RunTries | None] = ContextVar("active", default=None)


def active_run() -> RunTries | None:
    """The run within whose active() this is; None outside."""
    return _active.get()
