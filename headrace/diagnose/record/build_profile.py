"""Combines what the samplers, /proc and NVML recorded into a Profile."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from headrace.core.cores import cores, processor
from headrace.diagnose.profile import driver, spool
from headrace.diagnose.profile.profile import LEARNING, Ending, Exit, Kind, Lane, Machine, Profile, Role, Series
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.profile.roles import MOVES, Classifier
from headrace.diagnose.profile.spool import Process
from headrace.diagnose.record import blocking, held_up
from headrace.diagnose.record import lanes as make_lanes
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.lanes import BUSY, Window
from headrace.diagnose.record.outside import OutsideRecorder
from headrace.diagnose.record.processes import ProcessMonitor

HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "joblib.externals.loky.backend.resource_tracker",
)
WELL_SAMPLED = 0.9  # share of the training thread's time; the report says if less was sampled
LEAST_MOVED = 0.02  # MB/s above which a process may read or save data; the sampler's own file takes less
STARTED = 4  # so many child processes that start within the window count as repeated starts
GRID = 0.1  # s between points of a series


@dataclass(frozen=True)
class Recording:
    """Records of one run of a script."""

    folder: Path  # of the spool files
    monitor: ProcessMonitor
    outside: OutsideRecorder
    gpu: GpuMonitor
    window: Window
    command: list[str]
    exit: Exit
    states: Mapping[int, Sequence[tuple[float, str]]] = field(default_factory=dict)  # see TickSender


def training_began(recording: Recording, hints: Hints) -> float | None:
    """Time at which the training of a script that still runs began, in s of time.monotonic(); None if it has not."""
    processes = [process for process in spool.read(recording.folder) if not _is_helper(process)]
    classifiers = _classifiers(processes, hints, recording)
    lanes = _lanes(processes, classifiers, recording)
    began = _began(lanes, classifiers, recording.window)
    return None if began is None else recording.window.begin + began


def _began(lanes: list[Lane], classifiers: dict[int, Classifier], window: Window) -> float | None:
    """Time at which training began, in s since the window began: the loop of the script's own, or a library's."""
    if not lanes:
        return None
    began, loop = driver.began(lanes[0]), classifiers[lanes[0].pid].loop
    turned = loop.began() if loop else None
    if turned is None and loop is not None and loop.is_before_updates:
        return None  # it collects data for a later training
    if turned is None or loop is None:
        return began
    turned, entered = max(turned - window.begin, 0.0), loop.entered - window.begin
    if began is None:
        return turned
    learned = any(span.role in driver.GRADIENTS and span.start < entered for span in lanes[0].spans)
    return min(began, turned) if learned else max(min(began, turned), entered)  # steps before the loop are set-up


def build(recording: Recording, hints: Hints) -> Profile:
    """The profile of a recording's window."""
    monitor, gpu, window = recording.monitor, recording.gpu, recording.window
    everything = recording.outside.with_recorded(spool.read(recording.folder))
    processes = [process for process in everything if not _is_helper(process)]
    for helper in {process.pid for process in everything} - {process.pid for process in processes}:
        monitor.forget(helper)
    root = next((process for process in processes if process.pid == monitor.root), None)
    classifiers = _classifiers(processes, hints, recording)
    lanes = _lanes(processes, classifiers, recording)
    began = _began(lanes, classifiers, window)
    if began and began > window.seconds - make_lanes.SHORTEST:
        began = None  # too little of it was seen
    if began:
        window = replace(window, skip=window.begin - window.started + began)
        recording = replace(recording, window=window)
        lanes = _lanes(processes, classifiers, recording)
    if lanes:
        _count_starting(lanes, {process.pid for process in processes if process.began > window.begin})
    learning, leader = driver.trainers(lanes), lanes[0].pid if lanes else monitor.root
    leading = next((process for process in processes if process.pid == leader), root)
    workers = (lane for lane in lanes if lane.kind is Kind.WORKER and lane.name != make_lanes.LAUNCHER)
    for number, lane in enumerate(workers, start=1):
        lane.name = f"worker {number}"
    lanes += make_lanes.of_native_threads(lanes, monitor, window, processes)
    if lanes:
        held_up.count(lanes)
    counters = _counters(leading, classifiers[leading.pid], lanes) if leading else {}
    counting = [*filter(None, [leading]), *processes]  # a launcher counts no kernels: its processes do
    counters["training_began"] = float(began is not None)
    if lanes:
        loop = classifiers[lanes[0].pid].loop
        counters["before_updates"] = float(began is None and loop is not None and loop.is_before_updates)
        counters["updates_seen"] = float(
            lanes[0].spent(*LEARNING) > 0 or (loop is not None and loop.tree is not None and bool(loop.updating_nodes))
        )
    counters["trainers"] = len(learning)
    return Profile(
        command=recording.command,
        started=window.started_at,
        seconds=window.seconds,
        skipped=window.begin - window.started,
        exit=_exit(recording.exit, root),
        machine=_machine(processes, gpu),
        lanes=lanes,
        series=_core_series(monitor, window) + gpu.series(window.begin, window.ended),
        counters=counters,
        gpu=gpu.summary(window.begin, window.ended) | next((each.gpu for each in counting if each.gpu), {}),
        period=root.period if root else 0.0,
        overhead=root.cost / max(window.ended - root.began, 1e-9) if root else 0.0,
        limitations=_limitations(recording, processes, root, lanes),
    )


