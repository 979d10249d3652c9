"""Self-play compiled: all steps of a block of 64 games in one call. The learner, its opponents and the environments
take turns, with the bits of headrace.self_play.games.SelfPlayEnv.step.

Games do not depend on each other, so threads wait for each other once, at the end.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn.layout import BLOCK, WORKERS
from headrace.kernels.nn.philox import uniforms
from headrace.kernels.rows import slots
from headrace.kernels.runtime.intrinsics import run, ticks
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import single_task

U, F = np.uint64, np.float32
_0, _1, _2, _3, _4 = (U(i) for i in range(5))
LINE = U(8)  # 8-byte words of a cache line
MAX_PARTS, _WORKERS, _ROWS = U(8), U(WORKERS), U(slots.ROWS)
NOW, AFTER, LAST = _0, _1, _2  # rows, as in headrace.self_play.games
MINE, OTHERS, ACTING, TERMINATED, TRUNCATED = (U(i) for i in range(5))  # rows of flags


@njit(**INNER)
def _draw(numbers, counter, step, lanes, first_lane, first, size):
    """Draw numbers of games from `first` on, as headrace.core.rng.uniform does, beginning at 4 * first_lane."""
    for lane in range(_0, lanes):
        for n in range(_0, size):
            a, b, c, d = uniforms(counter[0], counter[1], counter[2] + step, first + n, first_lane + lane)
            at = lane * _4 * BLOCK + n
            numbers[at], numbers[at + BLOCK] = a, b
            numbers[at + _2 * BLOCK], numbers[at + _3 * BLOCK] = c, d


@njit(**MERGED)
def _act(player, number, at, size, worker, skipped):
    """Choose actions of a policy for entries at, at + 1 ... of columns. skipped: draws to leave out first."""
    words, first = player.slots, (number * _WORKERS + worker) * player.each
    for i in range(len(player.moving)):
        words[first + U(player.moving[i, 0])] = player.moving[i, 1] + player.moving[i, 2] * np.int64(at)
    if player.draws:
        drawn = player.random[0] + np.int64(worker) * player.random[1]
        words[first + player.draws] = drawn + np.int64(_4 * skipped)
    words[first + _ROWS] = np.int64(size)
    run(player.entries[number], words, first)


@njit(**INNER)
def _columns_of(numbers, game):
    """The columns of the learner's agent and of the other one."""
    return (game, numbers.games + game) if game < numbers.half else (numbers.games + game, game)


@njit(**INNER)
def _opponents_act(a, worker, row, t, moves, first, size):
    """Choose actions of opponents for a row. Games of one opponent are adjacent; in some of them it acts. moves: number
    of moves that opponents have made in this step."""
    n, flags, policy = a.numbers, a.room.flags[worker], a.state.policy
    lanes, e = (n.draws + _3) // _4, _0
    _draw(a.room.draws[worker], n.their_draws, t, lanes, moves * lanes, first, size)
    while e < size:
        end, acting = e, False
        while end < size and policy[first + end] == policy[first + e] and (end == e or first + end != n.half):
            acting |= flags[ACTING, end]
            end += _1
        if acting:
            _, other = _columns_of(n, first + e)
            at, count = row * _2 * n.games + other, end - e
            _act(a.opponents, U(policy[first + e]), at, count, worker, e)
        e = end


@njit(**INNER)
def _pack(pack, rows, per_block, first, size, held, kept, back):
    """Copy a block's rows of a pack to `held`, or back except for games that keep the new state."""
    for e in range(_0, size):
        game = first + e
        at = game // per_block * rows * per_block + game % per_block
        for s in range(_0, rows):
            if not back:
                held[e * rows + s] = pack[at + s * per_block]
            elif not kept[e]:
                pack[at + s * per_block] = held[e * rows + s]


