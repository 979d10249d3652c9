"""Acting compiled: actions, their log-likelihood and the value of N observations in one call, in blocks of 64."""

from __future__ import annotations

import numpy as np

from headrace.kernels.heads_cpu import refresh, sample
from headrace.kernels.jit import ENTRY, MERGED, njit
from headrace.kernels.mlp_cpu import forward, normalize
from headrace.kernels.simd import store
from headrace.kernels.tables import BLOCK, DISCRETE, WIDTH
from headrace.kernels.team import claim, dismiss, dismissed, finished, publish, rest, wait

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)
PARTS = U(8)


@njit(**MERGED)
def _read(observation, inputs, first, count, noise, draws, scratch, at):
    """A block of `count` columns from `first` on. Lanes left over repeat the last."""
    rows, stride = observation
    for e in range(_0, BLOCK):
        n = first + (e if e < count else count - _1)
        for f in range(_0, inputs):
            scratch[f * BLOCK + e] = rows[f * stride + n]
        for d in range(_0, draws):
            scratch[at + d * BLOCK + e] = noise[d, n]


@njit(**MERGED)
def _write(policy, scratch, at, first, count, start, decided):
    """What was decided for a block, to columns first, first + 1 ..."""
    _, head, places, _, units, _ = policy
    choice, action, log_prob, value = decided
    for e in range(_0, count):
        n = first + e
        log_prob[n] = scratch[at + e]
        value[n] = units[_0] + units[_1] * scratch[places.values + e]
        for c in range(_0, U(len(head.sizes))):
            a = scratch[places.actions + c * BLOCK + e]
            if head.kind == DISCRETE:
                choice[c, n] = np.int32(a) + start[c]
            else:
                action[c, n] = a


@njit(**MERGED)
def _parts(worker, state, parts, policy, observation, noise, start, decided, scratch):
    """Do parts, blocks of a fixed range, until none is left."""
    layers, head, places, parameters, _, normalizer = policy
    count, draws = U(len(decided[2])), U(len(noise))
    blocks = (count + BLOCK - _1) // BLOCK
    mine = scratch[U(worker)]
    part = claim(state, worker)
    while part >= 0:
        p = U(part)
        at, chances = places.samples, places.samples + BLOCK
        for block in range(blocks * p // parts, blocks * (p + _1) // parts):
            first = block * BLOCK
            size = min(BLOCK, count - first)
            _read(observation, places.inputs, first, size, noise, draws, mine, chances)
            normalize(normalizer, mine)
            forward(layers, parameters, mine)
            for i in range(_0, BLOCK, WIDTH):
                log_prob = sample(
                    head, mine, places.logits, places.d_logits, places.actions, places.entropies, i, chances, draws
                )
                store(mine, at + i, log_prob)
            _write(policy, mine, at, first, size, start, decided)
        finished(state)
        part = claim(state, worker)


@njit(**ENTRY)
def act(worker, state, policy, observation, noise, start, decided, scratch):
    """Decide for N observations.

    worker, state: as in headrace.kernels.ppo_cpu.learn. policy: (layers, head, places, parameters, float32 [2] center
    and scale of values, mlp_cpu.Normalizer). observation: (float32 flat, stride of its rows). noise: float32
    [draws, N], uniform in [0, 1), or [0, N] for the most likely actions. start: int32 [K], the number of each choice's
    first option. decided: (choice int32 [K, N], action float32 [K, N], log_prob [N], value [N]), of which choice or
    action is written. scratch: float32, one row a worker.
    """
    _, head, _, parameters, _, _ = policy
    parts = min(PARTS, (U(len(decided[2])) + BLOCK - _1) // BLOCK)
    if worker == 0:
        refresh(head, parameters)
        publish(state, parts)
    while True:
        _parts(worker, state, parts, policy, observation, noise, start, decided, scratch)
        if worker == 0 or dismissed(state):
            break
        rest()
    if worker == 0:
        wait(state)
        dismiss(state)
