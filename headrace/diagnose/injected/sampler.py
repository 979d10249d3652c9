"""The sampler: writes the stacks of this process's threads to a spool file, some dozen times a second.

The main thread samples itself (see ticker) and the other threads, and writes: at most half a second is lost when the
process is killed. A background thread samples and writes instead while the main thread is in a long native call, or in
a call that must not be interrupted.
"""

import _thread
import atexit
import gc
import json
import os
import sys
import threading
import time

from . import library_state
from .cuda_kernels import KernelCounter
from .optimizer_steps import Progress
from .stacks import Stacks, variables_of
from .ticker import SUFFIX, Ticker

WRITE_EVERY = 0.5  # s
THREAD_PERIOD = 0.04  # s between samples of other threads
STUCK = 0.5  # s without a sample of the main thread, after which the background thread samples it
POLL_EVERY = 0.5  # s between readings of library state
KERNELS_FOR = 0.5  # s for which GPU kernels are counted each time
MOST_COST = 0.015  # largest share of time for sampling; above, the period is doubled
LONGEST_PERIOD = 0.04  # s
TRACED = (
    "The script traces or profiles its functions, and was sampled by another thread: time in Python between short "
    "native calls is counted as native time."
)
NO_TIMER = (
    "Without a timer on the main thread's CPU time, time in Python between short native calls is counted as native "
    "time, and what it waits for is not read"
)
# flags of a sample: no core was asked for; torch computes no gradients; Python collected garbage most of the time
BLOCKED, WITHOUT_GRADIENTS, COLLECTING = 1, 2, 4
STOPPING = "stopping"  # a file in the spool folder: the diagnosis is about to interrupt the script