def _classifiers(processes: list[Process], hints: Hints, recording: Recording) -> dict[int, Classifier]:
    """Classifiers of each process's stacks."""
    found = {}
    for process in processes:
        rates = zip(MOVES, recording.monitor.moved_per_second(process.pid), strict=True)
        moves = [role for role, rate in rates if rate > LEAST_MOVED]
        found[process.pid] = Classifier(hints, bool(process.counters.get("cuda")), moves)
        threads = sorted(process.samples, key=lambda thread: thread != process.pid)
        seen = {thread: process.samples[thread] for thread in threads}
        if process.pid in seen:
            seen[process.pid] = blocking.with_states(seen[process.pid], recording.states.get(process.pid, ()))
        found[process.pid].learn_from(*seen.values())
    return found


def _count_starting(lanes: list[Lane], started: set[int]) -> None:
    """Count waiting for processes that the script starts repeatedly while it trains as Role.REMADE."""
    children = [lane for lane in lanes[1:] if lane.pid in started and lane.tid == lane.pid]
    if len(children) >= STARTED:
        starting = sum(lane.spent(Role.START_UP) for lane in children) / max(sum(lane.total for lane in children), 1e-9)
        seconds = lanes[0].seconds
        moved = seconds.get(Role.WAIT, 0.0) * starting
        seconds[Role.REMADE] = seconds.get(Role.REMADE, 0.0) + moved
        seconds[Role.WAIT] = seconds.get(Role.WAIT, 0.0) - moved


def _lanes(processes: list[Process], classifiers: dict[int, Classifier], recording: Recording) -> list[Lane]:
    """The lanes of all sampled threads, the training thread first."""
    found = []
    for process in processes:
        states = recording.states.get(process.pid, ())
        found += make_lanes.of_process(process, classifiers[process.pid], recording.monitor, recording.window, states)
    return make_lanes.training_thread_first(found, recording.monitor.root)


def _exit(exit: Exit, root: Process | None) -> Exit:
    if exit.ending is Ending.EXIT and exit.code and root and root.error:
        return Exit(Ending.EXCEPTION, exit.code, root.error)
    return exit


def _is_helper(process: Process) -> bool:
    """Tell whether a process is one of Python's own, such as multiprocessing's resource tracker."""
    stacks = {sample.stack for sample in process.samples.get(process.pid, ())}
    codes = [place.code for stack in stacks for place in stack]
    # a worker that the fork server forked still has the server's main() at the bottom of its stack
    works = any(code.module == "multiprocessing.process" and code.method == "_bootstrap" for code in codes)
    return not works and any(code.module in HELPERS and code.method == "main" for code in codes)


