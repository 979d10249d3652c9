"""Pursuit and evasion on a torus: a zero-sum environment of two agents, for self-play."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import f32, floor, sqrt, uniform

PIXELS = 240  # pixels per side of a rendered image
BACKGROUND, RED, GREEN = (24, 24, 32), (230, 90, 70), (90, 200, 130)


def apart(here, there):
    """The shortest displacement from one coordinate to another, in [-0.5, 0.5)."""
    way = there - here
    return way - floor(way + 0.5)


def steered(right, up, action, speed, agility):
    """A velocity after a step, which approaches the action's velocity by the fraction `agility`."""
    wanted_right = speed * ((1.0 if action == 1 else 0.0) - (1.0 if action == 2 else 0.0))
    wanted_up = speed * ((1.0 if action == 3 else 0.0) - (1.0 if action == 4 else 0.0))
    return right + agility * (wanted_right - right), up + agility * (wanted_up - up)


class Pursuit(KernelEnv):
    """A pursuer and an evader on a torus of side 1; the pursuer is faster, the evader turns more quickly.

    Both act at once: stay, or move in one of four directions. An episode ends when their distance is below `reach`. The
    pursuer's reward is the decrease of the distance, plus 1 for a catch; the evader's is the negative of this. With a
    catch the pursuer's return is 1 plus the initial distance. Without one it is the decrease of the distance, about 0.

    An agent observes the displacement to the other (right and up, in units of half the side), both velocities, its own
    first (in units of the pursuer's speed), and its number (pursuer 0, evader 1). So one policy can act for both.
    """

    observation_space = Box(-2.0, 2.0, (7,))
    action_space = Discrete(5)  # stay, right, left, up, down
    max_steps = 100
    render_fps = 15
    num_agents = 2
    agents = ("pursuer", "evader")

    class Params(NamedTuple):
        pursuer_speed: f32 = 0.05  # sides per step
        evader_speed: f32 = 0.035
        pursuer_agility: f32 = 0.25  # fraction of a change of velocity per step
        evader_agility: f32 = 0.7
        reach: f32 = 0.06  # sides

    class State(NamedTuple):
        pursuer_x: f32  # sides, 0 .. 1
        pursuer_y: f32
        pursuer_right: f32  # velocity, sides per step
        pursuer_up: f32
        evader_x: f32
        evader_y: f32
        evader_right: f32
        evader_up: f32

    def reset(s, p, key):
        # between a fifth and a half of the side apart, along both axes
        x, y = uniform(key, 0, 0.0, 1.0), uniform(key, 1, 0.0, 1.0)
        right, up = uniform(key, 2, 0.2, 0.8), uniform(key, 3, 0.2, 0.8)
        return Pursuit.State(x, y, 0.0, 0.0, x + right - floor(x + right), y + up - floor(y + up), 0.0, 0.0)

    def step(s, p, action, key):
        right, up = apart(s.pursuer_x, s.evader_x), apart(s.pursuer_y, s.evader_y)
        before = sqrt(right * right + up * up)
        pursuer_right, pursuer_up = steered(
            s.pursuer_right, s.pursuer_up, action[0], p.pursuer_speed, p.pursuer_agility
        )
        evader_right, evader_up = steered(s.evader_right, s.evader_up, action[1], p.evader_speed, p.evader_agility)
        pursuer_x, pursuer_y = s.pursuer_x + pursuer_right, s.pursuer_y + pursuer_up
        evader_x, evader_y = s.evader_x + evader_right, s.evader_y + evader_up
        right, up = apart(pursuer_x, evader_x), apart(pursuer_y, evader_y)
        distance = sqrt(right * right + up * up)
        caught = distance < p.reach
        gain = before - distance + (1.0 if caught else 0.0)
        new = Pursuit.State(
            pursuer_x - floor(pursuer_x),
            pursuer_y - floor(pursuer_y),
            pursuer_right,
            pursuer_up,
            evader_x - floor(evader_x),
            evader_y - floor(evader_y),
            evader_right,
            evader_up,
        )
        return new, (gain, -gain), caught

    def observe(s, p, agent):
        evades = agent == 1
        side = -2.0 if evades else 2.0
        right, up = side * apart(s.pursuer_x, s.evader_x), side * apart(s.pursuer_y, s.evader_y)
        scale = 1.0 / p.pursuer_speed
        own_right = scale * (s.evader_right if evades else s.pursuer_right)
        own_up = scale * (s.evader_up if evades else s.pursuer_up)
        its_right = scale * (s.pursuer_right if evades else s.evader_right)
        its_up = scale * (s.pursuer_up if evades else s.evader_up)
        return right, up, own_right, own_up, its_right, its_up, agent

    def render(s, p):
        y, x = (np.mgrid[0:PIXELS, 0:PIXELS] + 0.5) / PIXELS
        image = np.full((PIXELS, PIXELS, 3), BACKGROUND, np.uint8)
        players = ((s.evader_x, s.evader_y, p.reach / 3, GREEN), (s.pursuer_x, s.pursuer_y, p.reach * 2 / 3, RED))
        for place_x, place_y, radius, color in players:
            right, up = (x - place_x + 0.5) % 1.0 - 0.5, (1.0 - y - place_y + 0.5) % 1.0 - 0.5
            image[right * right + up * up < radius * radius] = color
        return image
