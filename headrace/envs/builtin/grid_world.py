"""Collect pills on a board with walls: an environment whose state is an array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, clip, i8, i32, randint

SIZE = 8
VIEW = 2 * SIZE - 1  # cells per side of the view, with the agent in the middle: the whole board from any corner
FREE, WALL, PILL = 0, -1, 1
CELL = 32  # pixels of a rendered cell
COLORS = {FREE: (24, 24, 32), WALL: (110, 110, 120), PILL: (240, 180, 60)}
AGENT = (80, 160, 240)


class GridWorld(KernelEnv):
    """Walk over an 8 x 8 board and collect its pills; reward 1 for each, and the episode ends with the last one.

    Every episode has a new board. Each cell is a wall with probability 1/8 and a pill with probability 1/8, the agent's
    corner is free, and the opposite corner has a pill. A board has 8.75 pills on average. If walls enclose some of
    them, the episode ends after 100 steps. A step into a wall or the edge leaves the agent where it is.

    The observation is the board centered on the agent, row by row: 15 x 15 cells (wall and outside -1, free 0, pill 1).
    So what a policy learns in one place also applies in others.
    """

    observation_space = Box(-1.0, 1.0, (VIEW * VIEW,))
    action_space = Discrete(4)  # up, down, left, right
    max_steps = 100
    render_fps = 8

    class State(NamedTuple):
        board: array(i8, SIZE, SIZE)  # wall -1, free 0, pill 1
        row: i32  # of the agent
        column: i32  # of the agent
        pills: i32  # left on the board

    def reset(s, p, key):
        pills = 0
        for row in range(SIZE):
            for column in range(SIZE):
                draw = randint(key, row * SIZE + column, 8)
                s.board[row, column] = WALL if draw == 0 else (PILL if draw == 1 else FREE)
        s.board[0, 0] = FREE
        s.board[SIZE - 1, SIZE - 1] = PILL
        for row in range(SIZE):
            for column in range(SIZE):
                pills += 1 if s.board[row, column] == PILL else 0
        return GridWorld.State(s.board, 0, 0, pills)

    def step(s, p, action, key):
        down = (1 if action == 1 else 0) - (1 if action == 0 else 0)
        right = (1 if action == 3 else 0) - (1 if action == 2 else 0)
        row = clip(s.row + down, 0, SIZE - 1)
        column = clip(s.column + right, 0, SIZE - 1)
        if s.board[row, column] == WALL:
            row = s.row
            column = s.column
        found = 1 if s.board[row, column] == PILL else 0
        s.board[row, column] = FREE
        pills = s.pills - found
        return GridWorld.State(s.board, row, column, pills), found, pills == 0

    def observe(s, p, out):
        for i in range(VIEW):
            for j in range(VIEW):
                row = s.row + i - (SIZE - 1)
                column = s.column + j - (SIZE - 1)
                inside = (row >= 0) & (row < SIZE) & (column >= 0) & (column < SIZE)
                out[i * VIEW + j] = s.board[row, column] if inside else WALL

    def render(s, p):
        image = np.zeros((SIZE, SIZE, 3), np.uint8)
        for value, color in COLORS.items():
            image[np.asarray(s.board) == value] = color
        image[s.row, s.column] = AGENT
        return image.repeat(CELL, axis=0).repeat(CELL, axis=1)
