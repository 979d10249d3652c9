"""What can be tried: where environments are stepped and how many, devices, threads and precision."""

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
# the settings that are tried, in the order in which a candidate is described
TRIED = (*PLACES, "workers", "actors", "collection", "max_policy_lag", "num_envs", "threads", "precision")


@dataclass(frozen=True)
class Candidate:
    """A value for each of the settings in TRIED."""

    values: tuple[Any, ...]

    @classmethod
    def of(cls, config: TrainConfig) -> Candidate:
        """What a config has."""
        return cls(tuple(getattr(config, name) for name in TRIED))

    def __getitem__(self, name: str) -> Any:
        return self.values[TRIED.index(name)]

    def but(self, **changes: Any) -> Candidate:
        """The same with other values."""
        return Candidate(tuple(changes.get(name, value) for name, value in zip(TRIED, self.values, strict=True)))

    @property
    def settings(self) -> dict[str, Any]:
        """As train() takes them."""
        return dict(zip(TRIED, self.values, strict=True))

    @property
    def processes(self) -> int:
        """Of workers or actors; 0 for none."""
        return self["actors"] or self["workers"] or 0

    def changes(self, other: Candidate) -> int:
        """How many values differ from another's."""
        return sum(mine != its for mine, its in zip(self.values, other.values, strict=True))

    @property
    def learns_as(self) -> tuple[Any, ...]:
        """Two candidates with the same of these learn the same from each step, but for rounding."""
        lags = self["collection"] == "overlapped" or (self["actors"] is not None and self["collection"] != "sync")
        mode = (self["collection"], self["max_policy_lag"]) if lags else ("sync",)
        return (self["num_envs"], self["precision"], mode)

    def placed(self) -> str:
        """Where environments are stepped, in words."""
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
    """What is to be trained, as far as it decides what can be tried."""

    base: Candidate  # one process, with what was given
    given: frozenset[str]  # settings that stay as they are
    compiled: bool
    vector: bool  # environments that come as a vector
    step: StepTime | None  # of one environment that is not compiled
    max_lag: int | None  # of the policy that collected; None: any
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
        """Whether environments mostly wait, rather than compute."""
        return self.step is not None and self.step.waits

    def numbers(self, most: int) -> list[int]:
        """Numbers of processes to try for so many environments, the most promising first."""
        if not self.waits:
            return sorted({min(cores(), most), min(max(1, cores() // 2), most)} - {1}, reverse=True)
        return sorted({min(number, most) for number in (WAITING_PROCESSES, 8)} - {1}, reverse=True)

    def seconds(self, candidate: Candidate) -> float:
        """Seconds of a rollout's steps, at least; 0 where that is not known."""
        if self.step is None:
            return 0.0
        processes = max(candidate.processes, 1)
        oversubscribed = max(1.0, self.step.busy * processes / cores())
        return self.num_steps * -(-candidate["num_envs"] // processes) * self.step.seconds * oversubscribed

    def as_fast_as(self, candidate: Candidate, rate: float) -> Task:
        """The task with a step that takes no longer than a candidate's steps/s show: a few steps may have been slow by
        chance."""
        expected = self.seconds(candidate)
        if self.step is None or expected * rate <= self.num_steps * candidate["num_envs"]:
            return self
        seconds = self.step.seconds * self.num_steps * candidate["num_envs"] / (rate * expected)
        return replace(self, step=self.step._replace(seconds=seconds))

    def placements(self) -> Iterator[Candidate]:
        """Where environments can be stepped, the reference first: in one process, by workers, by actors."""
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
        """Processes for a mode of collection that is given."""
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
        """Modes of collection that do not wait as synchronous ones do. best: the best candidate so far."""
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
        """The candidate with another number of environments, and of processes that wait for them."""
        number = candidate.processes
        if self.waits and number == min(candidate["num_envs"], WAITING_PROCESSES):
            number = WAITING_PROCESSES
        return self.spread(candidate.but(num_envs=num_envs), number)

    def spread(self, candidate: Candidate, number: int) -> Candidate:
        """The candidate with another number of processes, where it has any and they are not given."""
        kind, num_envs = "actors" if candidate["actors"] else "workers", candidate["num_envs"]
        if not candidate.processes or kind in self.given:
            return candidate
        number = min(number, num_envs)
        return candidate.but(**{kind: even(number, num_envs) if candidate["collection"] == "async" else number})

    def refinements(self, best: Candidate) -> Iterator[Candidate]:
        """Other threads and precisions of the best candidate."""
        if "threads" not in self.given and cores() > 1 and best["device"] == "cpu":
            yield best.but(threads=cores())
        if "precision" not in self.given:
            device = torch.device(best["device"])
            if device.type == "cuda":
                yield best.but(precision="tf32")
            if multiplies_bfloat16(device):
                yield best.but(precision="bfloat16")


def even(most: int, num_envs: int) -> int:
    """The largest number of actors, up to `most`, of which each has as many environments: async needs that."""
    return max(number for number in range(1, max(1, min(most, num_envs)) + 1) if num_envs % number == 0)


def different(settings: Mapping[str, Any], config: TrainConfig) -> dict[str, Any]:
    """What a file has to say for these settings to hold: num_envs, and those that are not the defaults, of any or of
    this training."""
    fields = TrainConfig.__dataclass_fields__
    return {
        name: value
        for name, value in settings.items()
        if name == "num_envs" or value != fields[name].default or value != getattr(config, name)
    }
