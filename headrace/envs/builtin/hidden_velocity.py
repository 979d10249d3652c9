"""Environments whose observations lack velocities: partially observed, for recurrent policies."""

from __future__ import annotations

import numpy as np

from headrace.data.spaces import Box
from headrace.envs.builtin.cartpole import HIGH, CartPole
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import cos, sin


class CartPoleHidden(KernelEnv):
    """CartPole with positions only: of the cart, m, and the pole's angle, rad."""

    observation_space = Box(-HIGH[::2], HIGH[::2])
    action_space = CartPole.action_space
    max_steps = CartPole.max_steps
    Params, State = CartPole.Params, CartPole.State
    reset, step = CartPole.reset, CartPole.step

    def observe(s, p):
        return s.x, s.angle


class PendulumHidden(KernelEnv):
    """Pendulum with the angle only: its cosine and sine."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Pendulum.action_space
    max_steps = Pendulum.max_steps
    Params, State = Pendulum.Params, Pendulum.State
    reset, step = Pendulum.reset, Pendulum.step

    def observe(s, p):
        return cos(s.angle), sin(s.angle)
