"""Candidates to try: where environments are stepped, their number, devices, threads and precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from headrace import envs
from headrace.algorithms.base import algorithm_classes
from headrace.core.cores import cores
from headrace.core.precision import multiplies_bfloat16
from headrace.envs import comes_as_vector, sources
from headrace.envs.construct import entry_of
from headrace.envs.workers.tuning import StepTime, step_time
from headrace.training.config import WRAPPING, TrainConfig
from headrace.training.plan import TrainPlan

WAITING_PROCESSES = 32  # tried first for environments that wait rather than compute
PLACES = ("backend", "device", "collect_device")
# settings that are tried, in the order of a candidate's description
TRIED = (*PLACES, "workers", "actors", "collection", "max_policy_lag", "num_envs", "threads", "precision")


@dataclass(frozen=True)
class Candidate:
    """A value for each of the settings in TRIED."""

    values: tuple[Any, ...]

    @classmethod
    def of(cls, config: TrainConfig) -> Candidate:
        """The candidate with a config's values."""
        return cls(tuple(getattr(config, name) for name in TRIED))

    def __getitem__(self, name: str) -> Any:
        return self.values[TRIED.index(name)]

    def but(self, **changes: Any) -> Candidate:
        """A copy with other values."""
        return Candidate(tuple(changes.get(name, value) for name, value in zip(TRIED, self.values, strict=True)))

    @property
    def settings(self) -> dict[str, Any]:
        """The values as settings of train()."""
        return dict(zip(TRIED, self.values, strict=True))

    @property
    def processes(self) -> int:
        """Number of workers or actors; 0 for none."""
        return self["actors"] or self["workers"] or 0

    def changes(self, other: Candidate) -> int:
        """Number of values that differ from another candidate's."""
        return sum(mine != its for mine, its in zip(self.values, other.values, strict=True))

    @property
    def learns_as(self) -> tuple[Any, ...]:
        """Values that decide learning: candidates with equal values learn the same from each step, up to rounding."""
        lags = self["collection"] == "overlapped" or (self["actors"] is not None and self["collection"] != "sync")
        mode = (self["collection"], self["max_policy_lag"]) if lags else ("sync",)
        return (self["num_envs"], self["precision"], mode)

    def placed(self) -> str:
        """Describe where environments are stepped."""
        number = self.processes
        if number == 0:
            return "one process" + (", overlapped" if self["collection"] == "overlapped" else "")
        kind = "actor" if self["actors"] else "worker"
        mode = "" if self["collection"] == "sync" else f", {self['collection']}"
        return f"{number} {kind}{'s' * (number > 1)}{mode}"

    def __str__(self) -> str:
        parts = [self.placed(), f"{self['num_envs']} environments"]
        if self["backend"] != "auto":
            parts.append(f"backend {self['backend']}")
        if self["device"] != "cpu":
            parts.append(self["device"] + (", collects on the CPU" if self["collect_device"] == "cpu" else ""))
        if self["threads"] != 1:
            parts.append(f"torch threads {self['threads'] or 'all'}")
        if self["precision"] != "float32":
            parts.append(self["precision"])
        return ", ".join(parts)


