"""Each part of each task is done once by any number of threads, and worker threads return."""

import functools
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import njit  # noqa: TID253

from headrace.kernels.runtime import thread_pool, work_queue
from headrace.kernels.runtime.machine_code import object_code
from headrace.kernels.runtime.native import Call, Native


@njit
def count_part(part, worker, arguments):
    """done[task, part] += 1 for the current task; by_main[0] is the number of parts that the main thread did."""
    current, _, done, by_main = arguments
    done[current[0], part] += 1
    if worker == 0:
        by_main[0] += 1


run_task, serve = work_queue.work_loop(count_part)


@njit(nogil=True)
def count(worker, state, current, parts, done, by_main):
    """All parts of all tasks."""
    arguments = current, parts, done, by_main
    if worker > 0:
        serve(worker, state, arguments)
        return
    for task in range(len(done)):
        current[0] = task
        run_task(state, parts, arguments)
    work_queue.close(state)


@functools.cache
def compiled():
    """count() for arguments of the types that the tests have."""
    done = np.zeros((1, 1), np.int64)
    return Native(object_code(count, (0, thread_pool.queue_state(), done[0], 1, done, done[0])))


def test_each_part_is_done_once_by_any_number_of_threads():
    for threads in (1, 2, 3):
        done = np.zeros((2000, 7), np.int64)
        mine = np.zeros(1, np.int64)
        arguments = (0, thread_pool.queue_state(), np.zeros(1, np.int64), 7, done, mine)
        thread_pool.WorkQueue().run(Call(compiled(), arguments), threads)
        assert (done == 1).all()
        assert 0 < mine[0] <= done.size


def test_a_task_may_have_more_parts_than_a_word_counts():
    for parts, threads in ((65535, 1), (65536, 1), (140_000, 2)):
        done = np.zeros((2, parts), np.int64)
        arguments = (0, thread_pool.queue_state(), np.zeros(1, np.int64), parts, done, np.zeros(1, np.int64))
        thread_pool.WorkQueue().run(Call(compiled(), arguments), threads)
        assert (done == 1).all()


class Job:
    """Stands for a Call: do(worker) is what a worker does, who then leaves."""

    def __init__(self, do, worker=0, state=None):
        state = thread_pool.queue_state() if state is None else state
        self.do, self.worker, self.arguments = do, worker, (worker, state)

    def for_worker(self, worker):
        return Job(self.do, worker, self.arguments[1])

    def __call__(self):
        self.do(self.worker)
        self.arguments[1][thread_pool.LEFT] += self.worker > 0


def test_a_busy_machine_gets_one_thread(monkeypatch):
    ran = []
    work_queue = thread_pool.WorkQueue()
    clock = iter(range(100))
    monkeypatch.setattr(thread_pool.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(thread_pool.time, "thread_time", lambda: 0.0)
    work_queue.run(Job(ran.append), 2)
    assert work_queue.alone == thread_pool.ALONE
    ran.clear()
    work_queue.run(Job(ran.append), 2)
    assert ran == [0]


def test_helpers_have_left_the_kernel_when_a_call_ends():
    for _ in range(300):
        state = thread_pool.queue_state()
        done = np.zeros((3, 5), np.int64)
        arguments = (0, state, np.zeros(1, np.int64), 5, done, np.zeros(1, np.int64))
        before = state.copy()
        thread_pool.WorkQueue().run(Call(compiled(), arguments), 3)
        after = state.copy()
        assert (done == 1).all() and 0 <= after[thread_pool.LEFT] <= 2 and before[thread_pool.LEFT] == 0
        time.sleep(0)
        assert (state == after).all()


def test_a_share_is_taken_once_by_a_helper_or_the_main_thread():
    share = thread_pool._Share("call")
    assert share.take() == "call" and share.take() is None
    share.help()
    assert share.error is None


def test_what_a_helper_raises_reaches_the_main_thread():
    def do(worker):
        if worker:
            began.set()
            raise RuntimeError("of a helper")
        assert began.wait(60)

    began = threading.Event()
    with pytest.raises(RuntimeError, match="of a helper"):
        thread_pool.WorkQueue().run(Job(do), 2)


def test_many_threads_run_calls_that_are_shared():
    def run(_):
        done = np.zeros((50, 7), np.int64)
        arguments = (0, thread_pool.queue_state(), np.zeros(1, np.int64), 7, done, np.zeros(1, np.int64))
        thread_pool.WorkQueue().run(Call(compiled(), arguments), 2)
        return (done == 1).all()

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(200)))


ENDS_WHILE_A_HELPER_WORKS = """
import os, time
from headrace.kernels.runtime import thread_pool

class Slow:
    arguments = (1, thread_pool.queue_state())
    def __call__(self):
        print("begun", flush=True)
        time.sleep(0.2)
    def __del__(self):
        print("freed", flush=True)

share = thread_pool._Share(Slow())
thread_pool._helpers(os.getpid()).put(share)
del share
while thread_pool._helpers(os.getpid()).qsize():
    time.sleep(0.001)
"""


def test_helpers_return_before_the_interpreter_ends():
    """Else one that frees tensors while it ends aborts the process (std::terminate)."""
    done = subprocess.run([sys.executable, "-c", ENDS_WHILE_A_HELPER_WORKS], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["begun", "freed"]), done.stderr
