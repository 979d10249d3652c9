"""Preloaded by the fork server of worker processes: makes it ignore signals that its parent handles.

If the fork server ended, its children would count as ended, too. The parent starts it with these signals blocked (see
envs.workers.process), so that none ends it before this module is loaded. It is preloaded last, since the other modules
take seconds.
"""

from __future__ import annotations

import os
import signal
import sys

from headrace.envs.workers.lifetime import DECIDED_BY_PARENT, end_by_signals


def outlive_signals() -> None:
    """Ignore the signals. Children of this process do not ignore them, so that users' child processes can be terminated
    by SIGTERM."""
    for number in DECIDED_BY_PARENT:
        signal.signal(number, signal.SIG_IGN)  # drops one that has arrived
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DECIDED_BY_PARENT)
    # the fork server ignores SIGINT itself from here on, and gives its children what it finds
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.register_at_fork(after_in_child=end_by_signals)


if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    outlive_signals()
