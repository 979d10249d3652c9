"""Collecting compiled: all steps of a block of 64 environments, policy and environment by turns, block after block.

An environment's steps do not depend on another's, so threads wait for each other once, at the end.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.learning.act import MAX_PARTS, forward_block, sample_block, store_block, store_values
from headrace.kernels.nn.layout import BLOCK
from headrace.kernels.nn.philox import uniforms
from headrace.kernels.nn.policy_heads import refresh
from headrace.kernels.runtime.intrinsics import run, ticks
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import single_task

U = np.uint64
_0, _1, _2, _3, _4 = (U(i) for i in range(5))
LINE = U(8)  # 8-byte words of a cache line


@njit(**INNER)
def _draw(counter, random, t, envs, first, size):
    """The draws of step t for a block of environments: those of headrace.core.rng.uniform."""
    _, seed, purpose, first_step, first_env = counter
    draws, numbers = random[0], random[1]
    for lane in range(_0, (draws + _3) // _4):
        at, left = (t * draws + lane * _4) * envs + first, draws - lane * _4
        for n in range(_0, size):
            a, b, c, d = uniforms(seed, purpose, first_step + t, first_env + first + n, lane)
            numbers[at + n] = a
            if left > _1:
                numbers[at + envs + n] = b
            if left > _2:
                numbers[at + _2 * envs + n] = c
            if left > _3:
                numbers[at + _3 * envs + n] = d


@njit(**MERGED)
def _steps(block, worker, arguments, scratch):
    """All steps of a block of environments, and the values of the last observations."""
    _, policy, observation, random, output, (steps, envs), (entry, count), slots, _, spent, counter = arguments
    first, draws = block * BLOCK, random[0]
    size = min(BLOCK, envs - first)
    base, end = worker * count, (worker + _1) * count
    slots[end - _3], slots[end - _2] = first, first + size
    for t in range(_0, steps):
        started = ticks()
        if counter[0]:
            _draw(counter, random, t, envs, first, size)
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
    parts, _, _, _, _, shape, _, _, scratch, _, _ = arguments
    blocks = (shape[1] + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        _steps(block, worker, arguments, scratch[worker])


_run = single_task(_collect_part)


@njit(**ENTRY)
def collect(worker, state, policy, observation, random, output, shape, step, slots, scratch, spent, counter):
    """T steps of N environments.

    worker, state, policy, observation, random, output, scratch: as in act.act, but of whole columns [T, N], and random
    [T, draws, N]. shape: (T, N). step: (address of the entry point of the environment's step, number of its argument
    slots), and slots: these, uint64, one run of them for each worker: the last three are its first environment, its
    last + 1, and the time. spent: uint64, LINE for each worker: ticks of the policy and of the environment are added to
    its first two. counter: uint64 (1 to fill random with the draws of a seed, a purpose, a first step and a first
    environment, which follow; 0 where it is given).
    """
    parts = min(MAX_PARTS, (shape[1] + BLOCK - _1) // BLOCK)
    arguments = parts, policy, observation, random, output, shape, step, slots, scratch, spent, counter
    if worker == 0:
        refresh(policy.head, policy.parameters)
    _run(worker, state, parts, arguments)
