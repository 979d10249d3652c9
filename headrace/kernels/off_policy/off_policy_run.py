"""Loop of an off-policy algorithm, compiled: act, step the environments, append to the replay buffer, draw minibatches,
learn. A part that is done in Python is left out."""

from __future__ import annotations

import numpy as np

from headrace.kernels.off_policy import off_policy_run_arguments as slots
from headrace.kernels.off_policy.replay_rows import append, fill
from headrace.kernels.off_policy.sum_tree import set_from_errors
from headrace.kernels.runtime.atomics import rest
from headrace.kernels.runtime.intrinsics import run, ticks
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, is_open, take_threads

F, U = np.float32, np.uint64
_0 = U(0)


@njit(**INNER)
def _act(steps, t):
    """Row t's actions."""
    for i in range(len(steps.moving)):
        steps.actor_words[steps.moving[i, 0]] = U(steps.moving[i, 1] + t * steps.moving[i, 2])
    run(steps.actor, steps.actor_words, _0)


@njit(**INNER)
def _learn(ring, batch, learning, updates):
    """Draw minibatches and take a gradient step on each."""
    fill(ring, batch, U(updates))
    for g in range(len(learning.follow)):
        learning.follow[g] = learning.tau if (updates + g + 1) % learning.interval == 0 else F(0)
    for i in range(len(learning.metrics)):
        learning.metrics[i] = F(0)
    learning.words[learning.since] = U(updates % learning.period)
    run(learning.entry, learning.words, _0)
    if ring.priorities.depth:
        set_from_errors(ring, batch, learning.error)
    _add_metrics(batch, learning)


@njit(**INNER)
def _add_metrics(batch, learning):
    """Add up metrics over gradient steps."""
    sums = learning.sums
    count = len(sums) - 1
    for i in range(len(learning.metrics)):
        sums[i % count] += np.float64(learning.metrics[i])
    sums[count] += np.float64(batch.steps)


@njit(**INNER)
def _one_step(columns, ring, batch, learning, steps, t):
    """Step t, as far as the flags say."""
    flags, spent, began = steps.span[slots.FLAGS], steps.spent, ticks()
    if flags & slots.ACT:
        _act(steps, np.int64(t))
    acted = ticks()
    if flags & slots.STEP:
        steps.words[len(steps.words) - 1] = U(t)
        run(steps.entry, steps.words, _0)
    stepped = ticks()
    if flags & slots.APPEND:
        append(columns, ring, U(t))
    if flags & slots.LEARN and (t + 1) % steps.every == 0:
        _learn(ring, batch, learning, steps.span[slots.UPDATES])
        steps.span[slots.UPDATES] += np.int64(batch.steps)
    spent[0] += acted - began
    spent[1] += stepped - acted
    spent[2] += ticks() - stepped


@njit(**ENTRY)
def run_steps(worker, state, columns, ring, batch, learning, steps):
    """Run steps span[FIRST] .. span[LAST] - 1, or those parts of them that span[FLAGS] names: see
    kernels.off_policy.off_policy_run_arguments.

    worker, state: see kernels.runtime.thread_pool; worker threads take part in the learning calls.
    """
    if worker == 0:
        take_threads(learning.state, state)
        for t in range(steps.span[slots.FIRST], steps.span[slots.LAST]):
            _one_step(columns, ring, batch, learning, steps, t)
        close(state)
        return
    while is_open(state):
        rest()
        if is_open(learning.state):
            run(learning.entry, learning.words, U(worker) * learning.slots)