def _core_series(monitor: ProcessMonitor, window: Window) -> list[Series]:
    """The number of cores that each process kept busy."""
    points = [window.begin + GRID * step for step in range(int(window.seconds / GRID) + 1)]
    times = [round(point - window.begin, 3) for point in points[:-1]]
    series = []
    for pid in sorted({pid for pid, _ in monitor.clocks}):
        clocks = [clock for (owner, _), clock in monitor.clocks.items() if owner == pid and clock.times]
        spent = [sum(clock.cpu_seconds(*ends) for clock in clocks) for ends in pairwise(points)]
        values = [round(max(seconds, 0.0) / GRID, 3) for seconds in spent]
        if any(value > BUSY for value in values):
            series.append(Series("cores", "cores", list(times), values, pid))
    return series


def _counters(root: Process, classifier: Classifier, lanes: list[Lane]) -> dict[str, float]:
    counters = dict(root.counters)
    workers = [lane for lane in lanes if lane.kind is Kind.WORKER and lane.share(Role.ENVIRONMENT) > 0.01]
    if workers:
        counters["env_processes"] = len(workers)
    for stack, batch, positions in root.batches:
        role, _ = classifier.classify(stack)
        if role in (Role.INFERENCE, Role.FORWARD):
            counters["inference_batch" if role is Role.INFERENCE else "learning_batch"] = batch
            if role is Role.FORWARD:
                counters["positions"] = positions
    return counters


def _machine(processes: list[Process], gpu: GpuMonitor) -> Machine:
    versions = {name: version for process in processes for name, version in process.versions.items()}
    python = processes[0].python if processes else ""
    return Machine(processor(), cores(), gpu.name, python, f"{platform.system()} {platform.release()}", versions)


def _limitations(recording: Recording, processes: list[Process], root: Process | None, lanes: list[Lane]) -> list[str]:
    """Sentences on what was not measured."""
    window, clocks, outside = recording.window, recording.monitor.clocks, recording.outside
    notes = [line for process in processes for line in process.limitations]
    if window.too_short and window.skip:
        notes.append(f"The script ended within {window.skip:g} s, so its start-up is part of what was measured.")
    if lanes and root:
        # without Python's own start and end, before and after the script
        end = window.ended if root.ended is None else min(root.ended, window.ended)
        seconds = end - max(root.began, window.begin)
        if lanes[0].total < WELL_SAMPLED * seconds:
            notes.append(
                f"The samples of the training thread cover {lanes[0].total:.1f} s of {seconds:.1f} s: what it did in "
                "the rest was not sampled."
            )
    looks = [time for time, _ in recording.states.get(recording.monitor.root, ())]
    still = blocking.overlap(recording.monitor.still(recording.monitor.root, looks), window.begin, window.ended)
    if still > GRID:
        notes.append(
            f"The script did not run for {still:.1f} s: a signal or the machine stopped it. They do not count."
        )
    if root is None:
        notes.append("The script's own process could not be sampled: was it started without site (python -S or -I)?")
    if lanes and lanes[0].kind is Kind.THREAD:
        notes.append(
            "The training loop does not run in the main thread: its time between short native calls is counted as "
            "native time."
        )
    if not clocks:
        notes.append("CPU time and native threads were not measured: they are read from Linux's /proc.")
    notes += outside.limitations
    unsampled = {pid for pid, _ in clocks} - {process.pid for process in processes} - outside.missed.keys()
    if unsampled:
        notes.append(
            f"Of {len(unsampled)} child processes only the CPU time was measured: they run no Python, or Python "
            "without site."
        )
    if any(process.counters.get("cuda") for process in processes) and not any(process.gpu for process in processes):
        notes.append("GPU kernels were not counted: the script ended too early, or torch's profiler was not available.")
    return notes + recording.gpu.limitations
