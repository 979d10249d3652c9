"""Balance a pole on a cart. Barto, Sutton & Anderson 1983; constants of Gymnasium's CartPole-v1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import cos, f32, sin, uniform

ANGLE_LIMIT = 12 * 2 * np.pi / 360  # rad: the pole has fallen
POSITION_LIMIT = 2.4  # m: the cart has left the track
HIGH = np.array([2 * POSITION_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)


class CartPole(KernelEnv):
    """Push a cart left or right so that the pole on it stays up; reward 1 per step."""

    observation_space = Box(-HIGH, HIGH)
    action_space = Discrete(2)  # push left, push right
    max_steps = 500
    gymnasium_id = "CartPole-v1"

    class Params(NamedTuple):
        gravity: f32 = 9.8  # m/s^2
        cart_mass: f32 = 1.0  # kg
        pole_mass: f32 = 0.1  # kg
        half_length: f32 = 0.5  # m, of the pole
        force: f32 = 10.0  # N
        tau: f32 = 0.02  # s a step

    class State(NamedTuple):
        x: f32  # m
        velocity: f32  # m/s
        angle: f32  # rad, 0 is upright
        spin: f32  # rad/s

    def reset(s, p, key):
        return CartPole.State(
            uniform(key, 0, -0.05, 0.05),
            uniform(key, 1, -0.05, 0.05),
            uniform(key, 2, -0.05, 0.05),
            uniform(key, 3, -0.05, 0.05),
        )

    def step(s, p, action, key):
        force = p.force if action == 1 else -p.force
        sine = sin(s.angle)
        cosine = cos(s.angle)
        mass = p.cart_mass + p.pole_mass
        moment = p.pole_mass * p.half_length
        push = (force + moment * s.spin * s.spin * sine) / mass
        spin_rate = (p.gravity * sine - cosine * push) / (
            p.half_length * (4.0 / 3.0 - p.pole_mass * cosine * cosine / mass)
        )
        acceleration = push - moment * spin_rate * cosine / mass
        x = s.x + p.tau * s.velocity
        velocity = s.velocity + p.tau * acceleration
        angle = s.angle + p.tau * s.spin
        spin = s.spin + p.tau * spin_rate
        fallen = (abs(x) > POSITION_LIMIT) | (abs(angle) > ANGLE_LIMIT)
        return CartPole.State(x, velocity, angle, spin), 1.0, fallen

    def observe(s, p):
        return s.x, s.velocity, s.angle, s.spin
