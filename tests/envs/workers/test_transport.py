"""Processes with a role of their own: answers, time-outs, tracebacks, signals, and replacements."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest
from helpers.doubling import DIE, DOUBLE, FAIL, FAIL_OWN, HANG, TELL, Doubling

from headrace.envs.workers import process
from headrace.envs.workers.process import WorkerError, Workers
from headrace.envs.workers.protocol import Task
from headrace.envs.workers.transport import Transport


@pytest.fixture
def transport():
    with Workers(2) as workers:
        made = Transport(workers.acquire(2), timeout=1.0)
        made.assign([Task(partial(Doubling, 10 * place), f"number {place}", place, 2) for place in range(2)])
        yield made
        made.dismiss()


def test_a_role_answers_fails_is_lost_and_replaced(transport):
    begins, pids = zip(*(transport.facts[place] for place in range(2)), strict=True)
    assert begins == (0, 10) and len({*pids, os.getpid()}) == 3
    transport.start(0, DOUBLE, 21)
    assert transport.get() == ([0], {}) and transport.answers == [42, 0] and transport.get() == ([], {})

    transport.start(1, HANG, 0)
    assert transport.get(0.01) == ([], {}) and list(transport.orders) == [1]
    ready, lost = transport.get()
    assert not ready and lost[1].what == HANG
    assert "worker 1 (number 1) has not answered for 1 s" in str(transport.failure(1))
    transport.start(0, DIE, 0)
    ready, lost = transport.get()
    assert not ready and "worker 0 (number 0) was ended by SIGKILL" in str(transport.failure(0))

    for place in range(2):
        transport.replace(place)
        transport.start(place, DOUBLE, place + 1)
    while transport.orders:
        transport.get()
    assert transport.answers == [2, 4] and not {pid for _, pid in transport.facts.values()} & set(pids)

    transport.start(1, FAIL, 0)
    with pytest.raises(ZeroDivisionError, match="of its own") as caught:
        transport.get()
    assert "in a worker process:" in caught.value.__notes__[0] and "doubling.py" in caught.value.__notes__[0]


def test_an_answer_may_be_an_object_and_a_message_bytes(transport):
    told = bytes(range(256)) * 4000  # more than a pipe holds
    transport.start(0, TELL, 0, told)
    assert transport.get(10) == ([0], {}) and transport.answers[0] == {"told": told}


def test_an_exception_that_cannot_be_sent_is_no_lost_process(transport):
    transport.start(0, FAIL_OWN, 0)
    with pytest.raises(RuntimeError, match="cannot be sent") as caught:
        transport.get(10)
    assert "nobody else knows this kind" in caught.value.__notes__[0]


def test_a_process_is_replaced_while_others_answer(transport):
    first = transport.facts[1][1]
    for lost in range(2):
        transport.start(1, DIE, 0)
        assert list(transport.get()[1]) == [1]
        transport.begin_replacing(1, 7)
        transport.start(0, DOUBLE, lost)
        answered = []
        while transport.orders:
            ready, _ = transport.get()
            answered += ready
        assert sorted(answered) == [0, 1] and transport.facts[1][1] != first
    transport.start(1, DIE, 0)
    transport.get()
    with pytest.raises(WorkerError, match="was ended by SIGKILL") as caught:
        transport.begin_replacing(1, 7)
    assert "3 times in a row, each time after as many answers, 7" in caught.value.__notes__[0]


def test_a_process_that_works_has_as_much_time_again_and_one_that_stops_hangs(transport):
    began = time.monotonic()
    transport.heartbeat = lambda place: int((time.monotonic() - began) / 0.1) if time.monotonic() < began + 1.5 else 99
    transport.start(0, HANG, 0)
    lost = {}
    while not lost:
        ready, lost = transport.get()
        assert not ready
    assert time.monotonic() - began >= 2.4
    assert "has neither answered nor taken a step for 1 s" in str(transport.failure(0))
    transport.workers[0].process.kill()  # or it would be waited for


def test_a_process_that_stops_reading_is_lost(transport, monkeypatch):
    monkeypatch.setattr(process, "START_TIMEOUT", 1)
    monkeypatch.setattr(process, "GRACE", 0.1)
    worker = transport.workers[0]
    process._limit_waits(worker.orders)
    os.kill(worker.process.pid, signal.SIGSTOP)
    transport.start(0, DOUBLE, 1, bytes(10**7))  # more than a socket holds
    ready, lost = transport.get()
    assert not ready and list(lost) == [0]
    worker.process.kill()  # or it would be waited for


def test_a_step_that_hangs_at_once_is_waited_for_no_longer_than_another():
    """The step's heartbeat may come before the order's sender goes on. Only the first step has more time."""
    beats = [0]

    class Quick(process.WorkerProcess):
        def tell(self, *order):
            beats[0] += 1  # it has begun a step, and never ends it

    with Workers(1) as workers:
        made = Transport(workers.acquire(1), timeout=0.5)
        made.assign([Task(partial(Doubling, 0), "quick", 0, 1)])
        made.heartbeat = lambda place: beats[0]
        made.workers[0].__class__ = Quick
        made.start(0, DOUBLE, 0, timeout=120.0)
        assert not made._late() and made.orders[0].seconds == 0.5
        made.workers[0].__class__ = process.WorkerProcess
