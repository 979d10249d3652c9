"""Catch with image observations."""

from __future__ import annotations

import numpy as np

from headrace.data.spaces import Box
from headrace.envs.builtin.catch import COLUMNS, ROWS, Catch
from headrace.envs.compiled.kernel_env import KernelEnv

CELL = 2  # pixels per side of a cell
BALL, PADDLE = 255.0, 160.0  # gray levels


class PixelCatch(KernelEnv):
    """Catch as a gray image of 20 x 10 pixels, 2 x 2 for each cell: the ball is white, the paddle gray.

    Dynamics and rewards are Catch's: a perfect policy gets 1, a random one about -0.6.
    """

    observation_space = Box(0, 255, (1, ROWS * CELL, COLUMNS * CELL), np.uint8)
    action_space = Catch.action_space
    max_steps = Catch.max_steps
    render_fps = Catch.render_fps

    State = Catch.State
    reset = Catch.reset
    step = Catch.step
    render = Catch.render

    def pixel(s, p, row, column):
        line, place = row // CELL, column // CELL
        ball = (line == s.row) & (place == s.column)
        paddle = (line == ROWS - 1) & (place == s.paddle)
        return BALL if ball else (PADDLE if paddle else 0.0)
