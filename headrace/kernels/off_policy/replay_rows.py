"""A replay buffer compiled: appending a row, drawing minibatches, gathering their rows.

Numbers are those of headrace.data.replay.Replay: the same rows from the same draws, and the same bits of rewards.
"""

from __future__ import annotations

import numpy as np

from headrace.core.rng import Purpose
from headrace.kernels.nn.philox import uniforms
from headrace.kernels.off_policy.sum_tree import append_row, draw_rows
from headrace.kernels.runtime.jit import INNER, njit

F, U = np.float32, np.uint64
_0, _1, _4 = U(0), U(1), U(4)
_ZERO, _ONE = F(0), F(1)
_REPLAY = U(Purpose.REPLAY)


@njit(**INNER)
def append(columns, ring, t):
    """Append row t of a rollout, and the observation that follows it: see Replay.append."""
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
def _gather(ring, batch, row, at):
    """The transition that begins at a row of the ring, into row `at` of the minibatches: see Replay.gather."""
    size, reward, discount, following = ring.length * ring.envs, _ZERO, _ONE, row
    for _ in range(_0, batch.n_steps):
        reward += discount * ring.reward[following]
        terminated, truncated = ring.terminated[following], ring.truncated[following]
        discount = _ZERO if terminated else discount * batch.gamma
        following = (following + ring.envs) % size
        if terminated or truncated:
            break
    batch.reward[at], batch.discount[at] = reward, discount
    features, actions = ring.features, ring.actions
    for f in range(_0, features):
        batch.observation[at * features + f] = ring.observation[row * features + f]
        batch.next_observation[at * features + f] = ring.observation[following * features + f]
    if len(ring.choice):
        batch.choice[at] = ring.choice[row]
        return
    for k in range(_0, actions):
        batch.action[at * actions + k] = ring.action[row * actions + k]


@njit(**INNER)
def _draw(batch, step, j, at):
    """The uniform draws of row j of a minibatch beyond those of its place, into row `at`."""
    for first in range(_0, batch.draws, _4):
        words = uniforms(batch.seed, _REPLAY, step, j, first // _4 + _1)
        for k in range(_0, min(_4, batch.draws - first)):
            batch.random[at * batch.draws + first + k] = words[k]


@njit(**INNER)
def fill(ring, batch, updates):
    """Draw and gather all minibatches; updates: gradient steps before the first."""
    written = ring.written[0]
    oldest = max(written - np.int64(ring.length) + 1, 0)
    count = max(written - np.int64(batch.n_steps) + 1 - oldest, 0)
    total = np.float64(count * np.int64(ring.envs))
    for g in range(_0, batch.steps):
        step, present, first = updates + g, 0, g * batch.room
        if ring.priorities.depth:
            draw_rows(ring, batch, _REPLAY, step, g)
        for j in range(_0, batch.rows):
            if ring.priorities.depth:
                row = U(ring.priorities.rows[g * batch.rows + j])
            else:
                row = _drawn(ring, uniforms(batch.seed, _REPLAY, step, j, _0), U(oldest), total)
                batch.weight[first + j] = F(ring.valid[row])
            _gather(ring, batch, row, first + j)
            _draw(batch, step, j, first + j)
            present += batch.weight[first + j] != _ZERO
        for j in range(_0, batch.rows):
            batch.weight[first + j] /= F(max(present, 1))
