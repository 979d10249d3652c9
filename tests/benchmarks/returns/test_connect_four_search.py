"""Connect Four by alpha-beta search: values by a plain search, lines, and boards as the environment shows them."""

from __future__ import annotations

import numpy as np

import headrace as hr
from benchmarks.returns import connect_four_search as search


def four(board, player) -> bool:
    """A line of four in a board [rows, columns]."""
    for row in range(6):
        for column in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                places = [(row + k * down, column + k * right) for k in range(4)]
                inside = all(0 <= r < 6 and 0 <= c < 7 for r, c in places)
                if inside and all(board[place] == player for place in places):
                    return True
    return False


def children(board, player):
    """(column, board) of each move; row 0 is the lowest."""
    for column in range(7):
        free = np.flatnonzero(board[:, column] == 0)
        if len(free):
            after = board.copy()
            after[free[0], column] = player
            yield column, after


def plain_value(board, player, depth):
    """Negamax without bounds: 10,000 and the depth that is left for a win."""
    if depth == 0:
        return 0
    values = [
        10_000 + depth if four(after, player) else -plain_value(after, 3 - player, depth - 1)
        for _, after in children(board, player)
    ]
    return max(values, default=0)


def bits(board, players) -> int:
    """Pieces of some players as the search has them."""
    return sum(1 << (7 * c + r) for r in range(6) for c in range(7) if board[r, c] in players)


def random_board(rng, moves):
    """A board after random moves without a winner, and the player to move."""
    board, player = np.zeros((6, 7), int), 1
    for _ in range(moves):
        options = [after for _, after in children(board, player) if not four(after, player)]
        if options:
            board, player = options[rng.integers(len(options))], 3 - player
    return board, player


def test_moves_are_those_of_a_plain_search():
    rng, decided = np.random.default_rng(0), 0
    for moves in (8, 12, 16, 20, 24, 28, 32):
        board, player = random_board(rng, moves)
        own, everything = bits(board, {player}), bits(board, {1, 2})
        values = {
            column: 10_003 if four(after, player) else -plain_value(after, 3 - player, 2)
            for column, after in children(board, player)
        }
        best = {column for column, value in values.items() if value == max(values.values())}
        found = {search.best_move(own, everything, 3 - 1, False, draw) for draw in np.linspace(0, 0.99, 15)}
        assert found == best
        decided += len(best) < len(values)
    assert decided > 2


def test_open_lines():
    own = 1 << 0 | 1 << 7  # two pieces at the lower left: one line has both, five others have one of them
    assert search.lines_of(own, 0) == 4 + 1 + (1 + 1) + (1 + 1)
    assert search.lines_of(own, 1 << 14) == (1 + 1) + (1 + 1)  # a piece beside them closes the lines along the floor


def test_boards_are_as_the_environment_shows_them():
    env = hr.make("ConnectFourPlayers", 1, params={"random_moves": 0})
    rollout = env.rollout(42, env.columns())
    env.reset(rollout, 0)
    own = everything = np.zeros(1, np.int64)
    rng, wins = np.random.default_rng(2), 0
    for t in range(42):
        if not rollout.valid[t].all():
            break
        shown = search.observation_of(own, everything)
        expected = np.concatenate((shown["observation"][0], shown["action_mask"][0]))
        assert np.array_equal(rollout.observation[t, int(env.movers()[0])].numpy(), expected)
        wins += shown["observation"][0, 84:].sum()
        action = int(rng.choice(np.flatnonzero(shown["action_mask"][0])))
        rollout.action[t] = action
        env.step(rollout, t)
        after = everything | (everything + (1 << (7 * action)))
        own, everything = everything ^ own, after
    assert wins > 0 and t > 10
    assert rollout.reward[t - 1].abs().tolist() == [1, 1]


def test_openings_are_different_and_undecided():
    own, everything = search.openings(50, 0)
    assert len({*zip(own.tolist(), everything.tolist(), strict=True)}) == 50
    assert all(int(pieces).bit_count() == search.OPENING for pieces in everything)
