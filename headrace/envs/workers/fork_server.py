"""Preloaded by the fork server of worker processes: it does not end by signals that its parent decides about.

Its children would count as ended with it. The parent starts it with these signals blocked, see envs.workers.process, so
that none ends it before this is loaded. The last of the modules to be preloaded, which take seconds.
"""

from __future__ import annotations

import os
import signal
import sys

from headrace.envs.workers.lifetime import DECIDED_BY_PARENT, end_by_signals


def outlive_signals() -> None:
    """Ignore the signals. Children of this process do not: those of users may be terminated by SIGTERM."""
    for number in DECIDED_BY_PARENT:
        signal.signal(number, signal.SIG_IGN)  # drops one that has arrived
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DECIDED_BY_PARENT)
    # the fork server ignores SIGINT itself from here on, and gives its children what it finds
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.register_at_fork(after_in_child=end_by_signals)


if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    outlive_signals()
