"""Puts what the samplers, /proc and NVML told together into a Profile."""

from __future__ import annotations

import platform
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headrace.core.cores import cores
from headrace.diagnose.profile import sites, spool
from headrace.diagnose.profile.profile import (
    LEARNING,
    Ending,
    Exit,
    Kind,
    Lane,
    Machine,
    Profile,
    Role,
    Series,
    Span,
    seconds_by_role,
)
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Process, Sample
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.outside import OutsideRecorder
from headrace.diagnose.record.processes import ProcessMonitor, Thread

SHORTEST = 1.0  # s: a window that would be shorter begins with the script instead
HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "joblib.externals.loky.backend.resource_tracker",
)
BUSY = 0.05  # share of a core above which a native thread is at work
SEEN = 0.005  # share of the window that a native thread must have worked for
WELL_SEEN = 0.9  # of the window; the report says it where fewer seconds of the driving thread were sampled
GRID = 0.1  # s between points of a series
WORKS = (Role.ENVIRONMENT, Role.INFERENCE, *LEARNING, Role.EVALUATION)


@dataclass(frozen=True)
class Window:
    """When a script ran, on the clock of time.monotonic(), and how much of its beginning does not count."""

    started_at: float  # Unix time
    started: float
    ended: float
    skip: float

    @property
    def too_short(self) -> bool:
        """Whether the script ended before there was anything to measure."""
        return self.ended - self.started - self.skip < SHORTEST

    @property
    def begin(self) -> float:
        """When the measurement begins."""
        return self.started if self.too_short else self.started + self.skip


def profile(
    folder: Path,
    watch: ProcessMonitor,
    outside: OutsideRecorder,
    gpu: GpuMonitor,
    window: Window,
    command: list[str],
    exit: Exit,
    hints: Hints,
) -> Profile:
    """Everything that was measured within a window."""
    everyone = outside.with_recorded(spool.read(folder))
    told = [process for process in everyone if not _is_helper(process)]
    for helper in {process.pid for process in everyone} - {process.pid for process in told}:
        watch.forget(helper)
    root = next((process for process in told if process.pid == watch.root), None)
    classifiers = {process.pid: Classifier(hints, bool(process.counters.get("cuda"))) for process in told}
    for process in told:
        classifiers[process.pid].resolve_unknown(sample for samples in process.samples.values() for sample in samples)
    lanes = [lane for process in told for lane in _lanes(process, classifiers[process.pid], watch, window)]
    lanes = _training_thread_first(lanes, watch.root)
    _name_workers(lanes)
    lanes += _native_lanes(lanes, watch, window, told)
    counters = _counters(root, classifiers[watch.root], lanes) if root else {}
    return Profile(
        command=command,
        started=window.started_at,
        seconds=window.ended - window.begin,
        skipped=window.begin - window.started,
        exit=_exit(exit, root),
        machine=_machine(told, gpu),
        lanes=lanes,
        series=_cores(watch, window) + gpu.series(window.begin, window.ended),
        counters=counters,
        gpu=gpu.summary(window.begin, window.ended) | (root.gpu if root else {}),
        period=root.period if root else 0.0,
        overhead=root.cost / max(window.ended - root.began, 1e-9) if root else 0.0,
        limitations=_limitations(told, root, lanes, watch, outside, window, gpu),
    )


def _exit(exit: Exit, root: Process | None) -> Exit:
    if exit.ending is Ending.EXIT and exit.code and root and root.error:
        return Exit(Ending.EXCEPTION, exit.code, root.error)
    return exit


def _is_helper(process: Process) -> bool:
    """Whether a process belongs to Python's own machinery."""
    stacks = {sample.stack for sample in process.samples.get(process.pid, ())}
    places = [place.code for stack in stacks for place in stack]
    # a worker that the fork server forked still has the server's main() at the bottom of its stack
    works = any(code.module == "multiprocessing.process" and code.method == "_bootstrap" for code in places)
    return not works and any(code.module in HELPERS and code.method == "main" for code in places)


def _lanes(process: Process, classifier: Classifier, watch: ProcessMonitor, window: Window) -> list[Lane]:
    lanes = []
    for thread, samples in process.samples.items():
        kept = [
            sample for sample in samples if sample.end > window.begin and sample.end - sample.seconds < window.ended
        ]
        if not kept:
            continue
        main = thread == process.pid
        kind = (Kind.MAIN if process.pid == watch.root else Kind.WORKER) if main else Kind.THREAD
        name = "main" if main else process.names.get(thread) or f"thread {thread}"
        clock = watch.threads.get((process.pid, thread))
        spans = _spans(kept, classifier, clock, window)
        if kind is Kind.THREAD:
            _call_it_waiting(spans)
        lane = Lane(process.pid, thread, process.parent, name, kind, spans, seconds_by_role(spans))
        lane.samples = _looks(kept, process.period)
        lane.cpu_seconds = _cpu(clock, window.begin, window.ended)
        lane.queued_seconds = _queued(clock, window.begin, window.ended)
        lane.sites = sites.find(kept, classifier)
        lane.counters = dict(process.counters) if main else {}
        lanes.append(lane)
    return lanes


