"""Threads of the learner's kernel wait for actors: training ends with the same bits, whatever becomes of the actors."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest
from helpers.python_entry import PythonEntry
from helpers.saved import SlowlyDrifting, limited

from headrace.bindings.compiled import loss_program
from headrace.core import device
from headrace.kernels.rows.targets import cpu_program
from headrace.kernels.runtime import thread_pool
from headrace.kernels.runtime.native import Call
from headrace.training.trainer import Trainer

SMALL = {"num_envs": 2, "num_steps": 4, "minibatch_size": 8, "epochs": 2, "hidden": (4,), "progress": "none"}


class Waits:
    """Counts threads that wait for actors. at: calls this when the first one begins to."""

    def __init__(self) -> None:
        self.began, self.ended, self.at = 0, threading.Semaphore(0), lambda: None

    def __call__(self, *arguments) -> None:
        self.began += 1
        if self.began == 1:
            self.at()
        UNTIL_FREE(*arguments)
        self.ended.release()

    def all_over(self) -> bool:
        return all(self.ended.acquire(timeout=60) for _ in range(self.began))


UNTIL_FREE = thread_pool._until_free


@pytest.fixture
def waits(monkeypatch) -> Waits:
    """Let a thread wait for the actor in each learning call on two cores."""
    for name in ("HEADRACE_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for module in (device, thread_pool):
        monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(loss_program, "WORTH_HELP", 0)
    monkeypatch.setattr(thread_pool, "LONG", 0.0)
    monkeypatch.setattr(thread_pool, "BUSY", 0.0)
    monkeypatch.setattr(cpu_program, "parts_of", lambda *_, **__: 2)
    found = Waits()
    monkeypatch.setattr(thread_pool, "_until_free", found)
    return found


def learned(waits: Waits, kill: bool = False) -> list[float]:
    """Weights after some updates; the actor is killed while a thread waits for it."""
    trainer = Trainer("ppo", partial(limited, SlowlyDrifting), **SMALL, actors=1, collection="overlapped")
    pid = trainer.env.transport.workers[0].process.pid
    waits.at = partial(os.kill, pid, signal.SIGKILL) if kill else lambda: None
    try:
        for _ in range(5):
            trainer.iterate()
        return [x for p in trainer.policy.parameters() for x in p.flatten().tolist()]
    finally:
        trainer.close()


def test_an_actor_that_is_killed_while_a_thread_waits_changes_nothing(waits):
    whole = learned(waits)
    assert waits.began and waits.all_over()
    waits.began = 0
    assert learned(waits, kill=True) == whole
    assert waits.began and waits.all_over()


def test_a_thread_that_joins_late_changes_nothing(waits, monkeypatch):
    whole, run, joined = learned(waits), thread_pool._run_threads, []

    def patient(call, threads, free, others):
        """The main thread begins once the actor has collected."""
        begin = threading.Event()

        def join(*arguments):
            waits(*arguments)
            joined.append(thread_pool._number_computing(others))
            begin.set()

        monkeypatch.setattr(thread_pool, "_until_free", join)
        run(delayed(call, begin) if others and free < threads else call, threads, free, others)

    monkeypatch.setattr(thread_pool, "_run_threads", patient)
    assert learned(waits) == whole
    assert 0 in joined


def delayed(call: Call, begin: threading.Event) -> Call:
    """A call that waits in the main thread."""

    def do(worker: int, slots: int) -> None:
        if worker == 0:
            assert begin.wait(60)
            time.sleep(0.05)  # the helper is in the kernel by now, mostly
        assert call.function.run(slots) == 0

    other = call.as_it_is()
    other.function = PythonEntry(do)
    return other
