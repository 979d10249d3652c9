"""Collecting compiled: all steps of a block of 64 worlds, policy and environment by turns, before the next block.

A world's steps need nothing of another's, so that threads that share the blocks wait for each other once, at the end.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.learning.act import PARTS, choose, look, write, write_values
from headrace.kernels.nn.layout import BLOCK
from headrace.kernels.nn.policy_heads import refresh
from headrace.kernels.runtime.call_by_address import run, ticks
from headrace.kernels.runtime.jit import ENTRY, MERGED, njit
from headrace.kernels.runtime.work_queue import claim, dismiss, dismissed, finished, publish, rest, wait

U = np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
LINE = U(8)  # words of a cache line


@njit(**MERGED)
def _steps(policy, observation, random, decided, shape, step, words, block, scratch, spent):
    """All steps of a block of worlds, and the value of what is seen last."""
    steps, worlds = shape
    entry, slots, worker = step
    first = block * BLOCK
    size = min(BLOCK, worlds - first)
    base, end = worker * slots, (worker + _1) * slots
    words[end - _3], words[end - _2] = first, first + size
    draws = random[0]
    for t in range(_0, steps):
        started = ticks()
        look(policy, observation, t * worlds + first, size, scratch)
        choose(policy, random, t * draws * worlds + first, size, scratch)
        write(policy, scratch, t * worlds + first, size, decided)
        decided_at = ticks()
        words[end - _1] = t
        run(entry, words, base)
        spent[worker * LINE] += decided_at - started
        spent[worker * LINE + _1] += ticks() - decided_at
    look(policy, observation, steps * worlds + first, size, scratch)
    write_values(policy, scratch, steps * worlds + first, size, decided[4])


@njit(**ENTRY)
def collect(worker, state, policy, observation, random, decided, shape, step, words, scratch, spent):
    """T steps of N worlds.

    worker, state, policy, observation, noise, decided, scratch: as in act_cpu.act, but of whole columns [T, N], and
    noise [T, draws, N]. shape: (T, N). step: (the entry point of the environment's step, how many words it takes), and
    words: these, uint64, one run of them a worker: the last three are its first world, its last + 1, and the time.
    spent: uint64, LINE a worker: ticks of the policy and of the environment are added to its first two.
    """
    blocks = (shape[1] + BLOCK - _1) // BLOCK
    parts = min(PARTS, blocks)
    if worker == 0:
        refresh(policy.head, policy.parameters)
        publish(state, parts)
    while True:
        part = claim(state, worker)
        if part >= 0:
            p = U(part)
            for block in range(blocks * p // parts, blocks * (p + _1) // parts):
                mine = (step[0], step[1], U(worker))
                _steps(policy, observation, random, decided, shape, mine, words, block, scratch[U(worker)], spent)
            finished(state)
        elif worker == 0 or dismissed(state):
            break
        else:
            rest()
    if worker == 0:
        wait(state)
        dismiss(state)