def _looks(samples: list[Sample], period: float) -> int:
    """How many looks the samples stand for: one sample stands for all that fall into a long call of C."""
    return max(len(samples), round(sum(sample.seconds for sample in samples) / period) if period else 0)


def _spans(samples: list[Sample], classifier: Classifier, clock: Thread | None, window: Window) -> list[Span]:
    spans: list[Span] = []
    for sample in samples:
        role, detail = classifier.classify(sample.stack)
        start = max(sample.end - sample.seconds, window.begin) - window.begin
        end = min(sample.end, window.ended) - window.begin
        if spans and (spans[-1].role, spans[-1].detail) == (role, detail) and abs(spans[-1].end - start) < 1e-4:
            spans[-1].end = end
        elif end > start:
            spans.append(Span(start, end, role, detail))
    for span in spans:
        busy = _cpu(clock, span.start + window.begin, span.end + window.begin) / max(span.end - span.start, 1e-9)
        span.on_cpu = round(min(busy, 1.0), 3)
    return spans


def _call_it_waiting(spans: list[Span]) -> None:
    """A thread that does nothing known, and does not use a core for it, waits in a call of C."""
    for span in spans:
        if span.role is Role.OTHER and span.on_cpu < BUSY:
            span.role = Role.WAIT


def _cpu(clock: Thread | None, begin: float, end: float) -> float:
    """CPU seconds of a thread between two moments."""
    if not clock or not clock.times:
        return 0.0
    return _at(clock.times, clock.cpu, end) - _at(clock.times, clock.cpu, begin)


def _queued(clock: Thread | None, begin: float, end: float) -> float:
    """Seconds for which a thread waited for a core between two moments."""
    if not clock or not clock.times:
        return 0.0
    return _at(clock.times, clock.queued, end) - _at(clock.times, clock.queued, begin)


def _at(times: list[float], read: list[float], moment: float) -> float:
    """What a clock showed at a moment: between two readings in proportion."""
    index = bisect_left(times, moment)
    if index in (0, len(times)):
        return read[0] if index == 0 else read[-1]
    before, after = times[index - 1], times[index]
    share = (moment - before) / max(after - before, 1e-9)
    return read[index - 1] + share * (read[index] - read[index - 1])


def _training_thread_first(lanes: list[Lane], root: int) -> list[Lane]:
    """The lane of the training loop first: the main thread, unless another of its process does most of the work."""
    own = [lane for lane in lanes if lane.pid == root]
    if not own:
        return lanes
    main = next((lane for lane in own if lane.kind is Kind.MAIN), own[0])
    best = max(own, key=lambda lane: sum(lane.seconds.get(role, 0.0) for role in WORKS))
    training_thread = best if main.share(*WORKS) < 0.1 and best.share(*WORKS) > 0.3 else main
    return [training_thread, *(lane for lane in lanes if lane is not training_thread)]


def _name_workers(lanes: list[Lane]) -> None:
    workers = [lane for lane in lanes if lane.kind is Kind.WORKER]
    for number, lane in enumerate(workers, start=1):
        lane.name = f"worker {number}"


def _native_lanes(lanes: list[Lane], watch: ProcessMonitor, window: Window, told: list[Process]) -> list[Lane]:
    """Threads without a Python stack; their role is that of their process's main thread at the time."""
    seen = {(lane.pid, lane.tid) for lane in lanes}
    mains = {lane.pid: lane for lane in lanes if lane.tid == lane.pid}
    torch = {process.pid for process in told if "torch" in process.versions}
    found = []
    for (pid, number), clock in watch.threads.items():
        spent = _cpu(clock, window.begin, window.ended)
        if (pid, number) in seen or spent < SEEN * (window.ended - window.begin):
            continue
        kind = Kind.NATIVE if pid not in torch else Kind.AUTOGRAD if "autograd" in clock.name else Kind.POOL
        spans = _native_spans(clock, mains.get(pid), window)
        parent = watch.parents.get(pid, 0)
        name = clock.name if kind is Kind.NATIVE else kind.value
        found.append(Lane(pid, number, parent, name, kind, spans, seconds_by_role(spans), cpu_seconds=spent))
    return found


