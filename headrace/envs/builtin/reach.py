"""Move a gripper to a goal in space, with a reward only at the goal. After FetchReach (Plappert et al. 2018,
arXiv:1802.09464), with a point mass in place of the arm."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Dict
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, f32, sqrt, uniform

SIDE = 0.15  # m: goals lie within this of the start in each direction, as FetchReach's
LIMIT = 0.3  # m: the gripper stays within this of the center
REACHED = 0.05  # m: distance at which a goal is reached, FetchReach's


class Reach(KernelEnv):
    """Accelerate a gripper along three axes. The reward is 0 within 5 cm of the goal, and -1 elsewhere. Episodes take
    50 steps.

    The gripper starts at rest in the center, and the goal is drawn from a cube of 30 cm around it. The observation is
    the velocity, in m per step; goals are positions in m. A trained policy gets about -3, a random one about -48.
    """

    observation_space = Dict(
        {
            "observation": Box(-np.inf, np.inf, (3,)),
            "achieved_goal": Box(-LIMIT, LIMIT, (3,)),
            "desired_goal": Box(-LIMIT, LIMIT, (3,)),
        }
    )
    action_space = Box(-1.0, 1.0, (3,))
    max_steps = 50

    class Params(NamedTuple):
        acceleration: f32 = 0.01  # m per step^2, of a full action
        friction: f32 = 0.3  # fraction of the velocity that is lost in a step

    class State(NamedTuple):
        x: f32  # m
        y: f32
        z: f32
        vx: f32  # m per step
        vy: f32
        vz: f32
        gx: f32  # the goal, m
        gy: f32
        gz: f32

    def reset(s, p, key):
        goal = uniform(key, 0, -SIDE, SIDE), uniform(key, 1, -SIDE, SIDE), uniform(key, 2, -SIDE, SIDE)
        return Reach.State(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, goal[0], goal[1], goal[2])

    def step(s, p, action, key):
        vx = (1.0 - p.friction) * s.vx + p.acceleration * action[0]
        vy = (1.0 - p.friction) * s.vy + p.acceleration * action[1]
        vz = (1.0 - p.friction) * s.vz + p.acceleration * action[2]
        x = clip(s.x + vx, -LIMIT, LIMIT)
        y = clip(s.y + vy, -LIMIT, LIMIT)
        z = clip(s.z + vz, -LIMIT, LIMIT)
        distance = sqrt((x - s.gx) * (x - s.gx) + (y - s.gy) * (y - s.gy) + (z - s.gz) * (z - s.gz))
        reward = 0.0 if distance < REACHED else -1.0
        return Reach.State(x, y, z, vx, vy, vz, s.gx, s.gy, s.gz), reward, False

    def observe(s, p):
        return s.vx, s.vy, s.vz, s.x, s.y, s.z, s.gx, s.gy, s.gz

    def compute_reward(achieved, desired):
        return ((achieved - desired).norm(dim=-1) < REACHED).float() - 1
