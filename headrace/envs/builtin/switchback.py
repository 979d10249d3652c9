"""Follow a path of hairpin bends to its end: a sparse reward that random actions do not find."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, i32

SIZE = 15
LANE = 4  # rows of a lane, the wall after it included
GAP = 3  # cells of the gap at the end of a wall
CELL = 20  # pixels of a rendered cell
FREE, WALL, AGENT, GOAL = (24, 24, 32), (110, 110, 120), (80, 160, 240), (240, 180, 60)


class Switchback(KernelEnv):
    """Walk four lanes of a 15 x 15 board, from the upper left corner to the lower left one. The reward is 1 there,
    which ends the episode, and 0 before.

    Walls divide the lanes, with a gap on the right, on the left and on the right. The shortest path takes 58 steps. The
    observation is the agent's row and column, one-hot. A step into a wall or the edge leaves the agent where it is.
    """

    observation_space = Box(0.0, 1.0, (2 * SIZE,))
    action_space = Discrete(4)  # up, down, left, right
    max_steps = 200
    render_fps = 16

    class State(NamedTuple):
        row: i32
        column: i32

    def reset(s, p, key):
        return Switchback.State(0, 0)

    def step(s, p, action, key):
        down = (1 if action == 1 else 0) - (1 if action == 0 else 0)
        right = (1 if action == 3 else 0) - (1 if action == 2 else 0)
        row = clip(s.row + down, 0, SIZE - 1)
        column = clip(s.column + right, 0, SIZE - 1)
        on_right = row // LANE % 2 == 0  # the gap of this row's wall, if it is one
        gap = column >= SIZE - GAP if on_right else column < GAP
        blocked = (row % LANE == LANE - 1) & (not gap)
        row = s.row if blocked else row
        column = s.column if blocked else column
        done = (row == SIZE - 1) & (column == 0)
        return Switchback.State(row, column), 1.0 if done else 0.0, done

    def observe(s, p, out):
        for i in range(SIZE):
            out[i] = 1.0 if i == s.row else 0.0
            out[SIZE + i] = 1.0 if i == s.column else 0.0

    def render(s, p):
        image = np.full((SIZE, SIZE, 3), FREE, np.uint8)
        for wall in range(LANE - 1, SIZE, LANE):
            first = 0 if wall // LANE % 2 == 0 else GAP
            image[wall, first : first + SIZE - GAP] = WALL
        image[SIZE - 1, 0] = GOAL
        image[s.row, s.column] = AGENT
        return image.repeat(CELL, axis=0).repeat(CELL, axis=1)
