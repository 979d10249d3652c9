"""Ticks by which the main thread samples itself: this process's part.

A sampling thread would have to wait for the interpreter's lock, which the script releases inside torch's operations:
samples there would be far too frequent. On a signal, Python runs the handler in the main thread between two
instructions, as soon as the current native call is over, with the frame that made the call.

The diagnosis sends the signals (headrace/diagnose/record/ticks.py), because it can see from outside what the thread is
doing. A signal would end a pause, usleep or poll early, and not every caller waits again. In such a call the diagnosis
sends LOOK to the background thread instead, which takes that signal by sigtimedwait and samples the main thread.
Both signals are separate from those that the script may use.
"""

import json
import os
import signal

SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7  # to the main thread; the C library and some schedulers use the first few
LOOK = SIGNAL + 1  # to the background thread
SUFFIX = ".ticks"  # of the file in the spool folder that asks for ticks


def last_due(now, period, every=1):
    """The time of the last tick before `now`, both in s of time.monotonic().

    There is a tick in each period, at a different place of it, so that loops as long as a few periods are fully
    sampled. every: only every so many ticks count.
    """
    number = int(now / period)
    number -= number % every
    due = _time(number, period)
    return due if due <= now else _time(number - every, period)


def next_due(now, period):
    """The time of the first tick after `now`."""
    number = int(now / period)
    due = _time(number, period)
    return due if due > now else _time(number + 1, period)


def _time(number, period):
    # multiples of the golden ratio: any few successive places are spread over the period
    return (number + number * 2654435761 % 2**32 / 2**32) * period


class Ticker:
    """Has the diagnosis call handler(signal number, frame) in the main thread. Raises OSError or AttributeError."""

    def __init__(self, handler):
        """Only the main thread may create a Ticker."""
        if not os.path.exists("/proc/self/syscall"):
            raise OSError("no /proc")
        signal.sigtimedwait  # noqa: B018  # some systems have no such function
        signal.signal(SIGNAL, handler)
        signal.siginterrupt(SIGNAL, False)
        signal.signal(LOOK, signal.SIG_IGN)  # a signal that is ignored still reaches a thread that blocks it

    def ask(self, path, period, background, look_only=False):
        """Ask for ticks. path: of the file to write. background: native id of the thread that calls prepare()."""
        with open(path + ".new", "w") as file:
            json.dump([os.getpid(), background, period, look_only], file)
        os.replace(path + ".new", path)

    def prepare(self):
        """Let looked() receive signals in this thread, and no others."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {LOOK})

    def looked(self, seconds):
        """Wait for LOOK, for at most so many seconds; return whether it came."""
        return signal.sigtimedwait({LOOK}, seconds) is not None

    def stop(self):
        """Ignore further ticks. Python removes signal handlers at its end, and a tick would then kill the process."""
        signal.signal(SIGNAL, signal.SIG_IGN)
