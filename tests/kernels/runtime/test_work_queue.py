"""Each part of each task is done once by any number of threads, and worker threads return."""

import functools

import numpy as np
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


def test_a_busy_machine_gets_one_thread(monkeypatch):
    ran = []

    class Job:
        """Stands for a Call: says which worker ran."""

        def __init__(self, worker):
            self.worker, self.arguments = worker, (worker, thread_pool.queue_state())

        def for_worker(self, worker):
            return Job(worker)

        def __call__(self):
            ran.append(self.worker)

    work_queue = thread_pool.WorkQueue()
    clock = iter(range(100))
    monkeypatch.setattr(thread_pool.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(thread_pool.time, "thread_time", lambda: 0.0)
    work_queue.run(Job(0), 2)
    assert work_queue.alone == thread_pool.ALONE
    ran.clear()
    work_queue.run(Job(0), 2)
    assert ran == [0]
