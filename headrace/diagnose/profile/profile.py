"""What a diagnosis has measured: where every thread of every process of a training script spent its wall time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

PROFILE = "profile.json"


class Role(StrEnum):
    """What a thread was doing. Every moment of a lane has exactly one role."""

    ENVIRONMENT = "environment"  # step and reset of environments, with their wrappers
    INFERENCE = "inference"  # the policy choosing actions
    FORWARD = "learning.forward"  # losses and their networks, targets without gradients included
    BACKWARD = "learning.backward"
    OPTIMIZER = "learning.optimizer"  # the optimizer's step, zero_grad, clipping of gradients
    COPY = "copy"  # between host and device, waiting for the device included
    LAUNCH = "launch"  # queueing kernels on a GPU that is idle meanwhile; only where a GPU was measured
    WAIT = "wait"  # for other processes and threads: pipes, queues, locks, joins
    EVALUATION = "evaluation"  # evaluating the policy, whatever that is made of
    DATA = "data"  # buffers, batches, advantages, conversions between arrays
    LOGGING = "logging"
    SAVING = "saving"  # checkpoints, models, videos
    START_UP = "start-up"  # imports, compilation, building networks and environments, starting processes
    IDLE = "idle"  # sleeping
    OTHER = "other"


LEARNING = (Role.FORWARD, Role.BACKWARD, Role.OPTIMIZER)


class Kind(StrEnum):
    """What a lane is."""

    MAIN = "main"  # the main thread of the script's own process
    WORKER = "worker"  # the main thread of a child process
    THREAD = "thread"  # another Python thread
    POOL = "torch pool"  # native threads that share the work of one operation: OpenMP, BLAS
    AUTOGRAD = "autograd"  # native threads that run backward
    NATIVE = "native"  # native threads of anything else


@dataclass
class Span:
    """A stretch of time in which a thread did one thing."""

    start: float  # s since the window began
    end: float
    role: Role
    detail: str = ""  # what it was, shortly: "CartPoleEnv.step", "Linear.forward", "item", "recv"
    on_cpu: float = 1.0  # share of the stretch that the thread was on a core, 0 .. 1; measured at SERIES_PERIOD


@dataclass
class Site:
    """A line of the script (or the library line it calls, where the script's own is one `learn()`) and its cost."""

    role: Role
    file: str  # full path
    line: int
    function: str  # qualified name of the function with that line, "<module>" for a script's top level
    call: str  # name of what is called there, such as "item", "step"; "" where it is not known
    seconds: float  # of wall time, everything called from there included
    text: str = ""  # the line itself, without indentation; "" where the source is not at hand
    own: bool = True  # whether the line is the user's, and not a library's


@dataclass
class Lane:
    """One thread of one process. The sum of `seconds` is the time for which it was seen."""

    pid: int
    tid: int  # native thread id
    parent: int  # pid of the process's parent
    name: str  # such as "main", "worker 3", "Thread-1 (prefetch)", "autograd"
    kind: Kind
    spans: list[Span] = field(default_factory=list)
    seconds: dict[Role, float] = field(default_factory=dict)  # of wall time, by role
    sites: list[Site] = field(default_factory=list)  # costliest first
    cpu_seconds: float = 0.0  # of the thread, within the window
    queued_seconds: float = 0.0  # for which it could have run within the window, but other threads had the cores
    samples: int = 0  # looks that found it somewhere; 0 for native threads, which are seen by their CPU time alone
    counters: dict[str, float] = field(default_factory=dict)  # see COUNTERS

    @property
    def total(self) -> float:
        """Seconds of the window for which the thread was seen."""
        return sum(self.seconds.values())

    def share(self, *roles: Role) -> float:
        """Share, 0 .. 1, of the lane's time in the roles given."""
        return sum(self.seconds.get(role, 0.0) for role in roles) / max(self.total, 1e-9)


COUNTERS = {  # of Profile.counters and Lane.counters; each is there only where it was seen
    "num_envs": "environments behind the vector environment that is stepped, or 1",
    "env_rate": "environment steps a second, of all environments, where the learner counts them",
    "env_processes": "child processes that step environments",
    "timed": "s of training by the trainer's own timers, and `timed PART` of each of its parts; Headrace has them",
    "torch_threads": "torch.get_num_threads() of the process",
    "torch_interop_threads": "torch.get_num_interop_threads()",
    "cuda": "1 where torch has used a GPU, else 0",
    "parameters": "parameters of the largest torch module that was seen at work",
    "inference_batch": "rows of the last batch seen in a forward pass that chooses actions",
    "learning_batch": "rows of the last batch seen in a forward pass that learns",
}


@dataclass
class Series:
    """Something that varies over time: `values[i]` held from `times[i]` (s since the window began) to the next."""

    name: str  # "cores" (of a process), "gpu busy", "gpu memory"
    unit: str  # "cores", "%", "MB"
    times: list[float]
    values: list[float]
    pid: int = 0  # of the process, 0 for the machine or the GPU


SERIES_PERIOD = 0.1  # s between two readings of a series


@dataclass
class Machine:
    """Where it ran."""

    cpu: str = ""
    cores: int = 1  # that the script may use
    gpu: str = ""  # name; "" where there is none
    python: str = ""
    system: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # of the libraries that the script imported, of those known


class Ending(StrEnum):
    """How the script came to its end."""

    EXIT = "exit"  # `code` is its exit code
    EXCEPTION = "exception"  # an exception nobody caught; `code` is the exit code, `detail` the last line said
    SIGNAL = "signal"  # `code` is the signal's number: ended by itself or by others
    TIME_LIMIT = "time limit"  # stopped by the diagnosis when the seconds were over: the usual ending
    INTERRUPT = "interrupt"  # Ctrl-C


@dataclass
class Exit:
    """How the script came to its end, and what it said."""

    ending: Ending
    code: int = 0
    detail: str = ""


@dataclass
class Profile:
    """One diagnosis. `seconds` is the window's length; start-up that was skipped is not in it."""

    command: list[str]
    started: float  # Unix time of the script's start
    seconds: float  # wall time of the window
    skipped: float  # s of wall time between the script's start and the window
    exit: Exit
    machine: Machine
    lanes: list[Lane] = field(default_factory=list)  # the driving lane first
    series: list[Series] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, float] = field(default_factory=dict)  # see diagnose.gpu and injected.kernels; {} without a GPU
    period: float = 0.0  # s between two samples of a thread, on average
    overhead: float = 0.0  # share of the driving thread's time that sampling took, 0 .. 1, as measured by itself
    limitations: list[str] = field(default_factory=list)  # plain sentences: what could not be seen

    @property
    def training_thread(self) -> Lane:
        """The thread whose time the verdict is about: the one of the script's process that runs the training loop.

        Raises ValueError where no thread was seen at all.
        """
        if not self.lanes:
            raise ValueError("nothing was seen: the script ended before the window began")
        return self.lanes[0]

    @property
    def workers(self) -> list[Lane]:
        """The main threads of child processes that ran Python."""
        return [lane for lane in self.lanes if lane.kind is Kind.WORKER]

    def shares(self) -> dict[Role, float]:
        """Role -> share of the driving thread's time, largest first."""
        seconds = sorted(self.training_thread.seconds.items(), key=lambda item: -item[1])
        return {role: spent / max(self.training_thread.total, 1e-9) for role, spent in seconds}

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """The profile that to_json() gave."""
        return cls(
            **dict(data)
            | {
                "exit": Exit(**data["exit"] | {"ending": Ending(data["exit"]["ending"])}),
                "machine": Machine(**data["machine"]),
                "lanes": [_lane(lane) for lane in data["lanes"]],
                "series": [Series(**series) for series in data["series"]],
            }
        )

    def save(self, folder: Path) -> Path:
        """Write profile.json into a folder, and give its path."""
        path = folder / PROFILE
        path.write_text(json.dumps(self.to_json()))
        return path

    @classmethod
    def load(cls, path: Path) -> Profile:
        """The profile of a file, or of a folder that holds profile.json."""
        return cls.from_json(json.loads((path / PROFILE if path.is_dir() else path).read_text()))


def _lane(data: Mapping[str, Any]) -> Lane:
    return Lane(
        **dict(data)
        | {
            "kind": Kind(data["kind"]),
            "spans": [Span(**span | {"role": Role(span["role"])}) for span in data["spans"]],
            "seconds": {Role(role): seconds for role, seconds in data["seconds"].items()},
            "sites": [Site(**site | {"role": Role(site["role"])}) for site in data["sites"]],
        }
    )


def seconds_by_role(spans: Iterable[Span]) -> dict[Role, float]:
    """Role -> seconds, largest first."""
    seconds: dict[Role, float] = {}
    for span in spans:
        seconds[span.role] = seconds.get(span.role, 0.0) + span.end - span.start
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
