"""Acting compiled: actions, their log-likelihood and the values of N observations in one call, in blocks of 64."""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn.dense import whole_vectors
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.mlp import forward, forward_few, has_few, normalize
from headrace.kernels.nn.policy_heads import forbid, has_choices, refresh, sample
from headrace.kernels.nn.simd import store
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import single_task

U = np.uint64
_0, _1 = U(0), U(1)
MAX_PARTS = U(8)


@njit(**MERGED)
def forward_block(policy, observation, first, count, scratch):
    """The network's outputs for columns first ... first + count - 1 of the observation. Lanes left over repeat the
    last."""
    rows, stride = observation
    lanes = whole_vectors(count)
    for e in range(_0, lanes):
        n = first + (e if e < count else count - _1)
        for f in range(_0, policy.offsets.inputs):
            scratch[f * BLOCK + e] = rows[f * stride + n]
        for k in range(_0, policy.offsets.masked):
            scratch[policy.offsets.mask + k * BLOCK + e] = rows[(policy.offsets.inputs + k) * stride + n]
    normalize(policy.normalizer, scratch)
    if has_few(policy.layers, count):
        forward_few(policy.layers, policy.parameters, scratch)
    else:
        forward(policy.layers, policy.parameters, scratch, lanes)
    forbid(policy.offsets, scratch, lanes)


@njit(**MERGED)
def sample_block(policy, random, first, count, scratch):
    """Actions of a block after forward_block(), and their log_prob."""
    draws, rows, stride = random
    offsets, lanes = policy.offsets, whole_vectors(count)
    at = offsets.samples + BLOCK
    for e in range(_0, lanes):
        n = first + (e if e < count else count - _1)
        for d in range(_0, draws):
            scratch[at + d * BLOCK + e] = rows[d * stride + n]
    for i in range(_0, lanes, WIDTH):
        store(scratch, offsets.samples + i, sample(policy.head, scratch, offsets, i, at, draws))


@njit(**MERGED)
def store_values(policy, scratch, first, count, value):
    """Write the values of a block to columns first, first + 1 ..."""
    for e in range(_0, count):
        value[first + e] = policy.value_scale[_0] + policy.value_scale[_1] * scratch[policy.offsets.values + e]


@njit(**MERGED)
def store_block(policy, scratch, first, count, output):
    """Write actions, log_prob and values of a block to columns first, first + 1 ..."""
    choice, action, stride, log_prob, value = output
    store_values(policy, scratch, first, count, value)
    for e in range(_0, count):
        n = first + e
        log_prob[n] = scratch[policy.offsets.samples + e]
        for c in range(_0, U(len(policy.head.sizes))):
            a = scratch[policy.offsets.actions + c * BLOCK + e]
            if has_choices(policy.head):
                choice[c * stride + n] = np.int32(a) + policy.start[c]
            else:
                action[c * stride + n] = a


@njit(**INNER)
def _act_part(part, worker, arguments):
    """Actions of the blocks of a part."""
    parts, policy, observation, random, count, output, scratch = arguments
    blocks = (count + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        size = min(BLOCK, count - first)
        forward_block(policy, observation, first, size, scratch[worker])
        sample_block(policy, random, first, size, scratch[worker])
        store_block(policy, scratch[worker], first, size, output)


_run = single_task(_act_part)


@njit(**ENTRY)
def act(worker, state, policy, observation, random, count, output, scratch):
    """Actions for `count` observations.

    worker, state: see kernels.runtime.thread_pool. policy: layout.PolicyArguments. observation: (float32 flat,
    stride of its rows), with the rows of an action mask last. random: (draws, float32 flat, stride of its rows),
    uniform in [0, 1); 0 draws for the most likely actions. output: (choice int32 flat, action float32 flat, stride of
    their rows, log_prob, value), of which choice or action is written. scratch: float32, one row for each worker.
    """
    parts = min(MAX_PARTS, (count + BLOCK - _1) // BLOCK)
    if worker == 0:
        refresh(policy.head, policy.parameters)
    _run(worker, state, parts, (parts, policy, observation, random, count, output, scratch))
