"""Collecting with a program that acts: all steps of a block of 64 environments, policy and environment by turns, block
after block. Compiled once for all programs and environments."""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn.layout import BLOCK
from headrace.kernels.nn.philox import uniforms
from headrace.kernels.rows.slots import ALL, ROWS, TASK
from headrace.kernels.runtime.intrinsics import run, ticks
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import single_task

U = np.uint64
_0, _1, _2, _3, _4 = (U(i) for i in range(5))
_TASK, _ROWS = U(TASK), U(ROWS)
LINE = U(8)  # 8-byte words of a cache line
MAX_PARTS = U(8)


@njit(**INNER)
def _draw(collecting, t, first, size):
    """The draws of step t for a block of environments: those of headrace.core.rng.uniform."""
    _, seed, purpose, first_step, first_env = collecting.counter
    steps, envs, draws = collecting.sizes
    apart, random = steps * envs, collecting.random
    for lane in range(_0, (draws + _3) // _4):
        at, left = lane * _4 * apart + t * envs + first, draws - lane * _4
        for n in range(_0, size):
            a, b, c, d = uniforms(seed, purpose, first_step + t, first_env + first + n, lane)
            random[at + n] = a
            if left > _1:
                random[at + apart + n] = b
            if left > _2:
                random[at + _2 * apart + n] = c
            if left > _3:
                random[at + _3 * apart + n] = d


@njit(**MERGED)
def _compute(program, row, size, worker):
    """Run a program on `size` rows, from a given row on."""
    work, moving = program
    slots = worker * work.each
    for i in range(len(moving)):
        work.slots[slots + U(moving[i, 0])] = moving[i, 1] + moving[i, 2] * np.int64(row)
    work.slots[slots + _TASK], work.slots[slots + _ROWS] = ALL, np.int64(size)
    run(work.entry, work.slots, slots)


@njit(**MERGED)
def _collect_block(block, worker, collecting):
    """Take all steps of a block of environments, and evaluate their last observations."""
    steps, envs, _ = collecting.sizes
    entry, count = collecting.step
    first, end = block * BLOCK, (worker + _1) * count
    size = min(BLOCK, envs - first)
    collecting.steps[end - _3], collecting.steps[end - _2] = first, first + size
    for t in range(_0, steps):
        started = ticks()
        if collecting.counter[0]:
            _draw(collecting, t, first, size)
        _compute(collecting.acts, t * envs + first, size, worker)
        acted = ticks()
        collecting.steps[end - _1] = t
        run(entry, collecting.steps, end - count)
        collecting.spent[worker * LINE] += acted - started
        collecting.spent[worker * LINE + _1] += ticks() - acted
    if collecting.evaluates:
        started = ticks()
        _compute(collecting.last, first, size, worker)
        collecting.spent[worker * LINE] += ticks() - started


@njit(**INNER)
def _collect_part(part, worker, arguments):
    """Take all steps of the blocks of a part."""
    parts, collecting = arguments
    blocks = (collecting.sizes[1] + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        _collect_block(block, worker, collecting)


_run = single_task(_collect_part)


@njit(**ENTRY)
def collect(worker, state, collecting):
    """Take all steps of all environments, by all threads together: see kernels.runtime.thread_pool."""
    parts = min(MAX_PARTS, (collecting.sizes[1] + BLOCK - _1) // BLOCK)
    _run(worker, state, parts, (parts, collecting))
