"""Time that a parent and its worker processes take to tell each other "go" and "done", by what carries the messages.

Candidates: pipes, eventfds and semaphores, each waited for asleep; spinning for at most SPIN seconds, on a pipe or on a
word in shared memory, before going to sleep; and what envs.workers.spin_wait makes of it. A round: the parent tells
every worker, each works for `work` microseconds, and the parent, once all are done, works for `policy` microseconds.
`rivals` are processes that compute all the time, as other programs do: `rivals_share` is the share of their work that
they get done, compared with running alone.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.envs.workers.spin_wait import Waiting, spin_of

SPIN = 50e-6  # s
LINE = 8  # words of a cache line
FORK = multiprocessing.get_context("fork")  # nothing but this file is loaded, and no thread runs


class Bell(NamedTuple):
    """One direction between two processes."""

    ring: Callable[[], Any]
    wait: Callable[[], Any]


def pipe(processes: int) -> Bell:
    reading, writing = os.pipe()
    return Bell(lambda: os.write(writing, bytes(12)), lambda: os.read(reading, 12))


def eventfd(processes: int) -> Bell:
    descriptor = os.eventfd(0)
    return Bell(lambda: os.eventfd_write(descriptor, 1), lambda: os.eventfd_read(descriptor))


def semaphore(processes: int) -> Bell:
    made = FORK.Semaphore(0)
    return Bell(made.release, made.acquire)


def spinning_pipe(processes: int) -> Bell:
    reading, writing = os.pipe()
    poll = select.poll()
    poll.register(reading, select.POLLIN)

    def wait() -> None:
        until = time.perf_counter() + SPIN
        while not poll.poll(0) and time.perf_counter() < until:
            pass
        os.read(reading, 12)

    return Bell(lambda: os.write(writing, bytes(12)), wait)


def spinning_word(processes: int) -> Bell:
    """A word counts the rings; a sleeper says so in another, and is woken by a pipe."""
    words = memoryview(mmap.mmap(-1, 2 * LINE * 8)).cast("q")
    reading, writing = os.pipe()
    fence, seen = threading.Lock(), [0]

    def ring() -> None:
        words[0] += 1
        with fence:  # the count is out before the sleeper's word is read
            asleep = words[LINE]
        if asleep:
            os.write(writing, b"!")

    def wait() -> None:
        seen[0] += 1
        until = time.perf_counter() + SPIN
        while words[0] < seen[0] and time.perf_counter() < until:
            pass
        if words[0] < seen[0]:
            words[LINE] = 1
            with fence:
                late = words[0] < seen[0]
            if late:
                os.read(reading, 1)
            words[LINE] = 0
            os.set_blocking(reading, False)
            with contextlib.suppress(BlockingIOError):
                os.read(reading, 64)  # a ring between the two looks
            os.set_blocking(reading, True)

    return Bell(ring, wait)


def adopted(processes: int) -> Bell:
    """Wait as envs.workers.spin_wait does: spin where each process has a core, until another program wants it."""
    reading, writing = os.pipe()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    waiting = Waiting(spin_of(processes))

    def wait() -> None:
        waiting.poll(poll, 60.0)
        os.read(reading, 12)

    return Bell(lambda: os.write(writing, bytes(12)), wait)


CANDIDATES = {
    "pipe": pipe,
    "eventfd": eventfd,
    "semaphore": semaphore,
    "pipe, spinning": spinning_pipe,
    "word, spinning": spinning_word,
    "adopted": adopted,
}


def compute(seconds: float) -> None:
    """Keep a core busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def rival(count: Any) -> None:
    """Compute until killed, and count."""
    while True:
        sum(range(1000))
        count.value += 1


def rate_of(count: Any, seconds: float) -> float:
    before, began = count.value, time.perf_counter()
    time.sleep(seconds)
    return (count.value - before) / (time.perf_counter() - began)


def rounds(make: Callable[[int], Bell], workers: int, work: float, policy: float, seconds: float) -> float:
    """Rounds a second."""
    orders, answers = ([make(workers + 1) for _ in range(workers)] for _ in range(2))

    def worker(place: int) -> None:
        while True:
            orders[place].wait()
            compute(work)
            answers[place].ring()

    processes = [FORK.Process(target=worker, args=(place,), daemon=True) for place in range(workers)]
    for process in processes:
        process.start()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for order in orders:
            order.ring()
        for answer in answers:
            answer.wait()
        compute(policy)
        done += 1
    rate = done / (time.perf_counter() - began)
    for process in processes:
        process.kill()
        process.join()
    return rate


def measure(name: str, workers: int, work: float, policy: float, rivals: int, seconds: float) -> Row:
    counts = [FORK.Value("q", 0, lock=False) for _ in range(rivals)]
    others = [FORK.Process(target=rival, args=(count,), daemon=True) for count in counts]
    for other in others:
        other.start()
    alone = sum(rate_of(count, 0.1) for count in counts)
    before, began = sum(count.value for count in counts), time.perf_counter()
    rate = rounds(CANDIDATES[name], workers, work, policy, seconds)
    during = (sum(count.value for count in counts) - before) / (time.perf_counter() - began)
    for other in others:
        other.kill()
        other.join()
    lost = (1 / rate - policy - work) * 1e6
    about = {"candidate": name, "workers": workers, "work_us": work * 1e6, "policy_us": policy * 1e6, "rivals": rivals}
    return {**about, "rounds_per_second": rate, "lost_us": lost, "rivals_share": during / alone if rivals else None}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    options = flags.parse_args()
    seconds = 0.1 if options.quick else 0.6
    neighbours = Neighbours()
    rows = [
        measure(name, workers, work, policy, rivals, seconds)
        for rivals in (0, 2)
        for workers in (1, 2)
        for work in (0.0, 50e-6, 2000e-6)
        for policy in (0.0, 100e-6)
        for name in CANDIDATES
    ]
    columns = ("rivals", "workers", "work_us", "policy_us", "candidate", "rounds_per_second", "lost_us", "rivals_share")
    print(table(rows, columns))
    finish("worker_sync", rows, options, neighbours)


if __name__ == "__main__":
    main()
