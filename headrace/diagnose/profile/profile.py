"""A profile: where every thread of every process of a training script spent its wall time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

PROFILE = "profile.json"
LOCK = "Python's lock"  # what a thread waits for while another one of its process computes


class Role(StrEnum):
    """An activity of a thread, in the order of reports. A lane has exactly one role at any time."""

    label: str  # in reports
    colour: str  # in charts: similar hues of different lightness for related roles

    def __new__(cls, value: str, label: str = "", colour: str = "") -> Role:
        """A role by its name in files."""
        role = str.__new__(cls, value)
        role._value_, role.label, role.colour = value, label, colour
        return role

    # step and reset of environments, with their wrappers
    ENVIRONMENT = "environment", "environment", "#e8833a"
    INFERENCE = "inference", "policy inference", "#3b7dd8"  # the policy computing actions
    # losses and their networks, with targets that need no gradients
    FORWARD = "learning.forward", "learning: forward", "#9bd0a5"
    BACKWARD = "learning.backward", "learning: backward", "#4fa96b"
    # the optimizer's step, zero_grad, gradient clipping
    OPTIMIZER = "learning.optimizer", "learning: optimizer", "#22744a"
    COPY = "copy", "host-device copies", "#c65b9a"  # with waiting for the device
    # launching kernels on a GPU that is idle meanwhile; only if a GPU was measured
    LAUNCH = "launch", "kernel launches", "#e59bc4"
    WAIT = "wait", "waiting for others", "#c9ced6"  # other processes and threads: pipes, queues, locks, joins
    EVALUATION = "evaluation", "evaluation", "#7d5bbe"  # of the policy, with everything it calls
    READING = "reading", "reading files", "#8fd0b8"
    REMADE = "made again", "set-up made again", "#b08968"  # compiling, building or starting within the loop, repeatedly
    GARBAGE = "garbage", "garbage collection", "#b3c26b"  # Python's, by gc.collect() or of itself
    DATA = "data", "data handling", "#4fb8c4"  # buffers, batches, advantages, conversions between arrays
    SIDE = "side work", "side work", "#c9a9d6"  # code whose results the loop does not use
    LOGGING = "logging", "logging", "#d8b63a"
    SAVING = "saving", "saving", "#a08434"  # checkpoints, models, videos
    # imports, compilation, building networks and environments, starting processes
    START_UP = "start-up", "start-up", "#7b8794"
    IDLE = "idle", "sleeping", "#e4e7eb"
    OTHER = "other", "other", "#9aa5b1"


LEARNING = (Role.FORWARD, Role.BACKWARD, Role.OPTIMIZER)


class Kind(StrEnum):
    """The kind of thread of a lane."""

    MAIN = "main"  # the main thread of the script's own process
    WORKER = "worker"  # the main thread of a child process
    THREAD = "thread"  # another Python thread
    POOL = "torch pool"  # native threads that share the work of one operation: OpenMP, BLAS
    AUTOGRAD = "autograd"  # native threads that run backward
    NATIVE = "native"  # other native threads


@dataclass
class Span:
    """An interval in which a thread had one role."""

    start: float  # s since the window began
    end: float
    role: Role
    detail: str = ""  # the function, such as "CartPoleEnv.step", "Linear.forward", "item", "recv"
    on_cpu: float = 1.0  # share of the interval that the thread was on a core, 0 .. 1; read every SERIES_PERIOD


@dataclass
class Site:
    """A line of the script, or of a library that runs the training loop for it, and the time that the line took."""

    role: Role
    file: str  # full path
    line: int
    function: str  # qualified name of the line's function, "<module>" for a script's top level
    call: str  # name of the function called there, such as "item", "step"; "" if unknown
    seconds: float  # of wall time, with everything called from there
    text: str = ""  # the line itself, without indentation; "" if the source cannot be read
    own: bool = True  # whether the line is the user's rather than a library's
    sure: bool = True  # whether the role is known, rather than likely
    waits: dict[str, float] = field(default_factory=dict)  # s of `seconds`, by what was waited for


@dataclass
class Lane:
    """One thread of one process: a lane of the timeline. The sum of `seconds` is the time for which it was sampled."""

    pid: int
    tid: int  # native thread id
    parent: int  # pid of the process's parent
    name: str  # such as "main", "worker 3", "Thread-1 (prefetch)", "autograd"
    kind: Kind
    spans: list[Span] = field(default_factory=list)
    seconds: dict[Role, float] = field(default_factory=dict)  # of wall time, by role
    sites: list[Site] = field(default_factory=list)  # the most time first
    cpu_seconds: float = 0.0  # of the thread, within the window
    queued_seconds: float = 0.0  # within the window for which it was ready to run but had no core
    wakes: float = 0.0  # times within the window that it woke up from waiting or sleeping
    samples: int = 0  # sampling ticks; 0 for native threads, of which only the CPU time is known
    counters: dict[str, float] = field(default_factory=dict)  # see Profile
    guessed: dict[Role, float] = field(default_factory=dict)  # part of `seconds` whose role is likely, but not sure
    blocked: dict[Role, float] = field(default_factory=dict)  # part of `seconds` for which a core would not have helped
    lines: list[Site] = field(default_factory=list)  # the statements of the script's training loop, the most time first
    waits: dict[str, float] = field(default_factory=dict)  # s blocked, by what was waited for: "a pipe", "a timer", ...
    read_mb: float = 0.0  # MB, like `written_mb`: the process's system calls (files, pipes, sockets); main threads only
    written_mb: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the window for which the thread was sampled."""
        return sum(self.seconds.values())

    def spent(self, *roles: Role) -> float:
        """Seconds in these roles."""
        return sum(self.seconds.get(role, 0.0) for role in roles)

    def share(self, *roles: Role) -> float:
        """Share of the lane's time in these roles, 0 .. 1."""
        return self.spent(*roles) / max(self.total, 1e-9)