def _native_spans(clock: Thread, main: Lane | None, window: Window) -> list[Span]:
    spans: list[Span] = []
    moments = [moment for moment in clock.times if window.begin <= moment <= window.ended]
    starts = [span.start for span in main.spans] if main else []
    for start, end in pairwise(moments):
        busy = _cpu(clock, start, end) / max(end - start, 1e-9)
        begin, finish = start - window.begin, end - window.begin
        role = Role.IDLE
        if busy > BUSY:
            role = _during(main, starts, begin, finish)
        if spans and spans[-1].role is role and role is Role.IDLE:
            spans[-1].end = finish
        else:
            spans.append(Span(begin, finish, role, "", round(min(busy, 1.0), 3)))
    return spans


def _during(main: Lane | None, starts: list[float], begin: float, end: float) -> Role:
    """What a lane mostly did between two moments."""
    if main is None:
        return Role.OTHER
    spent: Counter[Role] = Counter()
    for span in main.spans[max(bisect_right(starts, begin) - 1, 0) : bisect_left(starts, end)]:
        spent[span.role] += max(min(span.end, end) - max(span.start, begin), 0.0)  # type: ignore[assignment]
    return spent.most_common(1)[0][0] if spent else Role.OTHER


def _cores(watch: ProcessMonitor, window: Window) -> list[Series]:
    """Cores that each process kept busy."""
    points = [window.begin + GRID * step for step in range(int((window.ended - window.begin) / GRID) + 1)]
    series = []
    for pid in sorted({pid for pid, _ in watch.threads}):
        clocks = [clock for (owner, _), clock in watch.threads.items() if owner == pid and clock.times]
        totals = [sum(_at(clock.times, clock.cpu, point) for clock in clocks) for point in points]
        values = [round(max(after - before, 0.0) / GRID, 3) for before, after in pairwise(totals)]
        times = [round(point - window.begin, 3) for point in points[:-1]]
        if any(value > BUSY for value in values):
            series.append(Series("cores", "cores", times, values, pid))
    return series


def _counters(root: Process, classifier: Classifier, lanes: list[Lane]) -> dict[str, float]:
    counters = dict(root.counters)
    workers = [lane for lane in lanes if lane.kind is Kind.WORKER and lane.share(Role.ENVIRONMENT) > 0.01]
    if workers:
        counters["env_processes"] = len(workers)
    for stack, batch in root.batches:
        role, _ = classifier.classify(stack)
        if role in (Role.INFERENCE, Role.FORWARD):
            counters["inference_batch" if role is Role.INFERENCE else "learning_batch"] = batch
    return counters


def _machine(told: list[Process], gpu: GpuMonitor) -> Machine:
    versions = {name: version for process in told for name, version in process.versions.items()}
    python = told[0].python if told else ""
    return Machine(_cpu_name(), cores(), gpu.name, python, f"{platform.system()} {platform.release()}", versions)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _sampled_for(root: Process, window: Window) -> float:
    """Seconds of the window within which the script ran: not Python's own beginning and end before and after it."""
    end = window.ended if root.ended is None else min(root.ended, window.ended)
    return end - max(root.began, window.begin)


def _limitations(
    told: list[Process],
    root: Process | None,
    lanes: list[Lane],
    watch: ProcessMonitor,
    outside: OutsideRecorder,
    window: Window,
    gpu: GpuMonitor,
) -> list[str]:
    """What could not be seen, in plain sentences."""
    said = [line for process in told for line in process.limitations]
    if window.too_short and window.skip:
        said.append(f"The script ended within {window.skip:g} s, so its start-up is part of what was measured.")
    if lanes and root and lanes[0].total < WELL_SEEN * (seconds := _sampled_for(root, window)):
        said.append(
            f"The samples of the thread that the shares are of stand for {lanes[0].total:.1f} s of {seconds:.1f} s: "
            "what it did in the rest was not seen."
        )
    if root is None:
        said.append("The script's own process could not be sampled: was it started without site (python -S or -I)?")
    elif not root.self_sampling:
        said.append("Without POSIX timers, time in Python between short native calls counts as theirs.")
    if lanes and lanes[0].kind is Kind.THREAD:
        said.append("The training loop runs in a second thread: its time between short native calls counts as theirs.")
    if not watch.threads:
        said.append("CPU time of threads and native threads were not seen: they are read from Linux's /proc.")
    said += outside.limitations
    strangers = {pid for pid, _ in watch.threads} - {process.pid for process in told} - outside.missed
    if strangers:
        said.append(
            f"{len(strangers)} child processes were seen by their CPU time alone: no Python, or one without site."
        )
    if root and root.counters.get("cuda") and not root.gpu:
        said.append(
            "The GPU's kernels were not counted: the script ended before, or torch's profiler was not to be had."
        )
    return said + ([gpu.limitation] if gpu.limitation else [])
