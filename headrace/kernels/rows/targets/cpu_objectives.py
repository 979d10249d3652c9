"""Gradient steps along several losses in turn: for each the gradient of a program, Adam's steps, and how targets
follow it. All minibatches in one call. Compiled once for each number of losses.

Where a call pauses, it returns between each gradient and its step, and is called again.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.rows.targets.cpu_adam import begin_step, square_part, step_part
from headrace.kernels.rows.targets.cpu_arguments import (
    DONE,
    FOLLOW,
    NORM,
    PAUSED,
    PAUSES,
    PROGRAM,
    SQUARES,
    STAGE,
    STEP,
    TASK,
)
from headrace.kernels.rows.targets.cpu_threads import do_task
from headrace.kernels.rows.targets.cpu_writes import write_back
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import close, work_loop

F, U = np.float32, np.uint64
_0, _1, _2 = U(0), U(1), U(2)
RANGE = 16_384  # parameters of a part of what a target network moves


@njit(**INNER)
def _move(target, own, tau, first):
    """Move a part of a target network's parameters, as torch.lerp does."""
    for i in range(first, min(first + U(RANGE), U(len(target)))):
        apart = own[i] - target[i]
        target[i] = target[i] + tau * apart if tau < F(0.5) else own[i] - apart * (F(1) - tau)


@njit(**INNER)
def _ranges(target):
    return (len(target) + RANGE - 1) // RANGE


@njit(**INNER)  # not merged into its caller: a call runs tasks of four kinds, and threads serve them
def _do(part, worker, learning):
    now, stages = learning
    stage, task = stages[now[STAGE]], now[TASK]
    if task == PROGRAM:
        do_task(part, worker, stage.work)
    elif task == SQUARES:
        square_part(part, stage.optimizer)
    elif task == STEP:
        step_part(part, stage.optimizer)
    else:
        first, second = stage.targets
        tau, parts = stage.tau[U(now[DONE])], U(_ranges(first[0]))
        if part < parts:
            _move(first[0], first[1], tau, part * U(RANGE))
        else:
            _move(second[0], second[1], tau, (part - parts) * U(RANGE))


_run_task, _serve = work_loop(_do)


@njit(**MERGED)
def _differentiate(state, learning, stage, g):
    """The gradient of a minibatch."""
    now, work = learning[0], stage.work
    for first in range(_0, U(len(work.slots)), work.each):
        for i in range(_0, U(len(stage.moving))):
            work.slots[first + U(stage.moving[i, _0])] = stage.moving[i, _1] + g * stage.moving[i, _2]
    now[TASK] = PROGRAM
    for task in range(len(work.parts)):
        work.task[0] = task
        if work.parts[task] == 1:
            do_task(_0, _0, work)
        else:
            _run_task(state, work.parts[task], learning)
    write_back(stage.writes)


@njit(**MERGED)
def _step(state, learning, stage, g):
    """Take Adam's steps along the gradient, and move target networks."""
    now, optimizer, second = learning[0], stage.optimizer, stage.second
    parts = len(optimizer.ranges)
    if optimizer.settings[NORM] < np.inf:
        now[TASK] = SQUARES
        _run_task(state, parts, learning)
    begin_step(optimizer)
    now[TASK] = STEP
    _run_task(state, parts, learning)
    if len(second.ranges):
        for part in range(_0, U(len(second.ranges))):
            square_part(part, second)
        begin_step(second)
        for part in range(_0, U(len(second.ranges))):
            step_part(part, second)
    if stage.tau[U(g)] > F(0):
        now[TASK] = FOLLOW
        _run_task(state, _ranges(stage.targets[0][0]) + _ranges(stage.targets[1][0]), learning)


@njit(**ENTRY)
def learn(worker, state, steps, since, now, stages):
    """Take steps number since + 1 .. since + steps, by all threads together: see kernels.runtime.thread_pool."""
    learning = (now, stages)
    if worker != 0:
        _serve(worker, state, learning)
        return
    if not now[PAUSED]:
        now[DONE], now[STAGE] = 0, 0
    while now[DONE] < steps:
        g = now[DONE]
        stage = stages[now[STAGE]]
        if (since + g + 1) % stage.every == 0:
            if now[PAUSED]:
                now[PAUSED] = 0
            else:
                _differentiate(state, learning, stage, g)
                if now[PAUSES]:
                    now[PAUSED] = 1
                    break
            _step(state, learning, stage, g)
        now[STAGE] += 1
        if now[STAGE] == len(stages):
            now[STAGE] = 0
            now[DONE] += 1
    close(state)
