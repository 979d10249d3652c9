"""A thread that writes files while a training continues, since syncing to a disk takes longer than an iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MOST = 16  # largest number of waiting jobs: a checkpoint is two or three, with one copy of its contents


class Saver:
    """Thread that does jobs one after another. After a job that failed it does no more."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "headrace-saver")
        self._jobs: deque[Future[None]] = deque()
        self._failed = False

    def submit(self, job: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Queue job(*args, **kwargs). Raises the exception of an earlier job. Waits if MOST jobs are waiting."""
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
        """Number of unfinished jobs."""
        return sum(not job.done() for job in self._jobs)

    def check(self) -> None:
        """Raise the exception of a job."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()

    def wait(self, left: int = 0) -> None:
        """Wait until at most `left` jobs are unfinished. Raises the exception of a job."""
        while len(self._jobs) > left:
            self._jobs.popleft().result()
        self.check()

    def close(self) -> None:
        """Wait for the jobs, and end the thread. Does not raise: see wait()."""
        self._thread.shutdown()
