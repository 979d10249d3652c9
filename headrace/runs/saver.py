"""A thread that writes files while a training goes on: syncing to a disk takes longer than an iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MOST = 16  # jobs that wait: a checkpoint is two or three, with one copy of what it writes


class Saver:
    """Does jobs in a thread of its own, one after another. After a job that failed it does no others."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "headrace-saver")
        self._jobs: deque[Future[None]] = deque()
        self._failed = False

    def submit(self, job: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Do job(*args, **kwargs) after those before it. Raises what one of them raised; waits where many do."""
        self.wait(MOST)
        self._jobs.append(self._thread.submit(self._do, job, *args, **kwargs))

    def _do(self, job: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        if self._failed:
            return
        try:
            job(*args, **kwargs)
        except BaseException:
            self._failed = True
            raise

    @property
    def waiting(self) -> int:
        """How many jobs are not done yet."""
        return sum(not job.done() for job in self._jobs)

    def check(self) -> None:
        """Raise what a job has raised."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()

    def wait(self, left: int = 0) -> None:
        """Wait until at most `left` jobs are not done. Raises what one has raised."""
        while len(self._jobs) > left:
            self._jobs.popleft().result()
        self.check()

    def close(self) -> None:
        """Wait for the jobs, and end the thread. Raises nothing: see wait()."""
        self._thread.shutdown()
