"""The figures of a profile that the verdict, the remedies and the charts use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.diagnose.profile.formatting import percent
from headrace.diagnose.profile.profile import LEARNING, Kind, Lane, Profile, Role, Site, Span

NOTICEABLE = 0.01  # share of the time below which a lane or a role is not mentioned
TOLD = {"a pipe", "a socket", "a lock", "several files", "events"}  # objects on which a process waits for an order
SEVERAL = 3  # with so many intervals of counted kernels, their mean is sure
LOW, USED = 20.0, 5.0  # % by NVML: below, hardly any kernel runs; above, a GPU is used
FEW_UNSURE = 0.1  # a report may say that nothing helps if at most this share of the time has a guessed or unknown role
SLEEPS = ("sleep", "tick", "tick_busy_loop", "delay")  # C functions: time's, and those of pygame's clock
IN_PROCESSES = {"SubprocVecEnv": "subproc_vec_env", "AsyncVectorEnv": "async_vector_env"}  # class -> its file
UNCOMPILED = ("InlineEnv.", "WorkerEnv.")  # Headrace's classes that step Gymnasium environments
BUILT_IN = {  # Gymnasium's classes of which Headrace has compiled versions -> their ids
    "CartPoleEnv": "CartPole-v1",
    "PendulumEnv": "Pendulum-v1",
    "AcrobotEnv": "Acrobot-v1",
    "MountainCarEnv": "MountainCar-v0",
    "Continuous_MountainCarEnv": "MountainCarContinuous-v0",
}


@dataclass(frozen=True)
class Facts:
    """Figures derived from a profile. Shares are of `total`: the training thread's time without start-up."""

    profile: Profile
    round_trip: float = 60e-6  # s to send a step to another process and receive the result; see round_trip.py

    @cached_property
    def seconds(self) -> dict[Role, float]:
        """Role -> seconds of the training thread, largest first, without start-up."""
        spent = {role: time for role, time in self.profile.training_thread.seconds.items() if role is not Role.START_UP}
        return dict(sorted(spent.items(), key=lambda item: -item[1]))

    @cached_property
    def total(self) -> float:
        """Seconds of the training thread, without start-up."""
        return max(sum(self.seconds.values()), 1e-9)

    @property
    def start_up(self) -> float:
        """Seconds of start-up within the window."""
        return self.profile.training_thread.spent(Role.START_UP)

    def spent(self, *roles: Role) -> float:
        """Seconds of the training thread in these roles."""
        return sum(self.seconds.get(role, 0.0) for role in roles)

    def share(self, *roles: Role) -> float:
        """Share of the training thread's time in these roles."""
        return self.spent(*roles) / self.total

    def percent(self, seconds: float) -> str:
        """Seconds as a share of the training thread's time: "71 %"."""
        return percent(seconds / self.total)

    @property
    def samples(self) -> int:
        """Samples of the training thread, without those of start-up."""
        training_thread = self.profile.training_thread
        return round(training_thread.samples * self.total / max(training_thread.total, self.total))

    @property
    def margin(self) -> float:
        """Two standard errors of a share of one half, the largest of any share; 0 without samples."""
        return 1.0 / math.sqrt(self.samples) if self.samples else 0.0

    def overlap(self, larger: float, smaller: float) -> bool:
        """Tell whether the intervals of two parts, in seconds, overlap: two standard errors to each side of a share."""
        shares = [min(seconds / self.total, 1.0) for seconds in (larger, smaller)]
        errors = sum(2 * self.margin * math.sqrt(share * (1 - share)) for share in shares)
        return shares[0] - shares[1] <= errors

    def bound(self, saved: float, measured: float | None = None, unsure: float = 0.0) -> float:
        """The largest possible gain from saving `saved` seconds (Amdahl 1967), plus the sampling error.

        On a busy machine the bound is larger by the time for which the training thread had no core, because on an idle
        machine it has one. measured: part of `saved` that was sampled; the error of the other part is proportional to
        the remaining time. unsure: share of the other time that may also be saved.
        """
        share = min(saved / self.total, 1.0)
        sampled = share if measured is None else min(measured / self.total, share, 0.999)
        error = 2 * self.margin * math.sqrt(sampled * (1 - sampled)) * (1 - share) / max(1 - sampled, 1e-9)
        busy = (1 - share) * self.queued([self.profile.training_thread])
        return 1.0 / max((1.0 - share - error - busy) * (1.0 - unsure), 1e-3)

    def may_be(self, *roles: Role) -> float:
        """Share of the time in other roles that may belong to `roles`, because its role is guessed or unknown."""
        guessed = sum(time for role, time in self.profile.training_thread.guessed.items() if role not in roles)
        others = self.total - self.spent(*roles)
        return min((guessed + self.spent(*{Role.OTHER} - set(roles))) / max(others, 1e-9), 1.0)

    def gain(self, saved: float) -> float:
        """Wall time now divided by wall time with `saved` seconds less."""
        return self.total / max(self.total - saved, 1e-3 * self.total)

    @cached_property
    def env_workers(self) -> list[Lane]:
        """The processes that step environments for the training thread."""
        return [lane for lane in self.profile.workers if self._steps_envs(lane)]

    def _steps_envs(self, lane: Lane) -> bool:
        if lane.pid in self._ancestors:
            return False
        waited_for = self.spent(Role.WAIT) > NOTICEABLE * self.total  # other sleepers are a library's services
        # a sleeping environment waits for orders to step, whereas a library's monitor wakes by its own clock
        told = not lane.waits or sum(lane.waits.get(what, 0.0) for what in TOLD) > NOTICEABLE * lane.total
        own = not lane.sites or any(site.own for site in lane.sites if site.role is Role.IDLE)
        asleep = waited_for and lane.spent(Role.IDLE) > NOTICEABLE * self.total and told and own
        serving = any(map(_in_processes, lane.sites))  # steps too short to see
        return asleep or serving or lane.spent(Role.ENVIRONMENT) > 0

    @cached_property
    def _ancestors(self) -> set[int]:
        """The processes that started the one that trains."""
        parents = {lane.pid: lane.parent for lane in self.profile.lanes}
        found: set[int] = set()
        pid = self.profile.training_thread.parent
        while pid in parents and pid not in found:
            found.add(pid)
            pid = parents[pid]
        return found

    @property
    def training_began(self) -> bool:
        """Tell whether the training loop was seen; True where that is not known."""
        return self.counter("training_began") != 0

    @property
    def several_trainers(self) -> bool:
        """Tell whether several processes compute gradients, other than learners and actors of Headrace."""
        return (self.counter("trainers") or 0) > 1 and not self.uses("headrace")

    @property
    def training_lanes(self) -> list[Lane]:
        """The training thread and the processes that step environments for it."""
        return [self.profile.training_thread, *self.env_workers]

    @cached_property
    def env_worker_seconds(self) -> list[float]:
        """Seconds that each of `env_workers` was busy with its environments."""
        return [lane.spent(Role.ENVIRONMENT, Role.IDLE) for lane in self.env_workers]

    @cached_property
    def unsampled_env_workers(self) -> bool:
        """Tell whether other processes step the environments, though no sample of these processes shows it."""
        if self.env_workers:
            return False
        thread = self.profile.training_thread
        return any(map(_in_processes, thread.sites)) or any(
            name in span.detail for span in thread.spans for name in IN_PROCESSES
        )

    @property
    def knows_waiting(self) -> bool:
        """Tell whether the kernel reported how long the training thread was blocked."""
        return self.profile.training_thread.wakes > 0

    def wakes(self, waited: float) -> float:
        """Number of the training thread's wake-ups in `waited` seconds of waiting, in proportion to all its waiting."""
        lane = self.profile.training_thread
        blocked = max(lane.total - lane.cpu_seconds - lane.queued_seconds, waited, 1e-9)
        return lane.wakes * waited / blocked

    @property
    def env_wait(self) -> float:
        """Seconds that the training thread waits for the slowest environment worker."""
        return min(self.spent(Role.WAIT), max(self.env_worker_seconds, default=0.0))

    @property
    def environment(self) -> float:
        """Seconds that the training thread steps environments or waits for environment workers."""
        return self.spent(Role.ENVIRONMENT) + self.env_wait

    @property
    def env_seconds(self) -> float:
        """Seconds of stepping environments, summed over the processes that do, without communication."""
        return sum(self.env_worker_seconds) if self.env_workers else self.spent(Role.ENVIRONMENT)

    @property
    def learning(self) -> float:
        """Seconds of forward, backward and optimizer."""
        return self.spent(*LEARNING)

    @property
    def learns_in_one_call(self) -> bool:
        """Tell whether forward, backward and optimizer are one fused call, whose parts a sampler cannot distinguish."""
        return self.uses("headrace") and self.share(Role.BACKWARD, Role.OPTIMIZER) < NOTICEABLE

    def title(self, role: Role) -> str:
        """A role's name in reports."""
        return "learning" if role is Role.FORWARD and self.learns_in_one_call else role.label

    @property
    def ratio(self) -> float | None:
        """R: seconds of stepping environments, in all processes, per second of learning."""
        return self.env_seconds / self.learning if self.learning > NOTICEABLE * self.total else None

    def counter(self, name: str) -> int | None:
        """A counter of the profile; None if it was not recorded."""
        value = self.profile.counters.get(name)
        return None if value is None else int(value)

    @property
    def num_envs(self) -> int | None:
        """Number of environments; None if not known."""
        counted, workers = self.counter("num_envs"), len(self.env_workers)
        # num_envs may be that of an evaluation; a batch of inference covers all training environments. Without such a
        # count it may be of something else, such as plans
        acting = self.counter("inference_batch") if counted else None
        return max((number for number in (counted, acting, workers) if number), default=None)

    @property
    def cores(self) -> int:
        """Cores that the script may use."""
        return self.profile.machine.cores

    @property
    def on_gpu(self) -> bool:
        """Tell whether the script used a GPU: torch reports it, or JAX is imported and the GPU is busy."""
        return bool(self.counter("cuda")) or (self.uses("jax") and self.profile.gpu.get("nvml_busy", 0.0) > USED)

    @property
    def env_steps(self) -> int | None:
        """Steps of single environments within the window; None if not known."""
        rate = self.profile.counters.get("env_rate")
        return round(rate * self.profile.training_thread.total) if rate else None

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step of one environment, with resets and wrappers; None if not known."""
        return self.env_seconds / self.env_steps if self.env_steps else None

    @property
    def operations(self) -> int | None:
        """Floating-point operations of one update: 6 per parameter, row and position of a sequence (forward and
        backward); None if unknown, as for images, at whose positions convolutions use their parameters again.
        """
        parameters, rows = self.counter("parameters"), self.counter("learning_batch")
        positions = self.profile.counters.get("positions", 1.0)
        return int(6 * parameters * rows * positions) or None if parameters and rows else None

    @property
    def gpu_busy(self) -> float | None:
        """Share of the time that involves the GPU for which its kernels run; None where no figure is sure.

        A single interval of counted kernels may hold nothing but data collection, and NVML counts any short period of
        work as a whole one. Neither is enough where the two differ.
        """
        gpu, involved = self.profile.gpu, self.share(*LEARNING, Role.INFERENCE, Role.COPY, Role.LAUNCH)
        kernels, nvml = gpu.get("kernel_busy"), gpu.get("nvml_busy")
        known = kernels if gpu.get("kernel_windows", 1.0) >= SEVERAL else nvml if kernels is None else None
        if known is None and kernels is not None and (nvml is None or nvml < LOW):
            known = kernels
        return None if known is None or involved < NOTICEABLE else min(known / 100 / involved, 1.0)

    @property
    def env_on_cpu(self) -> float:
        """Share of the environment's time that it computes; below 1 where it sleeps or waits for a device."""
        lanes = self.training_lanes
        return min(
            self.on_cpu(Role.ENVIRONMENT, lanes=lanes) + self.queued(lanes), 1.0
        )  # as if it had always had a core

    def queued(self, lanes: Sequence[Lane]) -> float:
        """Share of the lanes' time for which they were ready to run but had no core."""
        return sum(lane.queued_seconds for lane in lanes) / max(sum(lane.total for lane in lanes), 1e-9)

    def idle_seconds(self, *roles: Role) -> float:
        """Seconds of some roles on an idle machine: without their part of the time for which the thread had no core.

        That time is divided in proportion to the roles' computing time, because sleep inside an environment needs no
        core.
        """
        thread, resting = self.profile.training_thread, (Role.WAIT, Role.IDLE)
        computed = {role: seconds - thread.blocked.get(role, 0.0) for role, seconds in self.seconds.items()}
        computed.update(dict.fromkeys(resting, 0.0))
        part = sum(computed.get(role, 0.0) for role in roles) / max(sum(computed.values()), 1e-9)
        return max(self.spent(*roles) - part * thread.queued_seconds, 0.0)

    @cached_property
    def compiled_env(self) -> bool:
        """Tell whether Headrace steps a compiled environment, for which there is no faster version."""
        foreign = any(span.detail.startswith(UNCOMPILED) for span in self.profile.training_thread.spans)
        return self.uses("headrace") and not foreign

    @property
    def actors(self) -> bool:
        """Tell whether the processes that step environments also act, so that the learner waits once per rollout."""
        return any(lane.share(Role.INFERENCE) > NOTICEABLE for lane in self.env_workers)

    def on_cpu(self, *roles: Role, lanes: Sequence[Lane] = ()) -> float:
        """Share of the lanes' time in these roles that they were on a core; 1 if there is none.

        lanes: the training thread where not given.
        """
        lanes = lanes or [self.profile.training_thread]
        spans = [span for lane in lanes for span in lane.spans if span.role in roles]
        total = sum(span.end - span.start for span in spans)
        return sum((span.end - span.start) * span.on_cpu for span in spans) / total if total else 1.0

    def runs(self, library: str) -> bool:
        """Tell whether lines of a library take time of the training: a library may be imported, but not used."""
        lines = [site for lane in self.training_lanes for site in (*lane.sites, *lane.lines)]
        if library == "headrace" or not any(not site.own for site in lines):
            return self.uses(library)
        return self.uses(library) and any(f"/{library}/" in site.file.replace("\\", "/") for site in lines)

    def guessed(self, *roles: Role) -> float:
        """Share of the time in some roles (by default in all) whose role is likely, but not sure."""
        guessed = self.profile.training_thread.guessed
        spent = self.spent(*roles) if roles else self.total
        return sum(guessed.get(role, 0.0) for role in roles or guessed) / max(spent, 1e-9)

    @property
    def unsure(self) -> float:
        """Share of the training thread's time whose role is guessed, or not known."""
        return min(self.guessed() + self.share(Role.OTHER), 1.0)

    def uses(self, library: str) -> bool:
        """Tell whether the script imported a library."""
        return library in {name.replace("-", "_").lower() for name in self.profile.machine.versions}

    @property
    def built_in(self) -> str:
        """The id of Headrace's compiled version of the environment that the script steps; "" without one."""
        spans = (span for lane in self.training_lanes for span in lane.spans if span.role is Role.ENVIRONMENT)
        names = (span.detail.partition(".")[0] for span in spans)
        return next((BUILT_IN[name] for name in names if name in BUILT_IN), "")

    def site(self, *roles: Role) -> Site | None:
        """The line with one of these roles that takes the most time, the user's own first; None without one."""
        sites = (site for lane in self.training_lanes for site in lane.sites if site.role in roles)
        return max(sites, key=lambda site: (site.own, site.seconds), default=None)

    def loop_line(self, role: Role) -> Site | None:
        """The statement of the script's loop with a role that takes the most time; without a loop, the line."""
        lines = [site for site in self.profile.training_thread.lines if site.role is role]
        return max(lines, key=lambda site: site.seconds, default=None) or self.site(role)

    def pools(self) -> dict[int, int]:
        """Pid -> number of active torch threads: pool threads and the thread that they work for."""
        pools = (lane for lane in self.profile.lanes if lane.kind is Kind.POOL)
        threads = Counter(lane.pid for lane in pools if lane.cpu_seconds > NOTICEABLE * self.total)
        return {pid: number + 1 for pid, number in threads.items()}


def _in_processes(site: Site) -> bool:
    """Tell whether a line is of a library's file that steps environments in processes, and not of a user's."""
    return site.file.replace("\\", "/").rpartition("/")[2].removesuffix(".py") in IN_PROCESSES.values()


def overlaps(begin: float, end: float, columns: int) -> Iterator[tuple[int, float]]:
    """Each of the columns 0 .. columns - 1, all 1 wide, that an interval overlaps, and by how much, 0 .. 1."""
    for column in range(max(0, int(begin)), min(columns, int(end) + 1)):
        if (inside := min(end, column + 1) - max(begin, column)) > 0:
            yield column, inside


def binned(spans: Sequence[Span], start: float, end: float, columns: int) -> list[dict[Role, float]]:
    """Divide the time into `columns` equal parts. Returns role -> share of the part, 0 .. 1, for each."""
    width = max(end - start, 1e-9) / columns
    shares: list[dict[Role, float]] = [{} for _ in range(columns)]
    for span in spans:
        for column, inside in overlaps((span.start - start) / width, (span.end - start) / width, columns):
            shares[column][span.role] = shares[column].get(span.role, 0.0) + inside
    return shares
