"""Threads join a call once other processes have ended computing; a call that ends first leaves none waiting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from helpers.python_entry import python_call

from headrace.core import device
from headrace.kernels.runtime import thread_pool

LONGEST = 60  # s for what is to happen at once


class Job:
    """A call, with an event for each worker that begins. main: what the main thread does."""

    def __init__(self, main) -> None:
        self.main, self.began = main, [threading.Event() for _ in range(8)]
        self.call = python_call(self.do)

    def do(self, worker: int) -> None:
        self.began[worker].set()
        if worker == 0:
            self.main(self)


class Process:
    """Stands for a process that computes: its end of a connection is `theirs`."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def answer(self) -> None:
        self.theirs.send(b"x")

    def die(self) -> None:
        self.theirs.close()


@pytest.fixture
def processes(monkeypatch) -> Iterator[list[Process]]:
    """Two that compute on a machine of three cores."""
    for name in ("HEADRACE_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(thread_pool, "cores", lambda: 3)
    monkeypatch.setattr(thread_pool, "BUSY", 0.0)  # main threads sleep here
    thread_pool._helpers.cache_clear()  # others may be of fewer cores
    found = [Process(), Process()]
    with device.cores_taken(lambda: [process.ours.fileno() for process in found]):
        yield found
    for process in found:
        process.ours.close()
        process.theirs.close()
    thread_pool._helpers.cache_clear()


def run(job: Job, threads: int = 3, seconds: float = 1.0) -> list[bool]:
    """Run it after a call that took so long: which workers began."""
    queue = thread_pool.WorkQueue()
    queue.seconds = seconds
    queue.run(job.call, threads)
    assert not job.call.function.raised
    return [event.is_set() for event in job.began[:threads]]


@pytest.mark.parametrize("end", [Process.answer, Process.die])
def test_a_thread_joins_for_each_process_that_has_ended_computing(processes, end):
    def main(job: Job) -> None:
        assert not job.began[1].wait(0.05)
        end(processes[1])
        assert job.began[1].wait(LONGEST) and not job.began[2].wait(0.05)
        end(processes[0])
        assert job.began[2].wait(LONGEST)

    assert run(Job(main)) == [True] * 3


def test_what_has_ended_before_the_call_has_no_core(processes):
    processes[0].answer()

    def main(job: Job) -> None:
        assert job.began[1].wait(LONGEST)

    assert run(Job(main)) == [True, True, False]
    assert run(Job(main), seconds=0.0) == [True, True, False]


def test_nobody_waits_where_calls_are_short_or_the_user_gives_the_number_of_threads(processes, monkeypatch):
    monkeypatch.setattr(thread_pool, "_until_free", lambda *_: pytest.fail("a thread waits"))
    assert run(Job(lambda _: None), seconds=0.0) == [True, False, False]
    monkeypatch.setenv("HEADRACE_THREADS", "2")
    assert run(Job(lambda job: job.began[1].wait(LONGEST)), 2) == [True, True]


def test_no_thread_is_left_waiting(processes):
    for _ in range(30):
        assert run(Job(lambda _: None))[0]  # a helper may come while the job ends, on a busy machine
    with pytest.raises(RuntimeError, match="stopped with an exception"):
        run(Job(lambda _: pytest.fail("as compiled code may")))
    # three helpers, as cores: these are there only if none still waits for the processes
    with device.cores_taken(tuple):
        assert run(Job(lambda job: [event.wait(LONGEST) for event in job.began[1:3]])) == [True] * 3
