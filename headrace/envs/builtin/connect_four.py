"""Connect Four: actions that a full column forbids. Against an opponent that plays at random, and for two agents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, i8, i32, randint

ROWS, COLUMNS, WINNING = 6, 7, 4
EMPTY, OWN, OTHER = 0, 1, 2
CELL = 32  # pixels of a rendered cell
COLORS = {EMPTY: (24, 24, 32), OWN: (230, 90, 70), OTHER: (240, 200, 80)}
DOWN = np.array([0, 1, 1, 1])  # directions of lines: row, column, both diagonals
RIGHT = np.array([1, 0, 1, -1])
MOST_RANDOM = 6  # largest number of moves after which no player can have won and no column overflows


def height(board, column):
    """Pieces in a column."""
    pieces = 0
    for row in range(ROWS):
        pieces += 1 if board[row, column] != EMPTY else 0
    return pieces


def wins(board, row, column, who):
    """Tell whether the piece at a place is part of a line of four of its owner."""
    won = False
    for direction in range(4):
        length = 1
        for side in range(2):
            sign = 1 - 2 * side
            running = True
            for distance in range(1, WINNING):
                r = row + sign * distance * DOWN[direction]
                c = column + sign * distance * RIGHT[direction]
                inside = (r >= 0) & (r < ROWS) & (c >= 0) & (c < COLUMNS)
                running = running and inside and board[r, c] == who
                length += 1 if running else 0
        if length >= WINNING:
            won = True
    return won


def drawn(board):
    """An image of a board."""
    image = np.zeros((ROWS, COLUMNS, 3), np.uint8)
    for value, color in COLORS.items():
        image[np.asarray(board) == value] = color
    return image.repeat(CELL, axis=0).repeat(CELL, axis=1)


class ConnectFour(KernelEnv):
    """Drop pieces into 7 columns of 6; four in a line win. Reward 1 for a win, -1 for a loss, 0 for a draw.

    The opponent chooses a column that is not full uniformly, and begins every second game. The observation is the board
    from the top row down: the own pieces (42 entries), then the opponent's (42). The action mask forbids full columns.
    A piece dropped there without the mask loses the game.
    """

    observation_space = Box(0.0, 1.0, (2 * ROWS * COLUMNS,))
    action_space = Discrete(COLUMNS)
    max_steps = None  # a board is full after 21 steps
    render_fps = 2

    class State(NamedTuple):
        board: array(i8, ROWS, COLUMNS)  # 0 empty, 1 own piece, 2 the opponent's; row 0 is the top
        pieces: i32  # on the board

    def reset(s, p, key):
        for row in range(ROWS):
            for column in range(COLUMNS):
                s.board[row, column] = EMPTY
        begins = randint(key, 0, 2)
        if begins == 1:
            s.board[ROWS - 1, randint(key, 1, COLUMNS)] = OTHER
        return ConnectFour.State(s.board, begins)

    def step(s, p, action, key):
        full = height(s.board, action) == ROWS
        reward = -1.0 if full else 0.0
        ended = full
        pieces = s.pieces
        if not full:
            row = ROWS - 1 - height(s.board, action)
            s.board[row, action] = OWN
            pieces += 1
            if wins(s.board, row, action, OWN):
                reward = 1.0
                ended = True
            elif pieces == ROWS * COLUMNS:
                ended = True
        if not ended:
            free = 0
            for column in range(COLUMNS):
                free += 1 if s.board[0, column] == EMPTY else 0
            chosen = randint(key, 0, free)
            for column in range(COLUMNS):
                open_column = s.board[0, column] == EMPTY
                if open_column & (chosen == 0):
                    row = ROWS - 1 - height(s.board, column)
                    s.board[row, column] = OTHER
                    if wins(s.board, row, column, OTHER):
                        reward = -1.0
                        ended = True
                chosen -= 1 if open_column else 0
            pieces += 1
            ended = ended | (pieces == ROWS * COLUMNS)
        return ConnectFour.State(s.board, pieces), reward, ended

    def observe(s, p, out):
        for row in range(ROWS):
            for column in range(COLUMNS):
                cell = row * COLUMNS + column
                out[cell] = 1.0 if s.board[row, column] == OWN else 0.0
                out[ROWS * COLUMNS + cell] = 1.0 if s.board[row, column] == OTHER else 0.0

    def action_mask(s, p, out):
        for column in range(COLUMNS):
            out[column] = 1.0 if s.board[0, column] == EMPTY else 0.0

    def render(s, p):
        return drawn(s.board)


def winning(board, column, who):
    """1 for columns in which a player's piece wins at once, else 0."""
    row = ROWS - 1 - height(board, column)
    return 1 if row >= 0 and wins(board, row, column, who) else 0


