"""Run tasks at the same time in threads of one process: agents that train together."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from headrace.algorithms.base import ALGORITHMS
from headrace.core.cores import cores
from headrace.runs.signals import Interrupts, heeding
from headrace.runs.task_processes import LOOK, Ask, NotTogether, Task, Work
from headrace.training.trainer import Trainer

THREADS = "HEADRACE_THREADS"
# s that a thread keeps Python's lock while another one waits. The default 5e-3 is about as long as a compiled call:
# after it a thread would wait as long again for one that evaluates in Python
SWITCH = 5e-4
MAY_SHARE = "may use what a process has once, as torch's random numbers"
OWN_PROCESSES = "it starts processes or threads of its own"
APART: tuple[tuple[str, tuple[Any, ...], str], ...] = (  # settings, their values together, and the reason
    *((name, (None,), OWN_PROCESSES) for name in ("actors", "workers", "cluster")),
    ("learners", (1,), OWN_PROCESSES),
    ("shards", (None, 1), OWN_PROCESSES),
    ("parallel_evaluation", (False,), OWN_PROCESSES),
    ("collection", ("sync",), OWN_PROCESSES),
    ("policy", (None,), f"a class of your own {MAY_SHARE}"),
    ("precision", ("float32",), "all threads would run plain PyTorch"),
    ("track", (None,), "the tracker has one run in a process"),
    ("progress", ("auto", "plain", "none"), "its table is that of one training"),
)


class _Ended(NamedTuple):
    """A finished task: its outcome, or its exception."""

    number: int
    outcome: Any
    error: BaseException | None


class Threads:
    """The counterpart of Processes with a thread for each task, at most `jobs` at a time.

    Tasks share imports, machine code and registered settings. A task's kernels have its share of the cores, and torch
    as many threads as in this thread. A signal reaches all tasks. run() raises a task's exception after the others have
    saved and ended.
    """

    def __init__(self, work: Work, jobs: int, name: str) -> None:
        self._work, self._jobs, self._name = work, jobs, name
        self._answering = threading.RLock()  # held while run()'s caller answers, makes a task or takes an outcome
        self._ended: SimpleQueue[_Ended] = SimpleQueue()
        self._at_work: dict[int, threading.Thread] = {}
        self._interrupts = Interrupts()
        self._torch_threads = torch.get_num_threads()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
        if THREADS not in os.environ:
            os.environ[THREADS] = str(max(1, cores() // self._jobs))
            self._stack.callback(os.environ.pop, THREADS, None)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._stack:
            self._interrupts.caught = self._interrupts.caught or "SIGTERM"  # tasks run here only after an exception
            for thread in self._at_work.values():
                if not (error is None or isinstance(error, Exception)):  # a second Ctrl-C: they end without saving
                    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
                    raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))
            for thread in self._at_work.values():
                thread.join()

    def run(self, tasks: Iterator[Task], done: Callable[[int, Any, str], None]) -> str:
        """Carry out tasks as Processes.run() does. Threads are not killed, so an outcome is never None."""
        numbered = enumerate(tasks)
        with Interrupts() as self._interrupts:
            for _ in range(self._jobs):
                self._give(numbered)
            while self._at_work:
                try:
                    ended = self._ended.get(timeout=LOOK)  # the handler of a signal may run once a wait has ended
                except Empty:
                    continue
                self._at_work.pop(ended.number).join()
                if ended.error is not None:
                    raise ended.error
                with self._answering:
                    done(ended.number, ended.outcome, self._interrupts.caught)
                self._give(numbered)
            return self._interrupts.caught

    def _give(self, numbered: Iterator[tuple[int, Task]]) -> None:
        """Begin the next task, where there is one."""
        if self._interrupts.caught:
            return
        with self._answering:
            found = next(numbered, None)
        if found is not None:
            number, (task, answer) = found
            given = number, task, answer
            # a daemon, so that a third Ctrl-C ends the process at once
            thread = threading.Thread(target=self._do, args=given, name=f"{self._name} {number}", daemon=True)
            self._at_work[number] = thread
            thread.start()

    def _do(self, number: int, task: Any, answer: Ask) -> None:
        def ask(question: Any) -> Any:
            with self._answering:
                return answer(question)

        torch.set_num_threads(self._torch_threads)  # a new thread has the number that was set last in any thread
        with heeding(self._interrupts):
            try:
                ended = _Ended(number, self._work(task, ask), None)
            except BaseException as error:
                ended = _Ended(number, None, error)
        self._ended.put(ended)


def check_together(trainer: Trainer) -> None:
    """Raise NotTogether, naming the setting, if a training cannot share its process with others.

    A training can share its process if it spends most of its time in compiled code, and uses no state of the process.
    Algorithms of the package draw from their own generators, not from the global ones of torch, NumPy and Python."""
    for setting, reason in _refused(trainer):
        raise NotTogether(
            f"{setting} is not for trainings together in one process: {reason}; leave together out, or the setting"
        )


def _refused(trainer: Trainer) -> Iterator[tuple[str, str]]:
    """Settings with which a training cannot share its process, and why."""
    plan, config, env, learn = trainer.plan, trainer.config, trainer.env, trainer.placement.learn
    if plan.algorithm not in ALGORITHMS:
        yield f"algorithm={plan.algorithm!r}", f"a class of your own {MAY_SHARE}"
    for name, usual, reason in APART:
        if (value := getattr(config, name)) not in usual:
            yield f"{name}={value!r}", reason
    if learn.type != "cpu":
        yield f"device={str(learn)!r}", "it is for the CPU"
    if env.backend != "cpu":
        yield f"env={env.name!r}", f"it is for compiled environments, and its backend is {env.backend!r}"
