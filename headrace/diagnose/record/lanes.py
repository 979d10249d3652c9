"""Lanes of a profile: one for each thread, from its samples or, for native threads, from its CPU time alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.diagnose.profile import driver, sites
from headrace.diagnose.profile.profile import Kind, Lane, Role, Span, seconds_by_role
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Process, Sample
from headrace.diagnose.record import blocking, held_up
from headrace.diagnose.record.processes import ProcessMonitor, ThreadClock

SHORTEST = 1.0  # s: a shorter window begins with the script instead
BUSY = 0.05  # share of a core above which a native thread is at work
LEAST_CPU = 0.005  # share of the window for which a native thread must have worked to get a lane
LAUNCHER = "launcher"  # the name of a process that only starts the one that trains


@dataclass(frozen=True)
class Window:
    """The time in which a script ran, by time.monotonic(), and how much of its beginning is not counted."""

    started_at: float  # Unix time
    started: float
    ended: float
    skip: float

    @property
    def too_short(self) -> bool:
        """Tell whether the script ended before there was anything to measure."""
        return self.ended - self.started - self.skip < SHORTEST

    @property
    def begin(self) -> float:
        """Time at which the measurement begins."""
        return self.started if self.too_short else self.started + self.skip

    @property
    def seconds(self) -> float:
        """Length of the measurement."""
        return self.ended - self.begin


def of_process(
    process: Process,
    classifier: Classifier,
    monitor: ProcessMonitor,
    window: Window,
    states: Sequence[tuple[float, str]] = (),
) -> list[Lane]:
    """The lanes of a process's sampled threads.

    states: when its main thread was looked at, and what it was blocked in.
    """
    lanes, still = [], monitor.still(process.pid, [time for time, _ in states])
    for thread, samples in process.samples.items():
        running = blocking.without(samples, still)
        kept = [each for each in running if each.end > window.begin and each.end - each.seconds < window.ended]
        if not kept:
            continue
        main = thread == process.pid
        kind = (Kind.MAIN if process.pid == monitor.root else Kind.WORKER) if main else Kind.THREAD
        name = "main" if main else process.names.get(thread) or f"thread {thread}"
        clock = monitor.clock(process.pid, thread)
        spans = _spans(kept, classifier, clock, window)
        if kind is Kind.THREAD:  # a thread of unknown role that uses no core waits in a native call
            for span in spans:
                if span.role is Role.OTHER and span.on_cpu < BUSY:
                    span.role = Role.WAIT
        if main and states:
            stood = blocking.overlap(still, window.begin, window.ended)
            watched = blocking.Watched(kept, states, clock, window.begin, window.ended, stood)
            kept = watched.weighted()
        lane = Lane(process.pid, thread, process.parent, name, kind, spans, seconds_by_role(spans))
        if main and states:
            lane.seconds, lane.waits = blocking.seconds(kept, classifier), blocking.waits(kept)
        lane.blocked = blocking.seconds([sample for sample in kept if sample.waits_for], classifier)
        guessed = [sample for sample in kept if classifier.is_guessed(sample.stack)]
        lane.guessed, lane.lines = blocking.seconds(guessed, classifier), sites.of_loop(kept, classifier)
        lane.cpu_seconds = clock.cpu_seconds(window.begin, window.ended)
        lane.samples = _ticks(kept, process.period, lane.cpu_seconds) if main else len(kept)  # others have no ticks
        lane.queued_seconds = clock.queued_seconds(window.begin, window.ended)
        lane.wakes = clock.wakes(window.begin, window.ended)
        lane.sites = sites.find(kept, classifier)
        if main and states:
            held_up.count_unseen(lane, watched.unseen())
        if main:
            lane.counters = dict(process.counters)
            lane.read_mb, lane.written_mb = monitor.moved(process.pid, window.begin, window.ended)
        lanes.append(lane)
    return lanes


def _ticks(samples: list[Sample], period: float, cpu_seconds: float) -> int:
    """Number of sampling ticks: one sample covers all ticks during a long native call.

    Ticks come at intervals of CPU time, so a thread that had no core has fewer ticks than the time of its samples
    suggests.
    """
    blocked = sum(sample.blocked for sample in samples)
    covered = sum(sample.seconds for sample in samples if not sample.blocked)
    computed = min(cpu_seconds, covered) if cpu_seconds else covered
    return max(len(samples), blocked + round(computed / period) if period else 0)


def _spans(samples: list[Sample], classifier: Classifier, clock: ThreadClock, window: Window) -> list[Span]:
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
        busy = clock.cpu_seconds(span.start + window.begin, span.end + window.begin) / max(span.end - span.start, 1e-9)
        span.on_cpu = round(min(busy, 1.0), 3)
    return spans


def training_thread_first(lanes: list[Lane], root: int) -> list[Lane]:
    """Reorder: the thread that runs the training loop first; a child's main thread then counts as the main one."""
    first = driver.training_thread(lanes, root)
    if first is not None and first.pid != root:
        for lane in lanes:
            if lane.kind is Kind.MAIN:
                lane.kind, lane.name = Kind.WORKER, LAUNCHER
        first.kind, first.name = (Kind.MAIN, "main") if first.kind is Kind.WORKER else (first.kind, first.name)
    return [lane for lane in lanes if lane is first] + [lane for lane in lanes if lane is not first]


def of_native_threads(
    lanes: list[Lane], monitor: ProcessMonitor, window: Window, processes: Sequence[Process]
) -> list[Lane]:
    """Lanes of threads without a Python stack; their role is that of their process's main thread at the time."""
    sampled = {(lane.pid, lane.tid) for lane in lanes}
    mains = {lane.pid: lane for lane in lanes if lane.tid == lane.pid}
    torch = {process.pid for process in processes if "torch" in process.versions}
    found = []
    for (pid, tid), clock in monitor.clocks.items():
        spent = clock.cpu_seconds(window.begin, window.ended)
        if (pid, tid) in sampled or spent < LEAST_CPU * window.seconds:
            continue
        kind = Kind.NATIVE if pid not in torch else Kind.AUTOGRAD if "autograd" in clock.name else Kind.POOL
        spans = _native_spans(clock, mains.get(pid), window)
        name = clock.name if kind is Kind.NATIVE else kind.value
        parent = monitor.parents.get(pid, 0)
        found.append(Lane(pid, tid, parent, name, kind, spans, seconds_by_role(spans), cpu_seconds=spent))
    return found


def _native_spans(clock: ThreadClock, main: Lane | None, window: Window) -> list[Span]:
    spans: list[Span] = []
    starts = [span.start for span in main.spans] if main else []
    for start, end in pairwise(moment for moment in clock.times if window.begin <= moment <= window.ended):
        begin, finish = start - window.begin, end - window.begin
        busy = clock.cpu_seconds(start, end) / max(end - start, 1e-9)
        role = _main_role(main, starts, begin, finish) if busy > BUSY else Role.IDLE
        if spans and spans[-1].role is role and role is Role.IDLE:
            spans[-1].end = finish
        else:
            spans.append(Span(begin, finish, role, "", round(min(busy, 1.0), 3)))
    return spans


def _main_role(main: Lane | None, starts: list[float], begin: float, end: float) -> Role:
    """The role that a lane had most of the time between two moments."""
    if main is None:
        return Role.OTHER
    spent: Counter[Role] = Counter()
    for span in main.spans[max(bisect_right(starts, begin) - 1, 0) : bisect_left(starts, end)]:
        spent[span.role] += max(min(span.end, end) - max(span.start, begin), 0.0)  # type: ignore[assignment]
    return spent.most_common(1)[0][0] if spent else Role.OTHER
