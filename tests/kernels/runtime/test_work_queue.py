"""A team does each part of each job once, whoever comes, and helpers go home."""

import numpy as np
from numba import njit  # noqa: TID253

from headrace.kernels.runtime import thread_pool, work_queue
from headrace.kernels.runtime.machine_code import object_code
from headrace.kernels.runtime.native import Call, Native


@njit(nogil=True)
def count(worker, state, jobs, parts, done, mine):
    """done[job, part] += 1 for all parts of all jobs; mine[0] says how many the leader did."""
    if worker > 0:
        while not work_queue.dismissed(state):
            work_queue.rest()
            part = work_queue.claim(state, worker)
            if part >= 0:
                done[jobs[0], part] += 1
                work_queue.finished(state)
        return
    for job in range(len(done)):
        jobs[0] = job
        work_queue.publish(state, parts)
        part = work_queue.claim(state, worker)
        while part >= 0:
            done[job, part] += 1
            mine[0] += 1
            work_queue.finished(state)
            part = work_queue.claim(state, worker)
        work_queue.wait(state)
    work_queue.dismiss(state)


def test_each_part_is_done_once_by_any_number_of_threads():
    for threads in (1, 2, 3):
        done = np.zeros((2000, 7), np.int64)
        mine = np.zeros(1, np.int64)
        arguments = (0, thread_pool.queue_state(), np.zeros(1, np.int64), 7, done, mine)
        thread_pool.WorkQueue().run(Call(Native(object_code(count, arguments)), arguments), threads)
        assert (done == 1).all()
        assert 0 < mine[0] <= done.size


def test_a_crowded_machine_is_noticed_and_left_alone(monkeypatch):
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