class ConnectFourPlayers(KernelEnv):
    """Two agents take turns to drop pieces into 7 columns of 6. Four in a line win: the reward is 1, and -1 for the
    other.

    `mover` in the state is the agent that moves next; the other agent's action is not read. The observation is the
    board from the top row down: the agent's own pieces (42 entries), then the other's (42). Then follow the columns in
    which a piece wins at once, the agent's own (7 entries) and the other's (7). The action mask forbids full columns; a
    piece dropped there loses the game. `random_moves`, up to 6: a game begins after a number of random moves that is
    uniform from 0 to this; the first move is player_0's.
    """

    observation_space = Box(0.0, 1.0, (2 * (ROWS + 1) * COLUMNS,))
    action_space = Discrete(COLUMNS)
    max_steps = None  # a board is full after 42 steps
    render_fps = 2
    num_agents = 2
    agents = ("player_0", "player_1")

    class Params(NamedTuple):
        random_moves: i32 = 6

    class State(NamedTuple):
        board: array(i8, ROWS, COLUMNS)  # 0 empty, 1 a piece of player_0, 2 of player_1; row 0 is the top
        wins: array(i8, 2, COLUMNS)  # 1 where a piece of player_0, player_1 dropped there wins
        pieces: i32  # on the board
        mover: i32  # the agent that moves next

    def reset(s, p, key):
        for row in range(ROWS):
            for column in range(COLUMNS):
                s.board[row, column] = EMPTY
        moves = randint(key, 0, p.random_moves + 1)
        for move in range(MOST_RANDOM):
            if move < moves:
                column = randint(key, 1 + move, COLUMNS)
                s.board[ROWS - 1 - height(s.board, column), column] = 1 + move % 2
        for column in range(COLUMNS):
            s.wins[0, column] = winning(s.board, column, 1)
            s.wins[1, column] = winning(s.board, column, 2)
        return ConnectFourPlayers.State(s.board, s.wins, moves, moves % 2)

    def step(s, p, action, key):
        column = action[0] if s.mover == 0 else action[1]
        full = height(s.board, column) == ROWS
        gain = -1.0 if full else 0.0
        ended = full
        if not full:
            row = ROWS - 1 - height(s.board, column)
            s.board[row, column] = 1 + s.mover
            won = wins(s.board, row, column, 1 + s.mover)
            gain = 1.0 if won else 0.0
            ended = won | (s.pieces + 1 == ROWS * COLUMNS)
        for c in range(COLUMNS):
            s.wins[0, c] = winning(s.board, c, 1)
            s.wins[1, c] = winning(s.board, c, 2)
        first = gain if s.mover == 0 else -gain
        return ConnectFourPlayers.State(s.board, s.wins, s.pieces + 1, 1 - s.mover), (first, -first), ended

    def observe(s, p, agent, out):
        for row in range(ROWS):
            for column in range(COLUMNS):
                cell = row * COLUMNS + column
                out[cell] = 1.0 if s.board[row, column] == 1 + agent else 0.0
                out[ROWS * COLUMNS + cell] = 1.0 if s.board[row, column] == 2 - agent else 0.0

        for column in range(COLUMNS):
            out[2 * ROWS * COLUMNS + column] = s.wins[agent, column]
            out[(2 * ROWS + 1) * COLUMNS + column] = s.wins[1 - agent, column]

    def action_mask(s, p, agent, out):
        for column in range(COLUMNS):
            out[column] = 1.0 if s.board[0, column] == EMPTY else 0.0

    def render(s, p):
        return drawn(s.board)
