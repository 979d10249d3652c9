"""Connect Four between two agents, who take turns: for self-play."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.builtin.connect_four import CELL, COLORS, COLUMNS, EMPTY, ROWS, height, wins
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, i8, i32, randint

MOST_RANDOM = 6  # moves after which nobody can have won, and in which no column overflows


def winning(board, column, who):
    """1 where a piece of a player that is dropped into a column wins, else 0."""
    row = ROWS - 1 - height(board, column)
    return 1 if row >= 0 and wins(board, row, column, who) else 0


class ConnectFourPlayers(KernelEnv):
    """Two agents drop pieces into 7 columns of 6 by turns; four in a line win: reward 1, of the other -1.

    `mover` in the state is the agent whose turn it is, and the action of the other one is not read. The observation is
    the board from the top row down: the agent's own pieces (42 entries), then those of the other (42); then in which
    columns a piece wins at once, an own one (7 entries) and one of the other (7). Full columns are forbidden by the
    action mask, and a piece dropped there loses the game. `random_moves`, up to 6: a game begins after 0 to so many
    moves at random, each number as likely as the others; the first move is player_0's.
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
        mover: i32  # the agent whose turn it is

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
        image = np.zeros((ROWS, COLUMNS, 3), np.uint8)
        for value, color in COLORS.items():
            image[np.asarray(s.board) == value] = color
        return image.repeat(CELL, axis=0).repeat(CELL, axis=1)
