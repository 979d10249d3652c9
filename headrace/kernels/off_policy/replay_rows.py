"""A replay buffer compiled: appending a row, drawing minibatches, gathering them as a learning call reads them.

Numbers are those of headrace.data.replay.Replay: the same rows from the same draws, and the same bits of rewards.
"""

from __future__ import annotations

import numpy as np

from headrace.core.rng import Purpose
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.philox import uniforms
from headrace.kernels.nn.policy_heads import normal
from headrace.kernels.nn.simd import store
from headrace.kernels.nn.vector_math import clamp
from headrace.kernels.off_policy.sum_tree import append_row, draw_rows
from headrace.kernels.runtime.jit import INNER, njit

F, U = np.float32, np.uint64
_0, _1, _4 = U(0), U(1), U(4)
_ZERO, _ONE = F(0), F(1)
_REPLAY = U(Purpose.REPLAY)


@njit(**INNER)
def append(columns, ring, t):
    """Row t of a rollout, and after it the observation that follows: see Replay.append."""
    envs, begin = ring.envs, U(ring.written[0])
    before, after = (begin + ring.length - _1) % ring.length * envs, (begin + _1) % ring.length * envs
    at, now = begin % ring.length * envs, t * envs
    for n in range(_0, envs):
        _copy_observation(columns, ring, now + n, at + n)
        _copy_observation(columns, ring, now + envs + n, after + n)
        ring.valid[at + n], ring.valid[after + n] = columns.valid[now + n], columns.valid[now + envs + n]
        ring.reward[at + n] = columns.reward[now + n]
        ring.terminated[at + n], ring.truncated[at + n] = columns.terminated[now + n], columns.truncated[now + n]
        if len(ring.choice):
            ring.choice[at + n] = columns.choice[now + n]
        for k in range(_0, U(0 if len(ring.choice) else ring.actions)):
            ring.action[(at + n) * ring.actions + k] = columns.action[k * columns.action_plane + now + n]
        if ring.valid[before + n] and not columns.valid[now + n] and not ring.terminated[before + n]:
            ring.truncated[before + n] = True
        ring.written[n] += 1
        if ring.priorities.depth:
            append_row(ring, n)


@njit(**INNER)
def _copy_observation(columns, ring, source, target):
    for f in range(_0, ring.features):
        ring.observation[target * ring.features + f] = columns.observation[f * columns.plane + source]


@njit(**INNER)
def _drawn(ring, draws, oldest, total):
    """The row of the ring that four draws give: see Replay.draw."""
    size, row = ring.length * ring.envs, _0
    for which in range(3):
        number = U(np.int64((np.float64(draws[which]) + np.float64(draws[3]) * 2.0**-24) * total))
        candidate = number + oldest % ring.length * ring.envs
        candidate = candidate if candidate < size else candidate - size
        if which == 0 or not ring.valid[row]:
            row = candidate
    return row


@njit(**INNER)
def _gather(ring, batch, row, block, e):
    """The transition that begins at a row, into lane e of a block of the minibatches: see Replay.gather."""
    size, targets = ring.length * ring.envs, batch.targets
    reward, discount, following = _ZERO, _ONE, row
    for _ in range(_0, batch.n_steps):
        reward += discount * ring.reward[following]
        terminated, truncated = ring.terminated[following], ring.truncated[following]
        discount = _ZERO if terminated else discount * batch.gamma
        following = (following + ring.envs) % size
        if terminated or truncated:
            break
    at = block * BLOCK + e
    targets.reward[at], targets.discount[at] = reward, discount
    if not batch.in_blocks:
        _copy_row(ring, batch, row, following, at)
        return
    _encode(ring, batch, row, targets.observation, block, e)
    _encode(ring, batch, following, targets.next_observation, block, e)
    if len(ring.choice):
        targets.action[at] = F(np.int64(ring.choice[row]) - batch.start)
    for k in range(_0, U(len(batch.center))):
        action = (ring.action[row * ring.actions + k] - batch.center[k]) / batch.half_range[k]
        targets.action[(block * ring.actions + k) * BLOCK + e] = _clipped(action, _ONE)


