"""Swing up a pendulum and keep it upright. Constants of Gymnasium's Pendulum-v1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, cos, f32, floor, sin, uniform

PI = np.pi
MAX_SPIN = 8.0  # rad/s
MAX_TORQUE = 2.0  # N m
HIGH = np.array([1.0, 1.0, MAX_SPIN], np.float32)


class Pendulum(KernelEnv):
    """Turn a hanging pendulum upright with a motor too weak to lift it at once.

    The reward is -(angle^2 + 0.1 spin^2 + 0.001 torque^2) before the step: 0 at best, -16.3 at worst. The angle is kept
    in [-pi, pi], unlike Gymnasium's: the dynamics are the same, and float32 stays precise after many turns.
    """

    observation_space = Box(-HIGH, HIGH)  # cos(angle), sin(angle), spin
    action_space = Box(-MAX_TORQUE, MAX_TORQUE, (1,))  # torque, N m
    max_steps = 200
    gymnasium_id = "Pendulum-v1"

    class Params(NamedTuple):
        gravity: f32 = 10.0  # m/s^2
        mass: f32 = 1.0  # kg
        length: f32 = 1.0  # m
        tau: f32 = 0.05  # s a step

    class State(NamedTuple):
        angle: f32  # rad, 0 is upright
        spin: f32  # rad/s

    def reset(s, p, key):
        return Pendulum.State(uniform(key, 0, -PI, PI), uniform(key, 1, -1.0, 1.0))

    def step(s, p, action, key):
        torque = action[0]
        cost = s.angle * s.angle + 0.1 * s.spin * s.spin + 0.001 * torque * torque
        gravity = 3.0 * p.gravity / (2.0 * p.length) * sin(s.angle)
        motor = 3.0 / (p.mass * p.length * p.length) * torque
        spin = clip(s.spin + (gravity + motor) * p.tau, -MAX_SPIN, MAX_SPIN)
        angle = s.angle + spin * p.tau
        turns = floor((angle + PI) / (2.0 * PI))
        return Pendulum.State(angle - 2.0 * PI * turns, spin), -cost, False

    def observe(s, p):
        return cos(s.angle), sin(s.angle), s.spin

    def from_original(env):
        angle, spin = env.state
        return Pendulum.State((angle + PI) % (2.0 * PI) - PI, spin)

    def to_original(env, state):
        env.state = np.array(state, np.float64)