@dataclass
class Series:
    """A quantity over time: `values[i]` holds from `times[i]` (s since the window began) until the next time."""

    name: str  # "cores" (of a process), "gpu busy", "gpu memory"
    unit: str  # "cores", "%", "MB"
    times: list[float]
    values: list[float]
    pid: int = 0  # of the process, 0 for the machine or the GPU


SERIES_PERIOD = 0.1  # s between two readings of a series


@dataclass
class Machine:
    """The machine that the script ran on."""

    cpu: str = ""
    cores: int = 1  # that the script may use
    gpu: str = ""  # name; "" without one
    python: str = ""
    system: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # of the known libraries that the script imported


class Ending(StrEnum):
    """The ways in which a script ends."""

    EXIT = "exit"  # `code` is its exit code
    EXCEPTION = "exception"  # an uncaught exception; `code` is the exit code, `detail` the exception
    SIGNAL = "signal"  # `code` is the signal's number
    TIME_LIMIT = "time limit"  # stopped by the diagnosis at the end of the window, the usual case
    INTERRUPT = "interrupt"  # Ctrl-C
    RUNNING = "running"  # no end: a running process was measured, and goes on


@dataclass
class Exit:
    """The end of a script, with its exit code or signal."""

    ending: Ending
    code: int = 0
    detail: str = ""


@dataclass
class Profile:
    """One diagnosis. Its window is the measured part of the run: `seconds` long, after the skipped start-up.

    Counters are present only if they were read:
    num_envs: environments in the vector environment, or 1
    env_rate: environment steps per second, of all environments, if the learner counts them
    env_processes: child processes that step environments
    torch_threads, torch_interop_threads: torch.get_num_threads() and torch.get_num_interop_threads()
    cuda: 1 if torch has used a GPU, otherwise 0
    parameters: of the largest torch module whose forward pass was sampled
    positions: number of positions at which each row of the last learning batch uses the parameters; 0: not known
    inference_batch, learning_batch: rows of the last sampled forward pass that acts, and that learns
    updates_seen: 1 if learning was sampled, or a call that updates parameters is in the training loop
    before_updates: 1 if the script's text updates parameters, and no sampled code leads to that update
    training_began: 1 if the training loop was seen, otherwise 0
    trainers: processes that compute gradients
    """

    command: list[str]
    started: float  # Unix time of the script's start
    seconds: float  # wall time of the window
    skipped: float  # s of wall time between the script's start and the window
    exit: Exit
    machine: Machine
    lanes: list[Lane] = field(default_factory=list)  # the training thread first
    series: list[Series] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, float] = field(default_factory=dict)  # see record.gpu and injected.cuda_kernels; {} without a GPU
    period: float = 0.0  # s between two samples of a thread, on average
    overhead: float = 0.0  # share of the training thread's time that sampling took, 0 .. 1, by the sampler's own clock
    limitations: list[str] = field(default_factory=list)  # sentences: what was not measured

    @property
    def training_thread(self) -> Lane:
        """The thread that runs the training loop. Raises ValueError if no thread was sampled."""
        if not self.lanes:
            raise ValueError("there are no samples: the script ended before the window began")
        return self.lanes[0]

    @property
    def workers(self) -> list[Lane]:
        """The main threads of Python child processes."""
        return [lane for lane in self.lanes if lane.kind is Kind.WORKER]

    def save(self, folder: Path) -> Path:
        """Write profile.json into a folder, and return its path."""
        path = folder / PROFILE
        path.write_text(json.dumps(dataclasses.asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> Profile:
        """The profile in a file, or in a folder that holds profile.json."""
        data = json.loads((path / PROFILE if path.is_dir() else path).read_text())
        data["exit"]["ending"] = Ending(data["exit"]["ending"])
        for lane in data["lanes"]:
            lane["kind"] = Kind(lane["kind"])
            for name in ("seconds", "guessed", "blocked"):
                lane[name] = {Role(role): seconds for role, seconds in lane.get(name, {}).items()}
            lane["spans"] = [Span(**span | {"role": Role(span["role"])}) for span in lane["spans"]]
            for name in ("sites", "lines"):
                lane[name] = [Site(**site | {"role": Role(site["role"])}) for site in lane.get(name, [])]
        made = {
            "exit": Exit(**data["exit"]),
            "machine": Machine(**data["machine"]),
            "lanes": [Lane(**lane) for lane in data["lanes"]],
            "series": [Series(**series) for series in data["series"]],
        }
        return cls(**data | made)


def seconds_by_role(spans: Iterable[Span]) -> dict[Role, float]:
    """Role -> seconds, largest first."""
    seconds: dict[Role, float] = {}
    for span in spans:
        seconds[span.role] = seconds.get(span.role, 0.0) + span.end - span.start
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
