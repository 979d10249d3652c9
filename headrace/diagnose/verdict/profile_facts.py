"""The few numbers of a profile on which the verdict, the remedies and the pictures rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.diagnose.profile.profile import LEARNING, Kind, Lane, Profile, Role, Site, Span

NOTICEABLE = 0.01  # share of the time below which a lane or a role is not spoken of
TITLES = {
    Role.ENVIRONMENT: "environment",
    Role.INFERENCE: "policy inference",
    Role.FORWARD: "learning: forward",
    Role.BACKWARD: "learning: backward",
    Role.OPTIMIZER: "learning: optimizer",
    Role.COPY: "host-device copies",
    Role.LAUNCH: "kernel launches",
    Role.WAIT: "waiting for others",
    Role.EVALUATION: "evaluation",
    Role.DATA: "data handling",
    Role.LOGGING: "logging",
    Role.SAVING: "saving",
    Role.START_UP: "start-up",
    Role.IDLE: "sleeping",
    Role.OTHER: "other",
}
IN_PROCESSES = ("SubprocVecEnv", "subproc_vec_env", "AsyncVectorEnv", "async_vector_env")
UNCOMPILED = ("InlineEnv.", "WorkerEnv.")  # what Headrace steps Gymnasium's environments with
BUILT_IN = {  # classes of Gymnasium that Headrace has as compiled worlds -> their names
    "CartPoleEnv": "CartPole-v1",
    "PendulumEnv": "Pendulum-v1",
    "AcrobotEnv": "Acrobot-v1",
    "MountainCarEnv": "MountainCar-v0",
    "Continuous_MountainCarEnv": "MountainCarContinuous-v0",
}


@dataclass(frozen=True)
class Facts:
    """What a profile says. Shares are of `base`: the driving thread's time without start-up."""

    profile: Profile
    round_trip: float = 60e-6  # s to hand a step to another process and get the result; see round_trip.py

    @cached_property
    def seconds(self) -> dict[Role, float]:
        """Role -> seconds of the driving thread, largest first, without start-up."""
        spent = {role: time for role, time in self.profile.driver.seconds.items() if role is not Role.START_UP}
        return dict(sorted(spent.items(), key=lambda item: -item[1]))

    @cached_property
    def base(self) -> float:
        """Seconds of training that the verdict is about."""
        return max(sum(self.seconds.values()), 1e-9)

    @property
    def start_up(self) -> float:
        """Seconds of start-up within the window."""
        return self.profile.driver.seconds.get(Role.START_UP, 0.0)

    def spent(self, *roles: Role) -> float:
        """Seconds of the driving thread in these roles."""
        return sum(self.seconds.get(role, 0.0) for role in roles)

    def share(self, *roles: Role) -> float:
        """Share of the driving thread's time in these roles."""
        return self.spent(*roles) / self.base

    @property
    def samples(self) -> int:
        """Samples of the driving thread, without those of start-up."""
        driver = self.profile.driver
        return round(driver.samples * self.base / max(driver.total, self.base))

    @property
    def margin(self) -> float:
        """Two standard errors of a share of one half, 0 where nothing was sampled. Other shares have less."""
        return 1.0 / math.sqrt(self.samples) if self.samples else 0.0

    def bound(self, saved: float) -> float:
        """The most that saving so many seconds can gain (Amdahl 1967), the error of sampling on the safe side."""
        share = min(saved / self.base, 1.0)
        error = 2 * self.margin * math.sqrt(share * (1 - share))
        return 1.0 / max(1.0 - share - error, 1e-3)

    def gain(self, saved: float) -> float:
        """Wall time now, over wall time when so many seconds are saved."""
        return self.base / max(self.base - saved, 1e-3 * self.base)

    @cached_property
    def stepping(self) -> list[Lane]:
        """The processes that step environments for the driving thread."""
        found = []
        for lane in self.profile.workers:
            asleep = _seconds(lane, Role.IDLE) > NOTICEABLE * self.base  # as an environment may be
            serving = any(word in site.file for site in lane.sites for word in IN_PROCESSES)  # if too briefly to see
            if asleep or serving or _seconds(lane, Role.ENVIRONMENT) > 0:
                found.append(lane)
        return found

    @cached_property
    def work(self) -> list[float]:
        """Seconds that each of `stepping` was busy with its environments."""
        return [_seconds(lane, Role.ENVIRONMENT, Role.IDLE) for lane in self.stepping]

    @cached_property
    def unseen_processes(self) -> bool:
        """Whether other processes step the environments, but not one of them was seen at it."""
        if self.stepping:
            return False
        details = (span.detail for span in self.profile.driver.spans)
        files = (site.file for site in self.profile.driver.sites)
        return any(word in name for name in (*details, *files) for word in IN_PROCESSES)

    @property
    def covered(self) -> float:
        """Seconds of the driving thread's waiting that the slowest environment process explains."""
        return min(self.spent(Role.WAIT), max(self.work, default=0.0))

    @property
    def environment(self) -> float:
        """Seconds that the driving thread steps environments or waits for those of other processes."""
        return self.spent(Role.ENVIRONMENT) + self.covered

    @property
    def stepped(self) -> float:
        """Seconds of stepping environments, summed over the processes that do, without the handing over."""
        return sum(self.work) if self.stepping else self.spent(Role.ENVIRONMENT)

    @property
    def learning(self) -> float:
        """Seconds of forward, backward and optimizer."""
        return self.spent(*LEARNING)

    @property
    def learns_in_one_call(self) -> bool:
        """Whether forward, backward and optimizer are one call, in which no sampler tells them apart."""
        return self.uses("headrace") and self.share(Role.BACKWARD, Role.OPTIMIZER) < NOTICEABLE

    def title(self, role: Role) -> str:
        """A role in a person's words."""
        return "learning" if role is Role.FORWARD and self.learns_in_one_call else TITLES[role]

    @property
    def ratio(self) -> float | None:
        """R: seconds of environment, whichever process it runs in, for each second of learning."""
        return self.stepped / self.learning if self.learning > NOTICEABLE * self.base else None

    def counter(self, name: str) -> int | None:
        """A counter of the profile; None where it was not seen."""
        value = self.profile.counters.get(name)
        return None if value is None else int(value)

    @property
    def num_envs(self) -> int | None:
        """Environments that are stepped, as far as known."""
        # an evaluation's own environment may have been counted: actions are chosen for all that train
        found = (self.counter("num_envs"), self.counter("inference_batch"), len(self.stepping))
        return max((number for number in found if number), default=None)

    @property
    def cores(self) -> int:
        """Cores that the script may use."""
        return self.profile.machine.cores

    @property
    def on_gpu(self) -> bool:
        """Whether the script used a GPU."""
        return bool(self.counter("cuda"))

    @property
    def env_steps(self) -> int | None:
        """Steps of single environments within the window; None where they were not seen."""
        rate = self.profile.counters.get("env_rate")
        return round(rate * self.profile.driver.total) if rate else None

    @property
    def step_seconds(self) -> float | None:
        """Seconds that one step of one environment takes, resets and wrappers included."""
        return self.stepped / self.env_steps if self.env_steps else None

    @property
    def operations(self) -> int | None:
        """Floating-point operations of one update: 6 for each parameter and row, forward and backward together."""
        parameters, rows = self.counter("parameters"), self.counter("learning_batch")
        return 6 * parameters * rows if parameters and rows else None

    @property
    def env_on_cpu(self) -> float:
        """Share of the environment's time that it computes; less than 1 where it sleeps or waits for a device."""
        lanes = [self.profile.driver, *self.stepping]
        spans = [span for lane in lanes for span in lane.spans if span.role is Role.ENVIRONMENT]
        total = sum(span.end - span.start for span in spans)
        busy = sum((span.end - span.start) * span.on_cpu for span in spans) / total if total else 1.0
        return min(busy + self.queued(lanes), 1.0)  # it would have been on a core, had there been one

    def queued(self, lanes: Sequence[Lane]) -> float:
        """Share of threads' time for which they could have run, but others had the cores."""
        return sum(lane.queued_seconds for lane in lanes) / max(sum(lane.total for lane in lanes), 1e-9)

    @cached_property
    def compiled_world(self) -> bool:
        """Whether Headrace steps an environment that is a kernel: there is nothing faster to be had."""
        foreign = any(span.detail.startswith(UNCOMPILED) for span in self.profile.driver.spans)
        return self.uses("headrace") and not foreign

    @property
    def timed(self) -> dict[str, float]:
        """Part -> share of the training by the trainer's own timers; empty where it has none."""
        counters, prefix = self.profile.counters, "timed "
        whole = max(counters.get("timed", 0.0), 1e-9)
        return {name[len(prefix) :]: spent / whole for name, spent in counters.items() if name.startswith(prefix)}

    def on_cpu(self, *roles: Role) -> float:
        """Share of the driving thread's time in these roles that it was on a core."""
        spans = [span for span in self.profile.driver.spans if span.role in roles]
        total = sum(span.end - span.start for span in spans)
        return sum((span.end - span.start) * span.on_cpu for span in spans) / total if total else 1.0

    def uses(self, library: str) -> bool:
        """Whether the script imported a library."""
        return library in {name.replace("-", "_").lower() for name in self.profile.machine.versions}

    @property
    def built_in(self) -> str:
        """The name of a world of Headrace's that is what the script steps; "" where there is none."""
        for lane in [self.profile.driver, *self.stepping]:
            for span in lane.spans:
                name = span.detail.partition(".")[0]
                if span.role is Role.ENVIRONMENT and name in BUILT_IN:
                    return BUILT_IN[name]
        return ""

    def site(self, *roles: Role) -> Site | None:
        """The costliest line with one of these roles: the user's own where there is one."""
        sites = [site for lane in [self.profile.driver, *self.stepping] for site in lane.sites if site.role in roles]
        return max(sites, key=lambda site: (site.own, site.seconds), default=None)

    def pools(self) -> dict[int, int]:
        """Process -> threads of its pools for arithmetic that worked, with the thread they work for."""
        threads: dict[int, int] = {}
        for lane in self.profile.lanes:
            if lane.kind is Kind.POOL and lane.cpu_seconds > NOTICEABLE * self.base:
                threads[lane.pid] = threads.get(lane.pid, 1) + 1
        return threads


def binned(spans: Sequence[Span], start: float, end: float, columns: int) -> list[dict[Role, float]]:
    """For each of `columns` equal parts of the time, role -> share of it, 0 .. 1."""
    width = max(end - start, 1e-9) / columns
    shares: list[dict[Role, float]] = [{} for _ in range(columns)]
    for span in spans:
        first, last = (span.start - start) / width, (span.end - start) / width
        for column in range(max(0, int(first)), min(columns, int(last) + 1)):
            inside = min(last, column + 1) - max(first, column)
            if inside > 0:
                shares[column][span.role] = shares[column].get(span.role, 0.0) + inside
    return shares


def _seconds(lane: Lane, *roles: Role) -> float:
    return sum(lane.seconds.get(role, 0.0) for role in roles)