@njit(**INNER)
def _hold(env, room, worker, first, size, back):
    """Copy the state of a block's environments, or put it back where they are not acting."""
    kept, held, place = room.flags[worker, ACTING], room.bytes[worker], _0
    _pack(env.floats, env.float_rows, env.per_block, first, size, room.floats[worker], kept, back)
    _pack(env.integers, env.integer_rows, env.per_block, first, size, room.integers[worker], kept, back)
    for array in env.arrays:
        for e in range(_0, size):
            for k in range(_0, U(array.shape[1])):
                if not back:
                    held[place + k] = array[first + e, k]
                elif not kept[e]:
                    array[first + e, k] = held[place + k]
            place += U(array.shape[1])


@njit(**INNER)
def _step(a, worker, row):
    """A step of the block's environments from a row on."""
    entry, count = a.step
    a.steps[(worker + _1) * count - _1] = row
    run(entry, a.steps, worker * count)


@njit(**INNER)
def _count(a, worker, row, mine, others, first, size):
    """SelfPlayEnv._count. mine, others: the rows of flags."""
    n, flags, rewards = a.numbers, a.room.flags[worker], a.room.rewards[worker]
    for e in range(_0, size):
        own, other = _columns_of(n, first + e)
        own, other = row * _2 * n.games + own, row * _2 * n.games + other
        reward = a.both.reward[own] if flags[mine, e] else F(0)
        rewards[e] += reward
        a.state.margins[first + e] += reward - (a.both.reward[other] if flags[others, e] else F(0))
        flags[TERMINATED, e] |= flags[mine, e] & a.both.terminated[own]
        flags[TRUNCATED, e] |= flags[mine, e] & a.both.truncated[own]


@njit(**INNER)
def _opponents_move(a, worker, t, first, size):
    """SelfPlayEnv._opponents_move. The first row of flags is overwritten."""
    n, flags, per_block = a.numbers, a.room.flags[worker], a.env.per_block
    moves, any_acting = _0, True
    while any_acting:
        any_acting = False
        for e in range(_0, size):
            game = first + e
            at = game // per_block * a.env.integer_rows * per_block + a.env.mover * per_block + game % per_block
            agent, ended = np.int32(game >= n.half), flags[TERMINATED, e] | flags[TRUNCATED, e]
            mover = a.env.integers[at]
            flags[ACTING, e] = not ended and mover != agent
            any_acting |= flags[ACTING, e]
            if flags[ACTING, e] and (moves >= n.most_moves or mover + agent != 1):
                stuck = a.room.stuck[worker]
                stuck[0], stuck[1], stuck[2] = mover, moves, 1
                return
        if any_acting:
            _opponents_act(a, worker, AFTER, t, moves, first, size)
            _hold(a.env, a.room, worker, first, size, False)
            _step(a, worker, AFTER)
            _hold(a.env, a.room, worker, first, size, True)
            _count(a, worker, AFTER, ACTING, ACTING, first, size)
            _move_row(a.both, n, LAST, AFTER, first, size, flags[ACTING])
            moves += _1


@njit(**INNER)
def _move_row(both, n, source, target, first, size, which):
    """Copy observations of some games from one row to another."""
    for side in range(_0, _2):
        there, here = (_2 * source + side) * n.games + first, (_2 * target + side) * n.games + first
        for f in range(_0, n.features):
            for e in range(_0, size):
                if which[e]:
                    both.observation[f * both.plane + here + e] = both.observation[f * both.plane + there + e]
        for e in range(_0, size):
            if which[e]:
                both.valid[here + e] = both.valid[there + e]


