"""The sampler: where the threads of this process are, some dozen times a second, written to a spool file.

The main thread samples itself, see ticker, and the others, and writes: half a second at most is lost when the process
is killed. A thread of ours, known to nobody, does that while the main thread is in one long call. It is there only in
processes with other threads, or whose main thread was in such a call before: a script without threads stays one.
"""

import _thread
import atexit
import json
import os
import sys
import threading
import time

from . import library_state
from .cuda_kernels import KernelCounter
from .stacks import Stacks
from .ticker import Ticker

WRITE_EVERY = 0.5  # s
THREAD_PERIOD = 0.04  # s between samples of other threads
STUCK = 0.5  # s without a sample of the main thread, after which a thread of ours has a look at it
LONG_CALL = 2.0  # s without one, after which a process without other threads gets that thread; imports take less
POLL_EVERY = 0.5  # s between looks at variables
KERNELS_FOR = 1.0  # s for which a GPU's kernels are counted
MOST_COST = 0.015  # share of time that sampling may take; the period is doubled beyond that
LONGEST_PERIOD = 0.04  # s
TICKS = 8  # of one phase
STOPPING = "stopping"  # a file in the spool folder: the diagnosis is about to interrupt the script


class Sampler:
    """Samples one process, from start() until its end; a forked child goes on with a spool file of its own."""

    def __init__(self, folder, period, kernels):
        self._folder, self._shortest, self._kernels_after = folder, period, kernels

    def start(self):
        """Begin a spool file, and sample. Called once in every process, in its main thread."""
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._path = os.path.join(self._folder, f"{self._pid}-{int(self._began * 1e6)}.jsonl")
        self._stacks = Stacks()
        self._samples = []  # (native id of thread, time, seconds that it stands for, number of stack)
        self._records = []
        self._unwritten = b""
        self._recorded = {}  # the last facts, so that each is told once
        self._sizes = {}
        self._kernels = KernelCounter(self._began, self._kernels_after, KERNELS_FOR)
        self._period = self._shortest
        self._cost = 0.0  # s of CPU time that sampling took
        self._checked = self._began, self._cost
        self._last = self._threads_last = self._began
        self._next_inspection = self._began + POLL_EVERY
        self._next_write = self._began + WRITE_EVERY
        self._main = threading.get_ident()
        self._ticks = 0
        self._in_tick = False
        self._background = None  # the thread of ours, by its ident
        self._working = True
        self._writing = _thread.allocate_lock()
        self._ticker = self._make_ticker()
        self._record("process", self._pid, os.getppid(), self._began, bool(self._ticker), sys.version.split()[0])
        self._write()
        if self._ticker:
            self._set_phase()
        else:
            self._start_background_thread()

    def stop(self):
        """Write the last samples; the process is about to end."""
        if not self._working:
            return
        self._stop_sampling()
        error = getattr(sys, "last_type", None)
        self._record("end", time.monotonic(), error.__name__ if error else "", str(getattr(sys, "last_value", "")))
        self._write()

    def restart(self):
        """Begin anew in a forked child, where the threads are gone."""
        self._working = False
        self.start()

    def _record(self, *record):
        self._records.append(record)

    # --- the main thread

    def _tick(self, _, frame):
        """Note where the main thread is, and for how long it may have been there: all ticks since the last note.

        frame: None where no Python code runs, as while the interpreter reads the script's file: the next tick has it.
        """
        if not self._working or self._in_tick or frame is None:
            return
        self._in_tick = True  # ticks that fall into this one are the next one's
        began = time.thread_time()
        try:
            self._sample_main(frame)
            self._sample_threads(THREAD_PERIOD)
            self._write_if_due()
        except Exception as error:  # never the script's business
            self._record_failure(error)
        finally:  # Ctrl-C may have come meanwhile, and goes to the script
            self._cost += time.thread_time() - began
            self._in_tick = False

    def _sample_main(self, frame):
        origin, period = self._schedule
        now = time.monotonic()
        due = origin + (now - origin) // period * period
        if due <= self._last:
            return
        spent, self._last = due - self._last, due
        if not self._background and (spent > LONG_CALL or len(sys._current_frames()) > 1):
            self._start_background_thread()
        stack = self._stacks.number(frame)
        self._samples.append((self._pid, due, spent, stack))
        self._ticks += 1
        if self._ticks % TICKS == 0:
            self._set_phase()
        if now > self._next_inspection:
            self._next_inspection = now + POLL_EVERY
            self._record_changes(stack, dict(library_state.of_torch(), **library_state.of_stack(frame, self._sizes)))
            self._poll_kernels(now)

    def _poll_kernels(self, now):
        try:
            figures = self._kernels.poll(now)
        except Exception as error:  # a profiler of the script's own may be at work
            self._kernels = KernelCounter(now, float("inf"), 0.0)
            self._record("blind", f"The GPU's kernels were not seen: {type(error).__name__}: {error}")
            return
        if figures is not None:
            self._last = time.monotonic()  # starting and stopping take time that is not the script's
        if figures:
            self._record("gpu", figures)

    def _record_changes(self, stack, counters):
        """Note what has changed among counters; a batch goes with its stack, which tells what it was for."""
        batch = counters.pop("batch", None)
        if batch is not None:
            self._record("batch", stack, batch)
        changed = {name: value for name, value in counters.items() if self._recorded.get(name) != value}
        self._recorded.update(changed)
        if changed:
            self._record("counters", changed)

    def _make_ticker(self):
        """None where the system has no such timers, or a process was forked from another thread than the main one."""
        try:
            return Ticker(_thread.get_native_id(), self._tick)
        except (OSError, AttributeError, ValueError):
            return None

    def _set_phase(self):
        """Ticks at a new place within the period: a loop that takes as long as some periods is seen all around."""
        first = time.monotonic() + _random() * self._period
        self._schedule = first, self._period
        self._ticker.start(first, self._period)

    def _stop_sampling(self):
        self._working = False
        if self._ticker:  # before Python ends: it takes its handlers back, and a tick would then kill the process
            self._ticker.stop()
            self._ticker = None

    def _record_failure(self, error):
        """Say that a look has failed, once; the next one may not, and stands for this one's time, too."""
        key = f"failed {type(error).__name__}"
        if key not in self._recorded:
            self._recorded[key] = True
            self._record("blind", f"A look into process {self._pid} failed: {type(error).__name__}: {error}")

    # --- the other threads

    def _start_background_thread(self):
        self._background = _thread.start_new_thread(self._run, ())

    def _run(self):
        pid = self._pid
        while self._working and self._pid == pid:
            if self._ticker and time.monotonic() - self._last <= STUCK:
                time.sleep(STUCK / 2)
                continue
            time.sleep(THREAD_PERIOD * (0.5 + _random()))
            began = time.thread_time()
            try:
                self._sample_threads()
                self._write_if_due()
            except Exception as error:  # the script goes on, measured or not
                self._record_failure(error)
            self._cost += time.thread_time() - began
        if self._pid == pid:
            self._write()

    def _sample_threads(self, period=0.0):
        """Note where the other threads are, if `period` has passed; and the main one, where it has not for long."""
        now = time.monotonic()
        spent = now - self._threads_last
        if spent < period:
            return
        self._threads_last = now
        for thread, frame in sys._current_frames().items():
            if thread == self._main:
                if not self._ticker or now - self._last > STUCK:
                    stack = self._stacks.number(frame)
                    self._samples.append((self._pid, now, now - self._last, stack))
                    self._last = now
            elif thread != self._background:
                known = _threads().get(thread)
                number = getattr(known, "native_id", None) or thread
                self._name(number, known)
                stack = self._stacks.number(frame)
                self._samples.append((number, now, spent, stack))

    def _name(self, number, thread):
        key = f"thread {number}"
        if key not in self._recorded:
            self._recorded[key] = True
            self._record("thread", number, thread.name if thread else "")

    def _write_if_due(self):
        now = time.monotonic()
        if now < self._next_write:
            return
        self._next_write = now + WRITE_EVERY
        self._do_periodic_work()
        self._write()

    def _do_periodic_work(self):
        """What is due from time to time: versions, another period, quiet at the end."""
        versions = library_state.versions()
        if versions != self._recorded.get("versions"):
            self._recorded["versions"] = versions
            self._record("versions", versions)
        if self._ticker:
            self._adapt_period()
        if sys.excepthook is not _silent_excepthook and os.path.exists(os.path.join(self._folder, STOPPING)):
            sys.excepthook = _silent_excepthook

    def _adapt_period(self):
        """Sample less often while that costs too much, as where stacks are deep and ever new: during imports."""
        now, cost = time.monotonic(), self._cost
        rate = (cost - self._checked[1]) / (now - self._checked[0])
        self._checked = now, cost
        if rate > MOST_COST:
            self._period = min(2 * self._period, LONGEST_PERIOD)
        elif 2.2 * rate < MOST_COST:
            self._period = max(self._period / 2, self._shortest)

    def _write(self):
        """Append all that has gathered, and return when it is in the file: at the end, another thread may be at it."""
        with self._writing:
            self._append()

    def _append(self):
        # what describes stacks is taken last and written first: no sample comes before its stack
        samples, records = _take(self._samples), _take(self._records)
        records = _take(self._stacks.new) + records + [["samples", samples], ["cost", self._cost, self._period]]
        self._unwritten += "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
        try:
            # the file is open no longer than for this: scripts may close what they like
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                while self._unwritten:
                    self._unwritten = self._unwritten[os.write(file, self._unwritten) :]
            finally:
                os.close(file)
        except FileNotFoundError:  # the diagnosis is over, and its folder gone; this process goes on
            self._stop_sampling()
        except OSError:  # too many files are open, or the disk is full: the next time all of it goes on where this ends
            pass


def _take(gathered):
    """Empty a list to which another thread may be appending, and give what was in it."""
    taken = gathered[:]
    del gathered[: len(taken)]
    return taken


def _threads():
    """Thread objects by ident, without the lock that threading.enumerate() takes and the script may hold."""
    return getattr(threading, "_active", {})


def _random():
    """A random number in [0, 1), from nobody's generator: the script's own must not move."""
    return int.from_bytes(os.urandom(4), "little") / 2**32


def _silent_excepthook(kind, error, trace):
    """An excepthook that says nothing about the interruption by which a diagnosis ends."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def start():
    """Sample this process and those it forks, as HEADRACE_DIAGNOSE says: a JSON object with Sampler's arguments."""
    settings = json.loads(os.environ["HEADRACE_DIAGNOSE"])
    sampler = Sampler(**settings)
    sampler.start()
    atexit.register(sampler.stop)
    os.register_at_fork(after_in_child=sampler.restart)
