"""Tag on a plane: taggers and runners, each group with a policy of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, MultiDiscrete
from headrace.envs.builtin.entities.drawing import discs, plane
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, boolean, clip, cos, f32, i32, sin, sqrt, uniform

TAGGERS, RUNNERS = 20, 80
PLAYERS = TAGGERS + RUNNERS
PI = 3.14159265
FAR = 1e6  # m^2: a squared distance larger than any other
PIXELS = 320  # pixels per side of a rendered image
RED, GREEN = (230, 90, 70), (90, 200, 130)
NAMES = tuple(f"tagger_{k}" for k in range(TAGGERS)), tuple(f"runner_{k}" for k in range(RUNNERS))


class Tag(KernelEnv):
    """20 taggers chase 80 runners on a square of 40 m with walls, for 100 steps.

    After TagContinuous of WarpDrive (Lan et al. 2022, JMLR 23(43)): every agent accelerates and turns. A runner within
    `reach` of a tagger is tagged: it gets -1 and the nearest tagger +1. Its next step takes it to a random place, so
    that no agent leaves the game, unlike in WarpDrive. Taggers are faster, runners turn more quickly. At a wall an
    agent only keeps its speed along the wall.

    The actions are an acceleration (brake, none, accelerate) and a turn (left, none, right). An agent observes its own
    speed, and vectors with components forward and to the left: to the middle, to the nearest agent of the other group
    and that agent's velocity, and to the nearest agent of its own group. Lengths are in units of 10 m, speeds in units
    of the tagger's.
    """

    observation_space = Box(-np.inf, np.inf, (9,))
    action_space = MultiDiscrete([3, 3])
    num_entities = PLAYERS
    num_agents = PLAYERS
    agents = NAMES[0] + NAMES[1]
    groups = {"taggers": NAMES[0], "runners": NAMES[1]}  # noqa: RUF012
    max_steps = 100
    render_fps = 15

    class Params(NamedTuple):
        side: f32 = 40.0  # m
        reach: f32 = 0.6  # m
        tagger_speed: f32 = 0.6  # m per step, the highest
        runner_speed: f32 = 0.5
        tagger_turn: f32 = 0.3  # radians per step
        runner_turn: f32 = 0.6
        acceleration: f32 = 0.1  # m per step^2

    class State(NamedTuple):
        x: array(f32, PLAYERS)  # m, 0 .. side
        y: array(f32, PLAYERS)
        right: array(f32, PLAYERS)  # direction, a unit vector
        up: array(f32, PLAYERS)
        speed: array(f32, PLAYERS)  # m per step
        other: array(i32, PLAYERS)  # the nearest of the other group
        mate: array(i32, PLAYERS)  # the nearest of the own group
        tagged: array(boolean, PLAYERS)  # in the last step
        reward: array(f32, PLAYERS)

    def reset(s, p, key):
        return s

    def place(s, p, i, key):
        heading = uniform(key, 2, -PI, PI)
        s.x[i] = uniform(key, 0, 0.0, p.side)
        s.y[i] = uniform(key, 1, 0.0, p.side)
        s.right[i] = cos(heading)
        s.up[i] = sin(heading)
        s.speed[i] = 0.0
        s.tagged[i] = False

    def move(s, p, i, action, key):
        tags = i < TAGGERS
        turn = (p.tagger_turn if tags else p.runner_turn) * (1 - action[1])
        fastest = p.tagger_speed if tags else p.runner_speed
        speed = clip(s.speed[i] + p.acceleration * (action[0] - 1), 0.0, fastest)
        right = cos(turn) * s.right[i] - sin(turn) * s.up[i]
        up = sin(turn) * s.right[i] + cos(turn) * s.up[i]
        scale = 1.0 / sqrt(right * right + up * up)  # so that rounding does not add up
        x, y = clip(s.x[i] + speed * scale * right, 0.0, p.side), clip(s.y[i] + speed * scale * up, 0.0, p.side)
        s.right[i] = scale * right
        s.up[i] = scale * up
        s.speed[i] = 0.0 if s.tagged[i] else speed
        s.x[i] = uniform(key, 0, 0.0, p.side) if s.tagged[i] else x
        s.y[i] = uniform(key, 1, 0.0, p.side) if s.tagged[i] else y

    def sense(s, p, i):
        other, mate, nearest, nearest_mate = 0, 0, FAR, FAR
        for j in range(PLAYERS):
            right, up = s.x[j] - s.x[i], s.y[j] - s.y[i]
            squared = right * right + up * up
            nearer = ((i < TAGGERS) != (j < TAGGERS)) & (squared < nearest)
            other = j if nearer else other
            nearest = squared if nearer else nearest
            nearer_mate = ((i < TAGGERS) == (j < TAGGERS)) & (j != i) & (squared < nearest_mate)
            mate = j if nearer_mate else mate
            nearest_mate = squared if nearer_mate else nearest_mate
        s.other[i] = other
        s.mate[i] = mate
        s.tagged[i] = (i >= TAGGERS) & (nearest < p.reach * p.reach)

    def judge(s, p, i):
        tags = 0.0
        for j in range(PLAYERS):
            tags += 1.0 if s.tagged[j] & (s.other[j] == i) else 0.0
        s.reward[i] = -1.0 if s.tagged[i] else tags

    phases = (move, sense, judge)
    reset_phases = (place, sense)

    def step(s, p, key):
        return s, s.reward, False

    def observe(s, p, i):
        right, up, other, mate = s.right[i], s.up[i], s.other[i], s.mate[i]
        middle_x, middle_y = 0.5 * p.side - s.x[i], 0.5 * p.side - s.y[i]
        other_x, other_y = s.x[other] - s.x[i], s.y[other] - s.y[i]
        mate_x, mate_y = s.x[mate] - s.x[i], s.y[mate] - s.y[i]
        other_speed = s.speed[other] / p.tagger_speed
        return (
            s.speed[i] / p.tagger_speed,
            0.1 * (right * middle_x + up * middle_y),
            0.1 * (right * middle_y - up * middle_x),
            0.1 * (right * other_x + up * other_y),
            0.1 * (right * other_y - up * other_x),
            other_speed * (right * s.right[other] + up * s.up[other]),
            other_speed * (right * s.up[other] - up * s.right[other]),
            0.1 * (right * mate_x + up * mate_y),
            0.1 * (right * mate_y - up * mate_x),
        )

    def render(s, p):
        image = plane(PIXELS)
        x, y, right, up = (np.asarray(field) for field in s[:4])
        for which, color, radius in ((slice(TAGGERS, None), GREEN, 3), (slice(TAGGERS), RED, 5)):
            for behind, size in ((1.0, 1), (0.7, 2), (0.4, 2), (0.0, radius)):  # a tail, then the player; m, pixels
                at = (x - behind * right)[which] / p.side, (y - behind * up)[which] / p.side
                discs(image, *at, size, color)
        return image