@dataclass(frozen=True)
class Task:
    """Facts about a training that decide what can be tried."""

    base: Candidate  # one process, with the given settings
    given: frozenset[str]  # settings that are not changed
    compiled: bool
    vector: bool  # whether environments come as a vector
    step: StepTime | None  # of one environment, if not compiled
    max_lag: int | None  # largest lag that the algorithm allows; None: any
    num_steps: int
    gradients: bool  # whether actors send gradients

    @classmethod
    def of(cls, plan: TrainPlan, given: frozenset[str]) -> Task:
        """The task of a plan. Measures a step of one environment, unless it is compiled."""
        assert plan.source is not None and isinstance(plan.algorithm, str)
        entry, config = entry_of(plan.source), plan.config
        compiled = sources.is_kernel(entry) and config.backend in ("auto", "cpu", "cuda", "torch")
        vector = not compiled and (comes_as_vector(plan.source) or config.backend == "vector")
        step = None
        if not compiled and not vector:
            wrapping = {name: getattr(config, name) for name in WRAPPING}
            own = {"wrappers": config.wrapper, "env_kwargs": config.env_kwargs}
            factory = envs.factory(plan.source, **own, **wrapping)  # type: ignore[arg-type]
            step = step_time(factory, config.seed)
        base = Candidate.of(config)
        if config.device == "auto":
            base = base.but(device="cpu")
        if "actors" not in given and "workers" not in given:
            base = base.but(actors=None, workers=None)
        max_lag = getattr(algorithm_classes(plan.algorithm).algorithm, "max_lag", 0)
        num_steps = getattr(plan.algorithm_config, "num_steps", 1)
        return cls(base, given, compiled, vector, step, max_lag, num_steps, config.exchange == "gradients")

    def with_envs(self, num_envs: int) -> Task:
        """The task with another number of environments."""
        return replace(self, base=self.base.but(num_envs=num_envs))

    @property
    def waits(self) -> bool:
        """True if environments spend most of a step waiting rather than computing."""
        return self.step is not None and self.step.waits

    def numbers(self, most: int) -> list[int]:
        """Numbers of processes to try for `most` environments, the most promising first."""
        if not self.waits:
            return sorted({min(cores(), most), min(max(1, cores() // 2), most)} - {1}, reverse=True)
        return sorted({min(number, most) for number in (WAITING_PROCESSES, 8)} - {1}, reverse=True)

    def seconds(self, candidate: Candidate) -> float:
        """Least time of a rollout's steps, s; 0 if unknown."""
        if self.step is None:
            return 0.0
        processes = max(candidate.processes, 1)
        oversubscribed = max(1.0, self.step.busy * processes / cores())
        return self.num_steps * -(-candidate["num_envs"] // processes) * self.step.seconds * oversubscribed

    def as_fast_as(self, candidate: Candidate, rate: float) -> Task:
        """Shorten the task's step time if a candidate's steps/s show that it is too long: a few steps may have been
        slow by chance."""
        expected = self.seconds(candidate)
        if self.step is None or expected * rate <= self.num_steps * candidate["num_envs"]:
            return self
        seconds = self.step.seconds * self.num_steps * candidate["num_envs"] / (rate * expected)
        return replace(self, step=self.step._replace(seconds=seconds))

    def placements(self) -> Iterator[Candidate]:
        """Candidates for where environments are stepped: in one process (the reference), by workers, by actors."""
        fixed = self.vector or bool(self.given & {"workers", "actors"})
        mode = "gradients" if self.gradients else self.base["collection"]
        if mode != "sync" and not fixed:
            yield from self._in_mode(mode)
            return
        if self.base["backend"] != "workers":
            yield self.base
        if "device" not in self.given:
            yield from self._on_gpus()
        if self.compiled and "backend" not in self.given:
            yield self.base.but(backend="torch")
        for number in [] if self.compiled or fixed else self.numbers(self.base["num_envs"]):
            yield self.base.but(workers=number)
            yield self.base.but(actors=number)

    def _in_mode(self, mode: str) -> Iterator[Candidate]:
        """Candidates for a given mode of collection."""
        most = self.base["num_envs"]
        numbers = self.numbers(most) if self.waits else [max(1, cores() - 1), cores()]
        for number in dict.fromkeys(min(number, most) for number in numbers or [1]):
            if mode in ("overlapped", "async", "gradients"):
                yield self.base.but(actors=even(number, most) if self.base["collection"] == "async" else number)
            if mode in ("double_buffered", "async") and not self.compiled:
                yield self.base.but(workers=number)

    def _on_gpus(self) -> Iterator[Candidate]:
        if not torch.cuda.is_available():
            return
        yield self.base.but(device="cuda")
        if "collect_device" not in self.given:
            yield self.base.but(device="cuda", collect_device="cpu")

    def modes(self, best: Candidate) -> Iterator[Candidate]:
        """Candidates with modes of collection that wait less than the synchronous one. best: the best one so far."""
        if self.gradients or self.given & {"workers", "actors", "collection"}:
            return
        if self.vector:
            if self.max_lag != 0 and (best["device"] == "cpu" or best["collect_device"] == "cpu"):
                yield best.but(collection="overlapped")  # by a thread
            return
        most = best["num_envs"]
        number = best.processes or min(cores(), most)
        fewer = max(1, cores() - 1)
        usual = {name: self.base[name] for name in ("backend", "collect_device", "collection", "max_policy_lag")}
        base = best.but(workers=None, actors=None, **usual)
        if self.max_lag != 0:
            for actors in dict.fromkeys((fewer, number) if not self.waits else (number,)):
                yield base.but(actors=min(actors, most), collection="overlapped")
            actors = even(number, most)
            yield base.but(actors=actors, collection="async", max_policy_lag=min(self.max_lag or 2, 2))
        if not self.compiled and number > 1:
            yield base.but(workers=number, collection="double_buffered")
            yield base.but(workers=number, collection="async")

    def resized(self, candidate: Candidate, num_envs: int) -> Candidate:
        """Change a candidate's number of environments, and its number of processes if environments wait."""
        number = candidate.processes
        if self.waits and number == min(candidate["num_envs"], WAITING_PROCESSES):
            number = WAITING_PROCESSES
        return self.spread(candidate.but(num_envs=num_envs), number)

    def spread(self, candidate: Candidate, number: int) -> Candidate:
        """Change a candidate's number of processes, if it has any and they are not given."""
        kind, num_envs = "actors" if candidate["actors"] else "workers", candidate["num_envs"]
        if not candidate.processes or kind in self.given:
            return candidate
        number = min(number, num_envs)
        return candidate.but(**{kind: even(number, num_envs) if candidate["collection"] == "async" else number})

    def refinements(self, best: Candidate) -> Iterator[Candidate]:
        """The best candidate with other numbers of threads and precisions."""
        if "threads" not in self.given and cores() > 1 and best["device"] == "cpu":
            yield best.but(threads=cores())
        if "precision" not in self.given:
            device = torch.device(best["device"])
            if device.type == "cuda":
                yield best.but(precision="tf32")
            if multiplies_bfloat16(device):
                yield best.but(precision="bfloat16")


def even(most: int, num_envs: int) -> int:
    """The largest number of actors, up to `most`, that divides the environments evenly, as async requires."""
    return max(number for number in range(1, max(1, min(most, num_envs)) + 1) if num_envs % number == 0)


def different(settings: Mapping[str, Any], config: TrainConfig) -> dict[str, Any]:
    """The settings that a file must contain: num_envs, and values that differ from the defaults or from this
    training's."""
    fields = TrainConfig.__dataclass_fields__
    return {
        name: value
        for name, value in settings.items()
        if name == "num_envs" or value != fields[name].default or value != getattr(config, name)
    }
