"""Drive a weak car out of a valley. Moore 1990; constants of Gymnasium's MountainCar-v0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, cos, f32, uniform

LEFT, RIGHT = -1.2, 0.6  # m: ends of the road; the left one is a wall
MAX_SPEED = 0.07  # m per step
LOW = np.array([LEFT, -MAX_SPEED], np.float32)
HIGH = np.array([RIGHT, MAX_SPEED], np.float32)


class MountainCar(KernelEnv):
    """Rock an underpowered car to and fro until it reaches the flag; reward -1 for each step until then."""

    observation_space = Box(LOW, HIGH)  # position, velocity
    action_space = Discrete(3)  # accelerate left, coast, accelerate right
    max_steps = 200
    gymnasium_id = "MountainCar-v0"

    class Params(NamedTuple):
        force: f32 = 0.001  # m per step^2
        gravity: f32 = 0.0025  # m per step^2
        goal_position: f32 = 0.5  # m
        goal_velocity: f32 = 0.0  # m a step, at least this fast at the flag

    class State(NamedTuple):
        position: f32  # m, the valley's floor is at -pi / 6
        velocity: f32  # m per step

    def reset(s, p, key):
        return MountainCar.State(uniform(key, 0, -0.6, -0.4), 0.0)

    def step(s, p, action, key):
        velocity = s.velocity + (action - 1) * p.force - p.gravity * cos(3.0 * s.position)
        velocity = clip(velocity, -MAX_SPEED, MAX_SPEED)
        position = clip(s.position + velocity, LEFT, RIGHT)
        velocity = 0.0 if (position <= LEFT) & (velocity < 0.0) else velocity
        arrived = (position >= p.goal_position) & (velocity >= p.goal_velocity)
        return MountainCar.State(position, velocity), -1.0, arrived

    def observe(s, p):
        return s.position, s.velocity
