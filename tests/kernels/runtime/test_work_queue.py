"""Each part of each task is done once by any number of threads, and worker threads return."""

import functools
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers import forked
from helpers.python_entry import python_call
from numba import njit  # noqa: TID253

from headrace.core.cores import cores
from headrace.kernels.nn import layout
from headrace.kernels.runtime import thread_pool, work_queue
from headrace.kernels.runtime.atomics import read
from headrace.kernels.runtime.intrinsics import ticks
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


@njit(nogil=True)
def publish(state, threads, parts):
    work_queue.open_for(state, threads)
    work_queue._publish(state, 0, parts)


@njit(nogil=True)
def publish_next(state, parts):
    """The next task of the same queue."""
    work_queue._publish(state, 0, parts)


@njit(nogil=True)
def claim(state, worker, began):
    task = read(state, work_queue._WORD) >> work_queue._TASK
    return work_queue._claim(state, worker, (task, np.uint64(began), np.uint64(0)))


@njit(nogil=True)
def go_on(state, worker, turn):
    task, began, until = turn
    return work_queue._claim(state, worker, (task, np.uint64(began), np.uint64(until)))


@njit
def now():
    return ticks()


NEVER = np.uint64(0)  # a task that began with the machine: a quarter of that time does not pass in a test


@pytest.mark.skipif(now() == 0, reason="on this processor the queue cannot tell the time, and waits for nobody")
def test_a_thread_takes_no_part_of_one_that_is_not_late():
    state = thread_pool.queue_state()
    publish(state, 2, 4)
    assert [claim(state, 0, NEVER)[0] for _ in range(2)] == [0, 1]
    assert claim(state, 1, NEVER)[0] == 3
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, state, 0, NEVER)  # has done its share: part 2 is the worker thread's
        assert claim(state, 1, NEVER)[0] == 2
        assert waiting.result()[0] == -1


def test_a_thread_takes_parts_of_one_that_is_late():
    state = thread_pool.queue_state()
    publish(state, 2, 4)
    assert [claim(state, 0, NEVER)[0] for _ in range(3)] == [0, 1, 2]  # the worker thread has not even begun
    publish(state, 2, 4)
    assert [claim(state, 1, now())[0] for _ in range(3)] == [3, 2, 1]
    publish(state, 2, 4)
    assert claim(state, 1, now())[0] == 3
    assert [claim(state, 0, now())[0] for _ in range(3)] == [0, 1, 2]  # has begun, but the wait ends
    assert claim(state, 1, NEVER)[0] == -1


def test_a_thread_that_goes_on_with_the_next_task_waits_no_longer_for_the_one_before():
    state = thread_pool.queue_state()
    publish(state, 2, 4)
    _, turn = claim(state, 1, NEVER)
    publish_next(state, 4)
    assert claim(state, 0, NEVER)[0] == 0
    found = []
    for _ in range(3):
        part, turn = go_on(state, 1, turn)
        found.append(part)
    assert found == [3, 2, 1]


def test_three_threads_share_a_task():
    state = thread_pool.queue_state()
    publish(state, 3, 7)
    assert [claim(state, 0, NEVER)[0] for _ in range(3)] == [0, 1, 2]
    assert [claim(state, worker, NEVER)[0] for worker in (1, 2, 2, 1)] == [6, 5, 4, 3]
    assert {claim(state, worker, NEVER)[0] for worker in range(3)} == {-1}


