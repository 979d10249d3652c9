"""Catch a falling ball. After bsuite's Catch (Osband et al. 2020, arXiv:1908.03568): ten rows, five columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, i32, randint

ROWS, COLUMNS = 10, 5
CELL = 32  # pixels of a rendered cell
BALL, PADDLE, BACKGROUND = (240, 180, 60), (80, 160, 240), (24, 24, 32)


class Catch(KernelEnv):
    """Move a paddle below a ball that falls one row per step from a random column; reward 1 if caught, -1 if missed.

    An episode takes 9 steps, and only the last one is rewarded. The observation is the board, row by row: 1 at the ball
    and at the paddle, 0 elsewhere. A perfect policy gets 1, a random one about -0.6.
    """

    observation_space = Box(0.0, 1.0, (ROWS * COLUMNS,))
    action_space = Discrete(3)  # left, stay, right
    max_steps = None  # the ball always lands
    render_fps = 5

    class State(NamedTuple):
        row: i32  # of the ball, 0 is the top
        column: i32  # of the ball
        paddle: i32  # column of the paddle, in the bottom row

    def reset(s, p, key):
        return Catch.State(0, randint(key, 0, COLUMNS), COLUMNS // 2)

    def step(s, p, action, key):
        paddle = clip(s.paddle + action - 1, 0, COLUMNS - 1)
        row = s.row + 1
        landed = row == ROWS - 1
        reward = (1.0 if paddle == s.column else -1.0) if landed else 0.0
        return Catch.State(row, s.column, paddle), reward, landed

    def observe(s, p, out):
        ball = s.row * COLUMNS + s.column
        paddle = (ROWS - 1) * COLUMNS + s.paddle
        for cell in range(ROWS * COLUMNS):
            out[cell] = 1.0 if (cell == ball) | (cell == paddle) else 0.0

    def render(s, p):
        board = np.full((ROWS, COLUMNS, 3), BACKGROUND, np.uint8)
        board[ROWS - 1, s.paddle] = PADDLE
        board[s.row, s.column] = BALL
        return board.repeat(CELL, axis=0).repeat(CELL, axis=1)
