"""Swing up a two-link arm with a torque at the elbow. Sutton 1996; constants of Gymnasium's Acrobot-v1 ("book")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, cos, f32, floor, sin, uniform

PI = np.pi
MAX_SPIN1 = 4.0 * PI  # rad/s
MAX_SPIN2 = 9.0 * PI  # rad/s
HIGH = np.array([1.0, 1.0, 1.0, 1.0, MAX_SPIN1, MAX_SPIN2], np.float32)


def accelerations(p, torque, angle1, angle2, spin1, spin2):
    """Angular accelerations of both joints. Sutton & Barto 1998, section 11.3.

    cos(x - pi/2) of the book is sin(x) here.
    """
    reach = p.mass2 * p.length1 * p.center2
    sine2 = sin(angle2)
    cosine2 = cos(angle2)
    inertia2 = p.mass2 * p.center2 * p.center2 + p.inertia
    coupling = inertia2 + reach * cosine2
    inertia1 = (
        p.mass1 * p.center1 * p.center1
        + p.mass2 * (p.length1 * p.length1 + p.center2 * p.center2)
        + 2.0 * reach * cosine2
        + 2.0 * p.inertia
    )
    weight2 = p.mass2 * p.center2 * p.gravity * sin(angle1 + angle2)
    weight1 = (p.mass1 * p.center1 + p.mass2 * p.length1) * p.gravity * sin(angle1) + weight2
    load1 = weight1 - reach * sine2 * (spin2 * spin2 + 2.0 * spin2 * spin1)
    load2 = weight2 + reach * sine2 * spin1 * spin1
    acceleration2 = (torque + coupling / inertia1 * load1 - load2) / (inertia2 - coupling * coupling / inertia1)
    acceleration1 = -(coupling * acceleration2 + load1) / inertia1
    return acceleration1, acceleration2


def wrapped(angle):
    """The same angle in [-pi, pi]."""
    return angle - 2.0 * PI * floor((angle + PI) / (2.0 * PI))


class Acrobot(KernelEnv):
    """Raise the tip of a hanging two-link arm above its shoulder by one link; reward -1 for each step until then."""

    observation_space = Box(-HIGH, HIGH)  # cos and sin of both angles, both spins
    action_space = Discrete(3)  # torque -1, 0, 1 N m on the elbow
    max_steps = 500
    gymnasium_id = "Acrobot-v1"

    class Params(NamedTuple):
        gravity: f32 = 9.8  # m/s^2
        length1: f32 = 1.0  # m
        mass1: f32 = 1.0  # kg
        mass2: f32 = 1.0  # kg
        center1: f32 = 0.5  # m, from the joint to the link's center of mass
        center2: f32 = 0.5  # m
        inertia: f32 = 1.0  # kg m^2, of each link
        tau: f32 = 0.2  # s per step

    class State(NamedTuple):
        angle1: f32  # rad, 0 hangs down
        angle2: f32  # rad, relative to the first link
        spin1: f32  # rad/s
        spin2: f32  # rad/s

    def reset(s, p, key):
        return Acrobot.State(
            uniform(key, 0, -0.1, 0.1),
            uniform(key, 1, -0.1, 0.1),
            uniform(key, 2, -0.1, 0.1),
            uniform(key, 3, -0.1, 0.1),
        )

    def step(s, p, action, key):
        # One step of the classical Runge-Kutta method: spins (u, v) and accelerations (a, b) at four points
        torque = action - 1.0
        half = 0.5 * p.tau
        u1 = s.spin1
        v1 = s.spin2
        a1, b1 = accelerations(p, torque, s.angle1, s.angle2, u1, v1)
        u2 = s.spin1 + half * a1
        v2 = s.spin2 + half * b1
        a2, b2 = accelerations(p, torque, s.angle1 + half * u1, s.angle2 + half * v1, u2, v2)
        u3 = s.spin1 + half * a2
        v3 = s.spin2 + half * b2
        a3, b3 = accelerations(p, torque, s.angle1 + half * u2, s.angle2 + half * v2, u3, v3)
        u4 = s.spin1 + p.tau * a3
        v4 = s.spin2 + p.tau * b3
        a4, b4 = accelerations(p, torque, s.angle1 + p.tau * u3, s.angle2 + p.tau * v3, u4, v4)
        sixth = p.tau / 6.0
        angle1 = wrapped(s.angle1 + sixth * (u1 + 2.0 * u2 + 2.0 * u3 + u4))
        angle2 = wrapped(s.angle2 + sixth * (v1 + 2.0 * v2 + 2.0 * v3 + v4))
        spin1 = clip(s.spin1 + sixth * (a1 + 2.0 * a2 + 2.0 * a3 + a4), -MAX_SPIN1, MAX_SPIN1)
        spin2 = clip(s.spin2 + sixth * (b1 + 2.0 * b2 + 2.0 * b3 + b4), -MAX_SPIN2, MAX_SPIN2)
        raised = -cos(angle1) - cos(angle1 + angle2) > 1.0
        return Acrobot.State(angle1, angle2, spin1, spin2), 0.0 if raised else -1.0, raised

    def observe(s, p):
        return cos(s.angle1), sin(s.angle1), cos(s.angle2), sin(s.angle2), s.spin1, s.spin2