def test_a_busy_machine_gets_one_thread(monkeypatch):
    ran = []
    work_queue = thread_pool.WorkQueue()
    clock = iter(range(100))
    monkeypatch.setattr(thread_pool.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(thread_pool.time, "thread_time", lambda: 0.0)
    work_queue.run(python_call(ran.append), 2)
    assert work_queue.alone == thread_pool.ALONE
    ran.clear()
    work_queue.run(python_call(ran.append), 2)
    assert ran == [0]


@pytest.mark.parametrize(("seconds", "asked"), [(1e-4, 0), (1.0, 2)])
def test_calls_on_one_thread_are_watched_where_the_one_before_was_long(seconds, asked, monkeypatch):
    """Asking for a thread's time takes as long as all else around a short call."""
    now, times, work_queue = [0.0], [], thread_pool.WorkQueue()
    work_queue.choice.several = False

    def do(worker):
        now[0] += seconds

    monkeypatch.setattr(thread_pool.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(thread_pool.time, "thread_time", lambda: times.append(0.0) or 0.0)
    work_queue.run(python_call(do), 2)
    assert not times and not work_queue.alone
    work_queue.run(python_call(do), 2)
    assert len(times) == asked and work_queue.alone == (thread_pool.ALONE if asked else 0)


def test_helpers_have_returned_when_a_call_ends():
    inside = []

    def do(worker):
        inside.append(worker)
        if worker == 0:
            assert all(began.wait(60) for began in begun)
            return
        begun[worker - 1].set()
        time.sleep(0.02)
        inside.remove(worker)

    begun = [threading.Event(), threading.Event()][: min(cores(), 2)]
    thread_pool.WorkQueue().run(python_call(do), 1 + len(begun))
    assert inside == [0]


def test_the_main_thread_takes_back_what_no_helper_has_begun():
    """All helpers have something else to do."""
    let_go, begun, threads = threading.Event(), [], thread_pool.WORKERS

    def hold(worker):
        begun.append(worker)
        assert let_go.wait(60)

    calls = [(python_call(hold), threads) for _ in range(-(-cores() // (threads - 1)))]
    busy = [threading.Thread(target=thread_pool.WorkQueue().run, args=call) for call in calls]
    for thread in busy:
        thread.start()
    while len(begun) < cores() + len(busy):
        time.sleep(0.001)
    ran = []
    thread_pool.WorkQueue().run(python_call(ran.append), 3)
    let_go.set()
    for thread in busy:
        thread.join()
    done = np.zeros((1, 7), np.int64)
    arguments = (0, thread_pool.queue_state(), np.zeros(1, np.int64), 7, done, np.zeros(1, np.int64))
    thread_pool.WorkQueue().run(Call(compiled(), arguments), 2)
    assert ran == [0] and (done == 1).all()


def test_a_helper_comes_however_soon_a_call_follows_another():
    """A helper may be waking, working, watching for a call, about to stop watching, or asleep."""
    queue = thread_pool.WorkQueue()
    queue.choice.next = lambda: True
    for pause in range(300):  # us: it watches for about 100
        began = threading.Event()

        def do(worker, began=began):
            if worker == 0:
                assert began.wait(60)
            began.set()

        queue.alone = 0
        queue.run(python_call(do), 2)
        assert began.is_set()
        end = time.perf_counter() + pause * 1e-6
        while time.perf_counter() < end:
            pass


def test_a_helper_that_stops_is_known_to_the_main_thread():
    def do(worker):
        if worker:
            began.set()
            raise RuntimeError("of a helper")
        assert began.wait(60)

    began = threading.Event()
    call = python_call(do)
    with pytest.raises(RuntimeError, match="a compiled function stopped with an exception"):
        thread_pool.WorkQueue().run(call, 2)
    assert [str(error) for error in call.function.raised] == ["of a helper"]


@pytest.mark.parametrize("flushed", [False, True])
def test_helpers_flush_denormals_where_the_main_thread_does(flushed):
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    smallest, found = [5e-324], {}

    def do(worker):
        found[worker] = smallest[0] * 1.0
        began[worker].set()
        assert began[1 - worker].wait(60)

    began = [threading.Event(), threading.Event()]
    torch.set_flush_denormal(flushed)
    try:
        thread_pool.WorkQueue().run(python_call(do), 2)
    finally:
        torch.set_flush_denormal(False)
    assert [found[worker] > 0 for worker in (0, 1)] == [not flushed] * 2


def test_a_call_has_as_many_threads_as_layouts_have_room_for():
    assert thread_pool.WORKERS == layout.WORKERS
    done = np.zeros((3, 40), np.int64)
    arguments = (0, thread_pool.queue_state(), np.zeros(1, np.int64), 40, done, np.zeros(1, np.int64))
    thread_pool.WorkQueue().run(Call(compiled(), arguments), 2 * thread_pool.WORKERS)
    assert (done == 1).all()


def test_signals_do_not_wake_helpers():
    """A wait for shares that a signal ends would be the last one."""
    thread_pool.WorkQueue().run(python_call(lambda worker: None), 2)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        for thread in threading.enumerate():
            if thread.name.startswith("headrace_"):
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
        time.sleep(0.05)
        began = threading.Event()
        call = python_call(lambda worker: began.set() if worker else began.wait(60))
        thread_pool.WorkQueue().run(call, 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert began.is_set()


def test_a_process_that_was_forked_has_helpers_of_its_own():
    done = in_a_process(FORKS)
    assert (done.returncode, done.stdout.split()) == (0, ["[0,", "1]", "[0,", "1]"]), done.stderr


def in_a_process(code):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return forked.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


FORKS = """
import os, threading
from headrace.kernels.runtime import thread_pool
from helpers.python_entry import python_call

def run():
    ran, began = [], threading.Event()
    def do(worker):
        ran.append(worker)
        began.wait(60) if worker == 0 else began.set()
    thread_pool.WorkQueue().run(python_call(do), 2)
    print(sorted(ran), flush=True)

run()
if child := os.fork():
    raise SystemExit(os.waitpid(child, 0)[1])
run()
"""


def test_many_threads_run_calls_that_are_shared():
    def run(_):
        done = np.zeros((50, 7), np.int64)
        arguments = (0, thread_pool.queue_state(), np.zeros(1, np.int64), 7, done, np.zeros(1, np.int64))
        thread_pool.WorkQueue().run(Call(compiled(), arguments), 2)
        return (done == 1).all()

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(200)))


ENDS = """
import atexit, os, threading
atexit.register(lambda: os.write(1, b"waiting" if any(map(threading.Thread.is_alive, helpers)) else b"returned"))
from headrace.kernels.runtime import thread_pool
from helpers.python_entry import python_call

began = threading.Event()
thread_pool.WorkQueue().run(python_call(lambda worker: began.set() if worker else began.wait(60)), 2)
helpers = [thread for thread in threading.enumerate() if thread.name.startswith("headrace_")]
assert helpers
"""


def test_helpers_return_before_the_interpreter_ends():
    done = in_a_process(ENDS)
    assert (done.returncode, done.stdout) == (0, "returned"), done.stderr
