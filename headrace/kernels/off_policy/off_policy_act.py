"""Acting of off-policy policies compiled: actions with exploration, in blocks of 64 rows."""

from __future__ import annotations

import numpy as np

from headrace.kernels.learning.act import MAX_PARTS, forward_block
from headrace.kernels.nn.dense import whole_vectors
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.policy_heads import normal
from headrace.kernels.nn.simd import fma, load, select, splat, store
from headrace.kernels.nn.vector_math import clamp, exp, maximum, tanh
from headrace.kernels.off_policy.off_policy_run_arguments import CHOICES, STOCHASTIC
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import single_task

F, U = np.float32, np.uint64
_0, _1, _2 = U(0), U(1), U(2)
_ZERO, _ONE = F(0), F(1)
_LOG_STD_MIN, _LOG_STD_MAX = F(-20), F(2)


@njit(**INNER)
def _best(actor, scratch, i):
    """(number, value) of the largest output. The value is NaN where an output is. Of a dueling network, which has an
    offset of state values, outputs are advantages: see headrace.policies.q_network.QNetwork.values."""
    row = actor.offsets.logits + i
    top, choice, total = load(scratch, row), splat(_ZERO), load(scratch, row)
    for k in range(_1, actor.choices):
        value = load(scratch, row + k * BLOCK)
        choice = select(value > top, splat(F(k)), choice)
        top = maximum(top, value)
        total = total + value
    if actor.offsets.values > _0:
        top = load(scratch, actor.offsets.values + i) + top - total * (_ONE / F(actor.choices))
    return choice, top


@njit(**INNER)
def _explored(actor, scratch, draws, k, i):
    """Component k of normalised actions with noise: see headrace.policies.actor_q.ActorQ._explore."""
    row = actor.offsets.logits + k * BLOCK + i
    if actor.random[_0] > _ZERO:
        return load(scratch, actor.offsets.samples + k * BLOCK + i) * F(2) - _ONE
    noise = normal(scratch, actor.offsets.samples + i, k, draws // _2)
    if actor.kind == STOCHASTIC:
        log_std = clamp(load(scratch, row + U(len(actor.center)) * BLOCK), _LOG_STD_MIN, _LOG_STD_MAX)
        return tanh(fma(exp(log_std), noise, load(scratch, row)))
    return clamp(fma(noise, splat(actor.exploration[_0]), tanh(load(scratch, row))), -_ONE, _ONE)


@njit(**INNER)
def act_block(actor, observation, random, rows, first, count, output, scratch):
    """Actions of `count` rows. observation, random: as of kernels.learning.act, where the first row is rows[0] and
    rows[1]. output: (choice, action, stride of their rows, value), whose first row is rows[2]; first: its number in the
    exploration of environments."""
    draws, drawn, stride = random
    choice, action, plane, value = output
    forward_block(actor, observation, rows[0], count, scratch)
    lanes, at = whole_vectors(count), actor.offsets.samples
    for e in range(_0, lanes):
        n = rows[1] + (e if e < count else count - _1)
        for d in range(_0, draws):
            scratch[at + d * BLOCK + e] = drawn[d * stride + n]
    if actor.kind == CHOICES:
        kept = at + draws * BLOCK
        for i in range(_0, lanes, WIDTH):
            best, top = _best(actor, scratch, i)
            store(scratch, kept + i, best)
            store(scratch, kept + BLOCK + i, top)
        for e in range(_0, count):
            best = np.int32(scratch[kept + e])
            if draws:
                epsilon = actor.exploration[first + e if len(actor.exploration) > 1 else _0]
                if scratch[at + e] < epsilon:
                    best = np.int32(scratch[at + BLOCK + e] * F(actor.choices))
            choice[rows[2] + e] = best + np.int32(actor.start)
            if len(value):
                value[rows[2] + e] = scratch[kept + BLOCK + e]
        return
    for k in range(_0, U(len(actor.center))):
        for i in range(_0, lanes, WIDTH):
            if draws:
                x = _explored(actor, scratch, draws, k, i)
            else:
                x = tanh(load(scratch, actor.offsets.logits + k * BLOCK + i))
            x = fma(x, splat(actor.half_range[k]), splat(actor.center[k]))
            store(scratch, at + draws * BLOCK + i, x)
        for e in range(_0, count):
            action[k * plane + rows[2] + e] = scratch[at + draws * BLOCK + e]


@njit(**INNER)
def _act_part(part, worker, arguments):
    """Actions of the blocks of a part."""
    parts, actor, observation, random, count, output, scratch = arguments
    blocks = (count + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        size = min(BLOCK, count - first)
        act_block(actor, observation, random, (first, first, first), first, size, output, scratch[worker])


_run = single_task(_act_part)


@njit(**ENTRY)
def act(worker, state, actor, observation, random, count, output, scratch):
    """Actions for `count` observations. worker, state, observation, random, count, scratch: as of
    kernels.learning.act.act. actor: ActorArguments. output: (choice, action, stride of their rows, value)."""
    parts = min(MAX_PARTS, (count + BLOCK - _1) // BLOCK)
    _run(worker, state, parts, (parts, actor, observation, random, count, output, scratch))
