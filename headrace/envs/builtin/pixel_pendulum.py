"""Pendulum-v1 with image observations, two frames each."""

from __future__ import annotations

import numpy as np

from headrace.data.spaces import Box
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, cos, sin, sqrt

SIZE = 42  # pixels per side
MIDDLE = 0.5 * (SIZE - 1)  # of the image, where the pivot is
LENGTH, WIDTH = 17.0, 3.6  # of the rod, pixels
HUB = 2.4  # radius of the pivot, pixels
BRIGHT, GRAY = 255.0, 110.0  # of the rod and the pivot; the rest is black


class PixelPendulum(KernelEnv):
    """Turn a hanging pendulum upright, observed as two gray images of 42 x 42 pixels: before and after the last step.

    Physics, actions, rewards and time limit are Pendulum's. The spin follows from both images together: within a
    step the tip of the rod moves by up to seven pixels.
    """

    observation_space = Box(0, 255, (2, SIZE, SIZE), np.uint8)  # the older image, the newer one
    action_space = Pendulum.action_space
    max_steps = Pendulum.max_steps
    frames = 2

    Params = Pendulum.Params
    State = Pendulum.State
    reset = Pendulum.reset
    step = Pendulum.step

    def pixel(s, p, row, column):
        right, up = column - MIDDLE, MIDDLE - row
        # the rod's direction: as in Gymnasium, angles grow counterclockwise
        across, along = -sin(s.angle), cos(s.angle)
        nearest = clip(right * across + up * along, 0.0, LENGTH)
        side, ahead = right - nearest * across, up - nearest * along
        rod = clip(0.5 * (WIDTH + 1.0) - sqrt(side * side + ahead * ahead), 0.0, 1.0)
        hub = clip(HUB + 0.5 - sqrt(right * right + up * up), 0.0, 1.0)
        return BRIGHT * rod * (1.0 - hub) + GRAY * hub
