"""How fast actors and learner are together, how long each of them takes, and which waits for which."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.cores import cores


@dataclass(frozen=True)
class Forecast:
    """What an update of a training with actors takes. Seconds were measured with all of them at work."""

    collection: str  # sync, overlapped, async
    rows: int  # of a rollout
    collect: tuple[float, ...]  # s of the last fragment, by actor
    slowest: float  # s of the slowest fragment of a rollout, in the mean
    busy: float  # fraction of these during which an actor kept a core busy
    learn: float  # s from a rollout to the next version of the policy
    update: float  # s from an update to the next, in the mean
    advice: str = ""  # what would be faster, by those who know the actors
    learners: int = 1  # each learns from its part of a rollout in `learn` seconds

    @property
    def ratio(self) -> float:
        """R: seconds of all environments' steps for a second of learning, as one process would take them."""
        return sum(self.collect) / max(self.learners * self.learn, 1e-9)

    def __str__(self) -> str:
        actors, learn = len(self.collect), f"learns {_duration(self.learn)}"
        who = "it "
        if self.learners > 1:
            who, learn = "", f"{self.learners} learners learn {_duration(self.learn)}"
        collect = f"{actors} collect" if actors > 1 else "1 collects"
        together = {
            "sync": f"{collect} {_duration(self.slowest)}, then {who}{learn}",
            "overlapped": f"{learn} while {collect} {_duration(self.slowest)}",
            "async": f"{learn} while {collect} {_duration(min(self.collect))} to {_duration(max(self.collect))} each",
        }[self.collection]
        inline = self.rows / (sum(self.collect) + self.learners * self.learn)
        text = f"{self.collection}: {together}: about {self.rows / self.update:,.0f} steps/s"
        return f"{text} ({inline:,.0f} in one process; R = {self.ratio:.2g}){self._advice()}"

    def _advice(self) -> str:
        """What would be faster, where that is plain."""
        if self.advice:
            return self.advice
        if self.collection == "sync":
            return ""
        if self.learners == 1 and self.busy * len(self.collect) + 1 > cores():  # others may be on other machines
            fewer = "1 actor" if cores() < 3 else f"{cores() - 1} actors"
            return f". The environments compute, and no core is left to the learner: try {fewer}"
        waits = self.slowest < self.learn
        return ". Actors wait for the learner" if waits else ". The learner waits for actors"


@dataclass(frozen=True)
class GradientForecast(Forecast):
    """The same where actors compute the gradients: a fragment's seconds are those of its gradient, too."""

    def __str__(self) -> str:
        each = f"{_duration(min(self.collect))} to {_duration(max(self.collect))}"
        text = f"{self.collection}: {len(self.collect)} actors take {each} for a gradient, and the learner"
        return f"{text} {_duration(self.learn)} for a step: about {self.rows / self.update:,.0f} steps/s"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
