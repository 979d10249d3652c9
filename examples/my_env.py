"""Collect: an agent on a board collects fruit. An environment of your own; train with

headrace train ppo examples/my_env.py:Collect
"""

from typing import NamedTuple

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, clip, i8, i32, randint, select

SIZE = 6
FRUITS = 5


def place(board, key, draw):
    """Put a fruit on a random square. If it already has one, nothing changes."""
    square = randint(key, draw, SIZE * SIZE)
    board[square // SIZE, square % SIZE] = 1


class Collect(KernelEnv):
    """Reward 1 for each fruit eaten; a new one appears elsewhere. The agent observes the board and its own position."""

    observation_space = Box(0.0, 1.0, (2 * SIZE * SIZE,))
    action_space = Discrete(4)  # up, down, left, right
    max_steps = 50

    class State(NamedTuple):
        board: array(i8, SIZE, SIZE)  # 1 where a fruit lies
        row: i32
        column: i32

    def reset(s, p, key):
        s.board[:] = 0
        for fruit in range(FRUITS):
            place(s.board, key, fruit)
        return Collect.State(s.board, 0, 0)

    def step(s, p, action, key):
        row = clip(s.row + select(action == 1, 1, 0) - select(action == 0, 1, 0), 0, SIZE - 1)
        column = clip(s.column + select(action == 3, 1, 0) - select(action == 2, 1, 0), 0, SIZE - 1)
        reward = 0.0
        if s.board[row, column] == 1:
            reward = 1.0
            s.board[row, column] = 0
            place(s.board, key, 0)
        return Collect.State(s.board, row, column), reward, False

    def observe(s, p, out):
        for square in range(SIZE * SIZE):
            out[square] = s.board[square // SIZE, square % SIZE]
            out[SIZE * SIZE + square] = 0.0
        out[SIZE * SIZE + s.row * SIZE + s.column] = 1.0
