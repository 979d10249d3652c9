"""Describe the speed of actors and learner together, the time that each takes, and which of them waits."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.cores import cores


@dataclass(frozen=True)
class Forecast:
    """The time of an update of a training with actors, measured with all actors at work."""

    collection: str  # sync, overlapped, async
    rows: int  # of a rollout
    collect: tuple[float, ...]  # s of the last fragment, by actor
    slowest: float  # s of the slowest fragment of a rollout, mean
    busy: float  # fraction of this time that an actor used a core
    learn: float  # s from a rollout to the next version of the policy
    update: float  # s from one update to the next, mean
    advice: str = ""  # the Executor's advice on a faster setting
    learners: int = 1  # each learns from its part of a rollout in `learn` seconds

    @property
    def ratio(self) -> float:
        """R: time that one process would take for the steps of all environments, divided by its time for learning."""
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
        """Advice on a faster setting, if there is any."""
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
    """A Forecast for actors that compute gradients: a fragment's seconds include its gradient."""

    def __str__(self) -> str:
        each = f"{_duration(min(self.collect))} to {_duration(max(self.collect))}"
        text = f"{self.collection}: {len(self.collect)} actors take {each} for a gradient, and the learner"
        return f"{text} {_duration(self.learn)} for a step: about {self.rows / self.update:,.0f} steps/s"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
