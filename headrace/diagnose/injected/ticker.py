"""A kernel timer by which the main thread samples itself.

A sampling thread would have to wait for the interpreter's lock, which the script releases inside torch's operations:
samples there would be far too frequent. On a signal, Python runs the handler in the main thread between two
instructions, as soon as the current native call is over, with the frame that made the call.

Timer and signal are separate from setitimer's, SIGALRM and SIGPROF, which the script may use. Blocking calls continue
after the signal: those of C by SA_RESTART if the system supports it, those of Python by PEP 475.
"""

import ctypes
import signal

SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7  # the C library and some schedulers use the first few
_MONOTONIC, _THREAD_ID, _ABSOLUTE = 1, 4, 1  # Linux: CLOCK_MONOTONIC, SIGEV_THREAD_ID, TIMER_ABSTIME


class _Event(ctypes.Structure):
    """struct sigevent."""

    _fields_ = [
        ("value", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("signal", "notify", "thread")),
        ("padding", ctypes.c_int * 16),
    ]


class _Times(ctypes.Structure):
    """struct itimerspec: the period, and the first expiration."""

    _fields_ = [(name, ctypes.c_long) for name in ("seconds", "nanoseconds", "first_seconds", "first_nanoseconds")]


class Ticker:
    """Calls handler(signal number, frame) in the main thread. Raises OSError or AttributeError without POSIX timers."""

    def __init__(self, thread, handler):
        """thread: the main thread's native id. Only that thread may create a Ticker."""
        self._library = ctypes.CDLL(None, use_errno=True)  # since glibc 2.34; before, in librt
        if not hasattr(self._library, "timer_create"):
            self._library = ctypes.CDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()
        signal.signal(SIGNAL, handler)
        signal.siginterrupt(SIGNAL, False)
        event = _Event(None, SIGNAL, _THREAD_ID, thread)
        if self._library.timer_create(_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create failed")

    def start(self, first, period):
        """Tick at first, first + period, ... s of time.monotonic(), instead of any earlier schedule."""
        times = _Times(*divmod(int(period * 1e9), 10**9), *divmod(int(first * 1e9), 10**9))
        if self._library.timer_settime(self._timer, _ABSOLUTE, ctypes.byref(times), None):
            raise OSError(ctypes.get_errno(), "timer_settime failed")

    def stop(self):
        """Stop ticking."""
        self._library.timer_delete(self._timer)