@njit(**INNER)
def _copy_row(ring, batch, row, following, at):
    """Observations and action of a transition as they are."""
    targets, features, actions = batch.targets, ring.features, ring.actions
    for f in range(_0, features):
        targets.observation[at * features + f] = ring.observation[row * features + f]
        targets.next_observation[at * features + f] = ring.observation[following * features + f]
    if len(ring.choice):
        batch.choice[at] = ring.choice[row]
        return
    for k in range(_0, actions):
        targets.action[at * actions + k] = ring.action[row * actions + k]


@njit(**INNER)
def _encode(ring, batch, row, target, block, e):
    for f in range(_0, ring.features):
        x = ring.observation[row * ring.features + f]
        if len(batch.normalizer.center):
            x = _clipped((x - batch.normalizer.center[f]) * batch.normalizer.scale[f], batch.normalizer.limit)
        target[(block * ring.features + f) * BLOCK + e] = x


@njit(**INNER)
def _clipped(x, limit):
    """x within +-limit; NaN stays."""
    return limit if x > limit else (-limit if x < -limit else x)


@njit(**INNER)
def _draw_noise(batch, step, j, e):
    """The uniform draws of row j of a minibatch beyond those of its place, into lane e of scratch."""
    count = batch.draws * batch.noises
    for lane in range(_0, (count + _4 - _1) // _4):
        words = uniforms(batch.seed, _REPLAY, step, j, lane + _1)
        for k in range(4):
            if lane * _4 + U(k) < count:
                batch.scratch[(lane * _4 + U(k)) * BLOCK + e] = words[k]


@njit(**INNER)
def _store_noise(ring, batch, g, b):
    """Normal noise of a block from the draws in scratch; or these."""
    if not batch.in_blocks:
        count = batch.draws * batch.noises
        for e in range(_0, BLOCK):
            for k in range(_0, count):
                at = (g * batch.blocks + b) * BLOCK + e
                batch.targets.normal[at * count + k] = batch.scratch[k * BLOCK + e]
        return
    for h in range(_0, batch.noises):
        block = g * U(2) * batch.blocks + h * batch.blocks + b
        for k in range(_0, ring.actions):
            for i in range(_0, BLOCK, WIDTH):
                noise = normal(batch.scratch, h * batch.draws * BLOCK + i, k, batch.draws // U(2)) * batch.noise
                target = (block * ring.actions + k) * BLOCK + i
                store(batch.targets.normal, target, clamp(noise, -batch.clip, batch.clip))


@njit(**INNER)
def fill(ring, batch, updates):
    """Draw and gather all minibatches; updates: gradient steps before the first. The last block's lanes that are left
    stay as they are: 0."""
    written = ring.written[0]
    oldest = max(written - np.int64(ring.length) + 1, 0)
    count = max(written - np.int64(batch.n_steps) + 1 - oldest, 0)
    total = np.float64(count * np.int64(ring.envs))
    for g in range(_0, batch.steps):
        step, present = updates + g, 0
        if ring.priorities.depth:
            draw_rows(ring, batch, _REPLAY, step, g)
        for b in range(_0, batch.blocks):
            block, left = g * batch.blocks + b, batch.rows - b * BLOCK
            for e in range(_0, min(BLOCK, left)):
                j = b * BLOCK + e
                if ring.priorities.depth:
                    row = U(ring.priorities.rows[g * batch.rows + j])
                else:
                    row = _drawn(ring, uniforms(batch.seed, _REPLAY, step, j, _0), U(oldest), total)
                    batch.targets.loss_weight[block * BLOCK + e] = F(ring.valid[row])
                _gather(ring, batch, row, block, e)
                present += batch.targets.loss_weight[block * BLOCK + e] != _ZERO
                if batch.noises:
                    _draw_noise(batch, step, j, e)
            if batch.noises:
                _store_noise(ring, batch, g, b)
        for i in range(g * batch.blocks * BLOCK, (g + _1) * batch.blocks * BLOCK):
            batch.targets.loss_weight[i] /= F(max(present, 1))
