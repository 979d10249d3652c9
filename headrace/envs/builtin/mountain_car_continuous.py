"""Drive a weak car out of a valley by a continuous force. Constants of Gymnasium's MountainCarContinuous-v0."""

from __future__ import annotations

from typing import NamedTuple

from headrace.data.spaces import Box
from headrace.envs.builtin.mountain_car import LEFT, MAX_SPEED, RIGHT, MountainCar
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, cos, f32


class MountainCarContinuous(KernelEnv):
    """Reach the flag: reward 100, minus 0.1 force^2 for each step. A policy that never moves gets 0.

    The cost is computed from the clipped force; Gymnasium's uses the force before clipping to [-1, 1].
    """

    observation_space = MountainCar.observation_space  # position, velocity
    action_space = Box(-1.0, 1.0, (1,))  # force, as a fraction of the maximum
    max_steps = 999
    gymnasium_id = "MountainCarContinuous-v0"

    class Params(NamedTuple):
        power: f32 = 0.0015  # m a step^2
        gravity: f32 = 0.0025  # m a step^2
        goal_position: f32 = 0.45  # m
        goal_velocity: f32 = 0.0  # m a step, at least this fast at the flag

    State, reset, observe = MountainCar.State, MountainCar.reset, MountainCar.observe

    def step(s, p, action, key):
        force = action[0]
        velocity = s.velocity + force * p.power - p.gravity * cos(3.0 * s.position)
        velocity = clip(velocity, -MAX_SPEED, MAX_SPEED)
        position = clip(s.position + velocity, LEFT, RIGHT)
        velocity = 0.0 if (position <= LEFT) & (velocity < 0.0) else velocity
        arrived = (position >= p.goal_position) & (velocity >= p.goal_velocity)
        reward = (100.0 if arrived else 0.0) - 0.1 * force * force
        return MountainCarContinuous.State(position, velocity), reward, arrived