class Sampler:
    """Samples one process from start() until its end; a forked child continues with its own spool file."""

    def __init__(self, folder, period, kernels, progress=False):
        """period: s between samples. kernels: s until GPU kernels are counted. progress: count optimizer steps."""
        self._folder, self._shortest, self._kernels_after = folder, period, kernels
        self._progress = Progress() if progress else None

    def start(self):
        """Begin a spool file and sampling. Called once in every process, in its main thread."""
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._path = os.path.join(self._folder, f"{self._pid}-{int(self._began * 1e6)}.jsonl")
        self._stacks = Stacks()
        # (native id of thread, time, seconds that the sample covers, number of stack, flags, and of the main thread
        # what variables_of() gives, and s on a core since its last sample)
        self._samples = []
        self._records = []
        self._unwritten = b""
        self._recorded = {}  # the last values, to record changes only
        self._sizes = {}
        self._kernels = KernelCounter(self._began, self._kernels_after, KERNELS_FOR)
        self._every = 1  # one of so many ticks takes a sample
        self._cost = 0.0  # s of CPU time that sampling took
        self._checked = self._began, self._cost
        self._last = self._threads_last = self._began
        self._computed = 0.0  # the main thread's CPU time (s) at its last sample
        self._collected = 0.0  # s of garbage collections in the main thread that no sample says yet
        self._collecting_since = None  # time.monotonic()
        self._next_inspection = self._began + POLL_EVERY
        self._next_write = self._began + WRITE_EVERY
        self._main = threading.get_ident()
        self._in_tick = self._look_only = False
        self._background = None  # the background thread's ident
        self._working = True
        self._writing = _thread.allocate_lock()
        if self._on_collection not in gc.callbacks:  # as in a forked child
            gc.callbacks.append(self._on_collection)
        self._record("process", self._pid, os.getppid(), self._began, sys.version.split()[0])
        self._ticker = self._make_ticker()
        self._write()
        self._background = _thread.start_new_thread(self._run, ())

    def stop(self):
        """Write the last samples at the end of the process."""
        if not self._working:
            return
        self._stop_sampling()
        error = _uncaught()
        self._record("end", time.monotonic(), type(error).__name__ if error else "", str(error or ""))
        self._write()

    def restart(self):
        """Start again in a forked child, which has no other threads, unless sampling was stopped before the fork."""
        if not self._working:
            return
        self._working = False
        self.start()

    def _record(self, *record):
        self._records.append(record)

    def _record_once(self, key, *record):
        if key not in self._recorded:
            self._recorded[key] = True
            self._record(*record)

    # --- the main thread

    def _tick(self, number, frame):
        """Record the main thread's stack for the time since the last sample, and do what is due.

        number: the signal's; None in the background thread, while the main thread is blocked.

        frame: None while no Python code runs, such as when the interpreter reads the script. The next tick covers that
        time.
        """
        try:
            if self._working and not self._in_tick and frame is not None:
                self._in_tick = True  # ticks during this one are covered by the next
                try:
                    if not self._is_traced():
                        self._sample(THREAD_PERIOD, frame, blocked=number is None)
                finally:
                    self._in_tick = False
        finally:  # without this reset, later ticks would be ignored
            if number is not None and self._working and self._ticker and not self._look_only:
                self._ticker.arm(self._every)

    def _is_traced(self):
        """Tell whether the script traces or profiles the main thread, which is then left alone."""
        traced = (sys.gettrace() or sys.getprofile()) and threading.get_ident() == self._main
        if traced and self._ticker and "traced" not in self._recorded:
            self._record_once("traced", "limitation", TRACED)
            self._look_only = True
            self._ask(self._ticker, look_only=True)
        return traced

    def _sample(self, period, frame=None, blocked=False):
        """Sample the other threads after `period`, and the main thread where its frame is given; write if due."""
        began = time.thread_time()
        try:
            if frame is not None:
                self._sample_main(frame, blocked)
            self._sample_threads(period)
            self._write_if_due()
        except Exception as error:  # the script goes on, sampled or not; the next sample covers the time of this one
            message = f"A sample of process {self._pid} failed: {type(error).__name__}: {error}"
            self._record_once(f"failed {type(error).__name__}", "limitation", message)
        finally:  # KeyboardInterrupt goes to the script
            self._cost += time.thread_time() - began

    def _sample_main(self, frame, blocked):
        now = time.monotonic()
        inside = threading.get_ident() == self._main
        due = now - (self._ticker.due(self._every) if inside and not blocked else 0.0)
        if due <= self._last:
            return
        spent, self._last = due - self._last, due
        stack = self._stacks.number(frame)
        flags = BLOCKED * blocked + WITHOUT_GRADIENTS * (inside and library_state.without_gradients())
        flags += self._of_collections(spent)
        computed = time.thread_time() if inside else self._computed
        cpu, self._computed = round(computed - self._computed, 6), computed
        self._samples.append((self._pid, due, spent, stack, flags, variables_of(frame), cpu))
        if now > self._next_inspection and inside:
            self._next_inspection = now + POLL_EVERY
            self._record_changes(stack, dict(library_state.of_torch(), **library_state.of_stack(frame, self._sizes)))
            self._poll_kernels(now)

    def _on_collection(self, phase, _):
        """Measure a garbage collection of the main thread; Python calls this before and after."""
        if threading.get_ident() == self._main:
            self._count_collection()
            self._collecting_since = time.monotonic() if phase == "start" else None

    def _count_collection(self):
        """Add the time of the collection under way, if there is one."""
        if self._collecting_since is not None:
            now = time.monotonic()
            self._collected += now - self._collecting_since
            self._collecting_since = now

    def _of_collections(self, spent):
        """COLLECTING for a sample of so many seconds, or 0: as large a share of all samples as of the time."""
        self._count_collection()  # a tick that came meanwhile runs before Python calls _on_collection
        if self._collected < spent / 2:
            return 0
        self._collected -= spent
        return COLLECTING

    def _poll_kernels(self, now):
        try:
            figures = self._kernels.poll(now)
        except Exception as error:  # the script may run a profiler itself
            self._kernels = KernelCounter(now, float("inf"), 0.0)
            self._record("limitation", f"GPU kernels were not counted: {type(error).__name__}: {error}")
            return
        if figures is not None:
            self._last = time.monotonic()  # starting and stopping the profiler is not the script's time
        if figures:
            self._record("gpu", figures)

    def _record_changes(self, stack, counters):
        """Record changed counters, and the batch with its stack, which shows what the batch was used for."""
        batch, positions = counters.pop("batch", None), counters.pop("positions", 1)
        if batch is not None:
            self._record("batch", stack, batch, positions)
        changed = {name: value for name, value in counters.items() if self._recorded.get(name) != value}
        self._recorded.update(changed)
        if changed:
            self._record("counters", changed)

    def _make_ticker(self):
        """A Ticker. None where the system cannot create one; the reason is recorded."""
        try:
            return Ticker(self._tick, self._shortest)
        except (OSError, AttributeError, ValueError) as error:
            self._record("limitation", f"{NO_TIMER} ({type(error).__name__}: {error})")
            return None

    def _stop_sampling(self):
        self._working = False
        gc.callbacks[:] = [each for each in gc.callbacks if each != self._on_collection]
        if self._ticker and threading.get_ident() == self._main:
            self._ticker.stop()
            self._ticker = None

    # --- the other threads

    def _run(self):
        """The background thread."""
        pid, ticker = self._pid, self._ticker
        if ticker:
            ticker.prepare()
            self._background_id = _thread.get_native_id()
            self._ask(ticker)
        while self._working and self._pid == pid:
            stuck = time.monotonic() - self._last > STUCK
            pause = THREAD_PERIOD * (0.5 + _random()) if stuck or not ticker else STUCK / 2
            if not ticker:
                time.sleep(pause)
            elif ticker.looked(pause):
                self._look()
                continue
            if not ticker or time.monotonic() - self._last > STUCK:
                self._sample(period=0.0)
        if self._pid == pid:
            self._write()

    def _ask(self, ticker, look_only=False):
        """Ask the diagnosis for looks (see ticker) while the main thread is blocked. look_only: from now on also while
        it computes, without ticks of a timer."""
        path = self._path + (".look" if look_only else "") + SUFFIX
        try:
            if look_only:
                os.unlink(self._path + SUFFIX)
            ticker.ask(path, self._shortest, self._background_id, look_only)
        except OSError as error:  # too many open files, or a full disk
            self._record("limitation", f"Process {self._pid} was sampled less often: {error}")

    def _look(self):
        """Record the main thread, which waits in a system call that must not be interrupted, and do what is due."""
        self._tick(None, sys._current_frames().get(self._main))

    def _sample_threads(self, period=0.0):
        """Sample the other threads, if `period` has passed; and the main thread, if it is stuck in a native call."""
        now = time.monotonic()
        spent = now - self._threads_last
        if spent < period:
            return
        self._threads_last = now
        for thread, frame in sys._current_frames().items():
            if thread == self._main:
                if not self._ticker or now - self._last > STUCK:
                    flags = self._of_collections(now - self._last)
                    self._samples.append((self._pid, now, now - self._last, self._stacks.number(frame), flags))
                    self._last = now
            elif thread != self._background:
                known = _threads().get(thread)
                number = getattr(known, "native_id", None) or thread
                self._record_once(f"thread {number}", "thread", number, known.name if known else "")
                self._samples.append((number, now, spent, self._stacks.number(frame), 0))

    def _write_if_due(self):
        now = time.monotonic()
        if now < self._next_write:
            return
        self._next_write = now + WRITE_EVERY
        self._do_periodic_work()
        self._write()

    def _do_periodic_work(self):
        """Record versions, adapt the period, and silence KeyboardInterrupt when the diagnosis is about to end."""
        versions = library_state.versions()
        if versions != self._recorded.get("versions"):
            self._recorded["versions"] = versions
            self._record("versions", versions)
        if self._ticker:
            self._adapt_period()
        if self._progress and threading.get_ident() == self._main:
            self._progress.attach()
        if sys.excepthook is not _silent_excepthook and os.path.exists(os.path.join(self._folder, STOPPING)):
            sys.excepthook = _silent_excepthook

    def _adapt_period(self):
        """Sample less often while sampling takes too much time, as during imports, where stacks are deep and new."""
        now, cost = time.monotonic(), self._cost
        rate = (cost - self._checked[1]) / (now - self._checked[0])
        self._checked = now, cost
        if rate > MOST_COST:
            self._every = min(2 * self._every, max(int(LONGEST_PERIOD / self._shortest), 1))
        elif 2.2 * rate < MOST_COST:
            self._every = max(self._every // 2, 1)

    def _write(self):
        """Append everything that is not yet written to the spool file; wait if another thread is writing."""
        with self._writing:
            # stacks are taken last and written first, so that no sample comes before its stack
            samples, records = _take(self._samples), _take(self._records)
            if self._progress and self._progress.points:
                records.append(["progress", _take(self._progress.points)])
            records = (
                _take(self._stacks.new)
                + records
                + [["samples", samples], ["cost", self._cost, self._shortest * self._every]]
            )
            self._unwritten += "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
            try:
                # opened for this write alone: scripts may close file descriptors
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    while self._unwritten:
                        self._unwritten = self._unwritten[os.write(file, self._unwritten) :]
                finally:
                    os.close(file)
            except FileNotFoundError:  # the diagnosis is over and has removed its folder
                self._stop_sampling()
            except OSError:  # too many open files, or a full disk: the next write continues here
                pass


def _take(gathered):
    """Empty a list to which another thread may append, and return its content."""
    taken = gathered[:]
    del gathered[: len(taken)]
    return taken


def _threads():
    """Thread objects by ident, without the lock of threading.enumerate(), which the script may hold."""
    return getattr(threading, "_active", {})


def _random():
    """A random number in [0, 1) that leaves the script's random generators unchanged."""
    return int.from_bytes(os.urandom(4), "little") / 2**32


def _uncaught():
    """The exception that ended the program; None where it was caught, such as by a test runner that shows it."""
    trace = getattr(sys, "last_traceback", None)
    return getattr(sys, "last_value", None) if trace is not None and trace.tb_frame.f_back is None else None


def _silent_excepthook(kind, error, trace):
    """An excepthook without a traceback for the KeyboardInterrupt that ends a diagnosis."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


current = None  # this process's sampler


def start():
    """Sample this process and those it forks. HEADRACE_DIAGNOSE holds Sampler's arguments as a JSON object."""
    global current
    current = Sampler(**json.loads(os.environ["HEADRACE_DIAGNOSE"]))
    current.start()
    atexit.register(current.stop)
    os.register_at_fork(after_in_child=current.restart)
