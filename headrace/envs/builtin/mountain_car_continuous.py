"""Drive a weak car out of a valley by a continuous force. Constants of Gymnasium's MountainCarContinuous-v0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, cos, f32, uniform

LEFT, RIGHT = -1.2, 0.6  # m: ends of the road; the left one is a wall
MAX_SPEED = 0.07  # m per step
LOW = np.array([LEFT, -MAX_SPEED], np.float32)
HIGH = np.array([RIGHT, MAX_SPEED], np.float32)


class MountainCarContinuous(KernelEnv):
    """Reach the flag: reward 100, minus 0.1 force^2 for each step. A policy that never moves gets 0.

    The cost is that of the clipped force; Gymnasium's takes the force before clipping to [-1, 1].
    """

    observation_space = Box(LOW, HIGH)  # position, velocity
    action_space = Box(-1.0, 1.0, (1,))  # force, as a fraction of the maximum
    max_steps = 999
    gymnasium_id = "MountainCarContinuous-v0"

    class Params(NamedTuple):
        power: f32 = 0.0015  # m a step^2
        gravity: f32 = 0.0025  # m a step^2
        goal_position: f32 = 0.45  # m
        goal_velocity: f32 = 0.0  # m a step, at least this fast at the flag

    class State(NamedTuple):
        position: f32  # m, the valley's floor is at -pi / 6
        velocity: f32  # m per step

    def reset(s, p, key):
        return MountainCarContinuous.State(uniform(key, 0, -0.6, -0.4), 0.0)

    def step(s, p, action, key):
        force = action[0]
        velocity = s.velocity + force * p.power - p.gravity * cos(3.0 * s.position)
        velocity = clip(velocity, -MAX_SPEED, MAX_SPEED)
        position = clip(s.position + velocity, LEFT, RIGHT)
        velocity = 0.0 if (position <= LEFT) & (velocity < 0.0) else velocity
        arrived = (position >= p.goal_position) & (velocity >= p.goal_velocity)
        reward = (100.0 if arrived else 0.0) - 0.1 * force * force
        return MountainCarContinuous.State(position, velocity), reward, arrived

    def observe(s, p):
        return s.position, s.velocity
