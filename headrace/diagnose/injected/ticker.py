"""Ticks, on each of which the main thread samples itself: the part in the measured process.

A sampling thread would have to wait for the interpreter's lock. The script releases that lock inside torch's
operations, so samples there would be far too frequent. On a signal, Python runs the handler in the main thread between
two instructions, as soon as the current native call is over, with the frame that made the call.

A timer on the main thread's own CPU time sends the signal, so the signal comes only while that thread is on a core, and
cuts no wait short. Waits are seen from outside (headrace/diagnose/record/ticks.py): where the main thread is blocked,
the diagnosis sends the signal LOOK to the background thread. That thread receives it by sigtimedwait and samples the
main thread. Such a sample is called a look.
"""

import _thread
import ctypes
import json
import os
import signal
import time

SIGNAL = getattr(signal, "SIGURG", 0)  # ignored by default: a process that resets its handlers is not ended by it
LOOK = getattr(signal, "SIGRTMIN", 0) + 8  # to the background thread
SUFFIX = ".ticks"  # of the file in the spool folder that asks for looks
TRIES, PAUSE = 5, 0.01  # attempts to create the timer, and s between two
CLOCK_THREAD_CPUTIME, TO_THREAD, ABSOLUTE = 3, 4, 1  # CLOCK_THREAD_CPUTIME_ID, SIGEV_THREAD_ID, TIMER_ABSTIME


def last_due(now, period, every=1):
    """The time of the last tick before `now`, both in s of one clock.

    Each period has one tick, at a place that differs between periods, so that loops as long as a few periods are fully
    sampled. every: only every `every`th tick counts.
    """
    number = int(now / period)
    number -= number % every
    due = _time(number, period)
    return due if due <= now else _time(number - every, period)


def next_due(now, period, every=1):
    """The time of the first tick after `now`."""
    number = int(now / period)
    number -= number % every
    due = _time(number, period)
    return due if due > now else _time(number + every, period)


def _time(number, period):
    # multiples of the golden ratio: any few successive places are spread over the period
    return (number + number * 2654435761 % 2**32 / 2**32) * period


class _Event(ctypes.Structure):
    """struct sigevent, of 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_char * 44),
    )


class Ticker:
    """Calls handler(signal number, frame) in the main thread, by its CPU time. Raises OSError or AttributeError."""

    def __init__(self, handler, period):
        """Only the main thread may create a Ticker. period: s of its CPU time between two ticks."""
        if not os.path.exists("/proc/self/stat"):
            raise OSError("no /proc")
        signal.sigtimedwait  # noqa: B018  # some systems have no such function
        self._period, self._timer = period, ctypes.c_void_p()
        library = ctypes.PyDLL(None)  # its calls keep the interpreter's lock: no other thread runs meanwhile
        self._set, self._delete = library.timer_settime, library.timer_delete
        signal.signal(SIGNAL, handler)
        signal.siginterrupt(SIGNAL, False)
        signal.signal(LOOK, signal.SIG_IGN)  # a signal that is ignored still reaches a thread that blocks it
        event = _Event(None, int(SIGNAL), TO_THREAD, _thread.get_native_id(), b"")
        self._create(library.timer_create, event)
        self.arm()

    def _create(self, create, event):
        """Create the timer. The system may refuse it temporarily (EAGAIN), so try several times."""
        for _ in range(TRIES):
            if not create(CLOCK_THREAD_CPUTIME, ctypes.byref(event), ctypes.byref(self._timer)):
                return
            time.sleep(PAUSE)
        raise OSError("timer_create refuses a timer on a thread's CPU time")

    def arm(self, every=1):
        """Set the next tick; only every `every`th period has one. Call it in the main thread."""
        due = next_due(time.thread_time(), self._period, every)
        self._settle(ABSOLUTE, int(due), int(due % 1 * 1e9))

    def due(self, every=1):
        """Seconds of CPU time since the last tick was due. Call it in the main thread."""
        now = time.thread_time()
        return now - last_due(now, self._period, every)

    def _settle(self, flags, seconds, nanoseconds):
        self._set(self._timer, flags, (ctypes.c_long * 4)(0, 0, seconds, nanoseconds), None)

    def pause(self):
        """Send no ticks until arm() is called. Any thread may call this method."""
        self._settle(0, 0, 0)

    def ask(self, path, period, background, look_only=False):
        """Ask the diagnosis for looks. path: the file to write. background: native id of prepare()'s thread."""
        with open(path + ".new", "w") as file:
            json.dump([os.getpid(), background, period, look_only], file)
        os.replace(path + ".new", path)

    def prepare(self):
        """Let looked() receive signals in this thread, and no others."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {LOOK})

    def looked(self, seconds):
        """Wait for LOOK for at most `seconds`; return whether it came."""
        return signal.sigtimedwait({LOOK}, seconds) is not None

    def stop(self):
        """Delete the timer, and ignore a tick that is on its way."""
        signal.signal(SIGNAL, signal.SIG_IGN)
        self._delete(self._timer)
