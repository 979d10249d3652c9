"""A role of worker processes that has nothing to do with environments."""

from __future__ import annotations

import os
import signal
import time

DOUBLE, FAIL, DIE, HANG = range(4)


class Doubling:
    """Doubles numbers, or goes wrong."""

    def __init__(self, begin, orders):
        self.facts, self.done = (begin, os.getpid()), 0

    def carry_out(self, what, where):
        if what == FAIL:
            raise ZeroDivisionError("a role of its own went wrong")
        if what == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == HANG:
            time.sleep(1000)
        self.done += 1
        return 2 * where

    def close(self):
        pass