@njit(**INNER)
def _finish(a, worker, t, first, size):
    """SelfPlayEnv._finish_games, after the learner's valid[t]; and an outcome of nothing."""
    s, flags = a.state, a.room.flags[worker]
    for e in range(_0, size):
        game, row = first + e, t * a.numbers.games + first + e
        own, other = _columns_of(a.numbers, game)
        valid, others = a.both.valid[own], a.both.valid[other]
        a.learner.valid[row] = valid
        a.learner.episode_return[row] = F(0) if valid else s.returns[game] / a.numbers.scale
        a.learner.episode_length[row] = np.int32(0) if valid else s.lengths[game]
        if not valid and not others:
            if s.rated[game] and s.played[game]:
                margin, place = s.margins[game], U(s.opponent[game])
                s.scores[worker, place] += 1.0 if margin > F(0) else (0.0 if margin < F(0) else 0.5)
                s.games[worker, place] += 1
            s.rated[game], s.played[game], s.margins[game] = True, False, F(0)
        if not valid:
            s.returns[game], s.lengths[game] = F(0), np.int32(0)
        a.room.rewards[worker, e] = F(0)
        flags[MINE, e], flags[OTHERS, e], flags[ACTING, e] = valid, others, True
        flags[TERMINATED, e] = flags[TRUNCATED, e] = False


@njit(**INNER)
def _learner_acts(a, worker, t, first, size):
    """The learner's actions, in its rollout and in that of both."""
    n, own, both = a.numbers, a.learner, a.both
    lanes, at = (n.draws + _3) // _4, t * n.games + first
    _draw(a.room.draws[worker], n.own_draws, t, lanes, _0, first, size)
    _act(a.own, _0, at, size, worker, _0)
    for e in range(_0, size):
        column, _ = _columns_of(n, first + e)
        for c in range(_0, n.actions):
            here, there = c * both.action_plane + column, c * own.action_plane + at + e
            if len(own.choice):
                both.choice[here] = own.choice[there]
            else:
                both.action[here] = own.action[there]


@njit(**INNER)
def _end(a, worker, t, first, size):
    """Write the outcome of the learner's step, and the observations after it."""
    n, s, flags, own = a.numbers, a.state, a.room.flags[worker], a.learner
    for e in range(_0, size):
        game, row, mine = first + e, t * n.games + first + e, flags[MINE, e]
        reward = a.room.rewards[worker, e] if mine else F(0)
        own.reward[row] = reward
        own.terminated[row], own.truncated[row] = flags[TERMINATED, e] & mine, flags[TRUNCATED, e] & mine
        s.returns[game] += reward
        s.lengths[game] += np.int32(mine)
        s.played[game] |= mine
        column, _ = _columns_of(n, game)
        column += AFTER * _2 * n.games
        own.valid[row + n.games] = a.both.valid[column]
        for f in range(_0, n.features):
            own.observation[f * own.plane + row + n.games] = a.both.observation[f * a.both.plane + column]
        flags[ACTING, e] = True
    _move_row(a.both, n, AFTER, NOW, first, size, flags[ACTING])


@njit(**MERGED)
def _steps(block, worker, a):
    """All steps of a block of games, and the values of the last observations."""
    n, first = a.numbers, block * BLOCK
    size, end = min(BLOCK, n.games - first), (worker + _1) * a.step[1]
    a.steps[end - _3], a.steps[end - _2] = first, first + size
    for t in range(_0, n.steps):
        began = ticks()
        _finish(a, worker, t, first, size)
        _learner_acts(a, worker, t, first, size)
        acted = ticks()
        if not n.turns:
            _opponents_act(a, worker, NOW, t, _0, first, size)
        _step(a, worker, NOW)
        _count(a, worker, NOW, MINE, OTHERS, first, size)
        if n.turns:
            _opponents_move(a, worker, t, first, size)
            if a.room.stuck[worker, 2]:
                return
        _end(a, worker, t, first, size)
        a.spent[worker * LINE] += acted - began
        a.spent[worker * LINE + _1] += ticks() - acted
    _act(a.last, _0, first, size, worker, _0)


@njit(**INNER)
def _play_part(part, worker, arguments):
    """All steps of the blocks of a part."""
    parts, a = arguments
    blocks = (a.numbers.games + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        _steps(block, worker, a)


_run = single_task(_play_part)


@njit(**ENTRY)
def play(worker, state, a):
    """T moves of the learner in N games. worker, state: see kernels.runtime.thread_pool. a: GamesArguments."""
    parts = min(MAX_PARTS, (a.numbers.games + BLOCK - _1) // BLOCK)
    _run(worker, state, parts, (parts, a))
