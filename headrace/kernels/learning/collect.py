"""Collecting compiled: all steps of a block of 64 environments, policy and environment by turns, block after block.

An environment's steps do not depend on another's, so threads wait for each other once, at the end.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.learning.act import MAX_PARTS, forward_block, sample_block, store_block, store_values
from headrace.kernels.nn.layout import BLOCK
from headrace.kernels.nn.policy_heads import refresh
from headrace.kernels.runtime.intrinsics import run, ticks
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import single_task

U = np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
LINE = U(8)  # 8-byte words of a cache line


@njit(**MERGED)
def _steps(block, worker, arguments, scratch):
    """All steps of a block of environments, and the values of the last observations."""
    _, policy, observation, random, output, (steps, envs), (entry, count), slots, _, spent = arguments
    first, draws = block * BLOCK, random[0]
    size = min(BLOCK, envs - first)
    base, end = worker * count, (worker + _1) * count
    slots[end - _3], slots[end - _2] = first, first + size
    for t in range(_0, steps):
        started = ticks()
        forward_block(policy, observation, t * envs + first, size, scratch)
        sample_block(policy, random, t * draws * envs + first, size, scratch)
        store_block(policy, scratch, t * envs + first, size, output)
        acted = ticks()
        slots[end - _1] = t
        run(entry, slots, base)
        spent[worker * LINE] += acted - started
        spent[worker * LINE + _1] += ticks() - acted
    forward_block(policy, observation, steps * envs + first, size, scratch)
    store_values(policy, scratch, steps * envs + first, size, output[4])


@njit(**INNER)
def _collect_part(part, worker, arguments):
    """All steps of the blocks of a part."""
    parts, _, _, _, _, shape, _, _, scratch, _ = arguments
    blocks = (shape[1] + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        _steps(block, worker, arguments, scratch[worker])


_run = single_task(_collect_part)


@njit(**ENTRY)
def collect(worker, state, policy, observation, random, output, shape, step, slots, scratch, spent):
    """T steps of N environments.

    worker, state, policy, observation, random, output, scratch: as in act.act, but of whole columns [T, N], and random
    [T, draws, N]. shape: (T, N). step: (address of the entry point of the environment's step, number of its argument
    slots), and slots: these, uint64, one run of them for each worker: the last three are its first environment, its
    last + 1, and the time. spent: uint64, LINE for each worker: ticks of the policy and of the environment are added to
    its first two.
    """
    parts = min(MAX_PARTS, (shape[1] + BLOCK - _1) // BLOCK)
    arguments = parts, policy, observation, random, output, shape, step, slots, scratch, spent
    if worker == 0:
        refresh(policy.head, policy.parameters)
    _run(worker, state, parts, arguments)
