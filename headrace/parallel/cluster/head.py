"""Watch whether the head of a cluster answers. Ray ends the whole process, without an exception, when its head has been
gone for a minute. A training ends earlier, with an exception."""

from __future__ import annotations

import socket
import threading
from time import monotonic

from headrace.envs.workers.process import WorkerError

EVERY = 2.0  # s between two checks
ANSWERS_IN = 5.0  # s for a connection
GONE = 30.0  # s without an answer after which the training ends: a head may be started again until then


class HeadLost(WorkerError):
    """The head of the cluster is gone. The training can resume from its last checkpoint, on another cluster or none."""


def answers(address: str) -> bool:
    """Tell whether something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWERS_IN):
            return True
    except OSError:
        return False


class HeadWatch:
    """A thread that checks whether a head answers, in the network namespace of the thread that makes it.

    address: HOST:PORT."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._silent_since: float | None = None
        self._end = threading.Event()
        threading.Thread(target=self._look, daemon=True, name="ray head").start()

    def _look(self) -> None:
        while not self._end.wait(EVERY):
            began = monotonic()
            if answers(self.address):
                self._silent_since = None
            elif self._silent_since is None:
                self._silent_since = began

    @property
    def lost(self) -> bool:
        """True if the head has not answered for GONE seconds."""
        since = self._silent_since
        return since is not None and monotonic() - since > GONE

    def check(self) -> None:
        """Raise HeadLost if the head is gone."""
        if self.lost:
            raise HeadLost(
                f"the head of the cluster, {self.address}, has not answered for {GONE:g} s, and Ray cannot go on "
                "without it. Go on from the last checkpoint, with actors of this machine and the same result, by "
                "`headrace train --resume RUN --cluster none`, or on another cluster by --cluster ADDRESS"
            )

    def close(self) -> None:
        """End the thread."""
        self._end.set()
