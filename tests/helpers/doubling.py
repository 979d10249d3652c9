"""A role of worker processes that has nothing to do with environments."""

from __future__ import annotations

import os
import signal
import time

DOUBLE, FAIL, DIE, HANG, TELL, FAIL_OWN = range(6)


class Doubling:
    """Doubles numbers, returns its arguments, or goes wrong."""

    def __init__(self, begin, orders):
        self.facts, self.done, self.orders = (begin, os.getpid()), 0, orders

    def carry_out(self, what, where):
        if what == FAIL:
            raise ZeroDivisionError("a role of its own went wrong")
        if what == FAIL_OWN:

            class NotSendable(Exception):
                """Known to this process alone."""

            raise NotSendable("nobody else knows this kind")
        if what == TELL:
            return {"told": self.orders.recv()}
        if what == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == HANG:
            time.sleep(1000)
        self.done += 1
        return 2 * where

    def close(self):
        pass
