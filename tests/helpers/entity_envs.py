"""Environments with entities, for tests of the language and of its targets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import (
    any_over,
    argmin_over,
    array,
    boolean,
    f32,
    floor,
    i8,
    i32,
    max_over,
    min_over,
    normal,
    randint,
    sqrt,
    sum_over,
    uniform,
    within,
)

BIRDS, LED = 37, 5  # a number that fills no whole vector


def wrapped(x):
    """A coordinate on a torus of side 1."""
    return x - floor(x)


class Swarm(KernelEnv):
    """Entities on a torus that are drawn to their neighbours; the first few are agents. No branch: for all targets."""

    observation_space = Box(-np.inf, np.inf, (5,))
    action_space = Box(-1.0, 1.0, (2,))
    num_entities = BIRDS
    num_agents = LED
    max_steps = 6

    class Params(NamedTuple):
        reach: f32 = 0.2
        pull: f32 = 0.1

    class State(NamedTuple):
        x: array(f32, BIRDS)
        y: array(f32, BIRDS)
        near_x: array(f32, BIRDS)  # sum of the ways to the neighbours
        near_y: array(f32, BIRDS)
        neighbours: array(i32, BIRDS)
        reward: array(f32, BIRDS)
        kind: array(i8, BIRDS)
        lost: array(boolean, BIRDS)
        spread: f32
        first: i32
        bored: boolean

    def reset(s, p, key):
        return Swarm.State(
            s.x, s.y, s.near_x, s.near_y, s.neighbours, s.reward, s.kind, s.lost, uniform(key, 0, 0.0, 1.0), 0, False
        )

    def place(s, p, i, key):
        s.x[i] = uniform(key, 0, 0.0, 1.0)
        s.y[i] = uniform(key, 1, 0.0, 1.0)
        s.kind[i] = randint(key, 2, 3)
        s.neighbours[i] = 0
        s.lost[i] = False
        s.reward[i] = 0.0

    def sense(s, p, i):
        x, y, count = 0.0, 0.0, 0
        for j in range(BIRDS):
            right, up = s.x[j] - s.x[i], s.y[j] - s.y[i]
            near = (sqrt(right * right + up * up) < p.reach) & (j != i)
            x += right if near else 0.0
            y += up if near else 0.0
            count += 1 if near else 0
        s.near_x[i] = x / max(count, 1)
        s.near_y[i] = y / max(count, 1)
        s.neighbours[i] = count
        s.lost[i] = count == 0

    def move(s, p, i, action, key):
        drawn = min_over(s.neighbours) + sum_over(s.near_x) / BIRDS
        s.x[i] = wrapped(s.x[i] + p.pull * s.near_x[i] + 0.05 * action[0] + normal(key, 0, 0.0, 0.01) + 0.001 * drawn)
        s.y[i] = wrapped(s.y[i] + p.pull * s.near_y[i] + 0.05 * action[1] + uniform(key, 1, -0.01, 0.01) * s.kind[i])
        s.reward[i] = s.neighbours[i] - 0.1 * abs(action[0])

    phases = (sense, move)
    reset_phases = (place, sense)

    def step(s, p, key):
        spread = max_over(s.x) - min_over(s.x)
        bored = sum_over(s.kind) > 2 * BIRDS
        new = s._replace(spread=spread, first=argmin_over(s.y), bored=bored)
        return new, s.reward, (uniform(key, 0, 0.0, 1.0) < 0.1) & any_over(s.lost)

    def observe(s, p, i):
        return s.x[i], s.y[i], s.near_x[i], s.spread + sum_over(s.neighbours), i


class Traffic(KernelEnv):
    """Cars on a ring that the one agent slows down: entities as scenery, with branches and a loop that ends early."""

    observation_space = Box(-np.inf, np.inf, (3,))
    action_space = Discrete(3)
    num_entities = 21
    max_steps = 8

    class State(NamedTuple):
        place: array(f32, 21)
        speed: array(f32, 21)
        gap: array(f32, 21)
        limit: f32

    def reset(s, p, key):
        for i in range(21):
            s.place[i] = i / 21 + uniform(key, i, 0.0, 0.02)
            s.speed[i] = 0.01
        return Traffic.State(s.place, s.speed, s.gap, 0.03)

    def look(s, p, i):
        gap = 1.0
        for j in range(21):
            if j == i:
                continue
            ahead = wrapped(s.place[j] - s.place[i])
            if ahead < gap:
                gap = ahead
        s.gap[i] = gap

    def drive(s, p, i, action, key):
        if s.gap[i] < 0.02:
            s.speed[i] = 0.5 * s.speed[i]
        else:
            s.speed[i] = min(s.speed[i] + 0.001 * (1 + action), s.limit)
        if uniform(key, 0, 0.0, 1.0) < 0.1:
            s.speed[i] *= 0.5
        s.place[i] = wrapped(s.place[i] + s.speed[i])

    phases = (look, drive)

    def step(s, p, action, key):
        mean = sum_over(s.speed) / 21
        return s._replace(limit=0.02 + 0.005 * action), mean, uniform(key, 0, 0.0, 1.0) < 0.1

    def observe(s, p):
        return s.place[0], min_over(s.gap), s.limit


class Ring(KernelEnv):
    """Five entities, three of them agents: small enough for a loop in plain Python over 1,000 states."""

    observation_space = Box(-np.inf, np.inf, (3,))
    action_space = Discrete(3)
    num_entities = 5
    num_agents = 3
    max_steps = 4

    class State(NamedTuple):
        x: array(f32, 5)
        push: array(f32, 5, 2)
        count: array(i32, 5)
        reward: array(f32, 5)
        level: f32

    def reset(s, p, key):
        return s._replace(level=uniform(key, 0, 0.0, 1.0))

    def place(s, p, i, key):
        s.x[i] = uniform(key, i, -1.0, 1.0) + s.level
        s.count[i] = randint(key, 9, 100) - 50
        s.reward[i] = 0.0
        s.push[i, :] = 0.0

    def look(s, p, i):
        for j in range(5):
            if j == i:
                continue
            way = s.x[j] - s.x[i]
            if way > 0.0:
                s.push[i, 0] += way * way
            else:
                s.push[i, 1] -= way / 3.0

    def act(s, p, i, action, key):
        least, total = min_over(s.reward), sum_over(s.reward)
        s.x[i] += 0.1 * s.push[i, 0] - 0.1 * s.push[i, 1] + 0.01 * (action - 1) + normal(key, 3, 0.0, 0.1)
        s.count[i] = (s.count[i] + 7 * i) % 5 if s.x[i] > least else s.count[i] // 3
        s.push[i, 0] = 0.5 * total

    def pay(s, p, i):
        s.reward[i] = s.x[i] - max_over(s.x) + s.count[argmin_over(s.x)]

    phases = (look, act, pay)
    reset_phases = (place,)

    def step(s, p, key):
        return s._replace(level=sum_over(s.x)), s.reward, any_over(s.count) & (uniform(key, 0, 0.0, 1.0) < 0.2)

    def observe(s, p, i):
        return s.x[i], s.count[i], s.level - sum_over(s.reward)


class Gas(KernelEnv):
    """Particles that count those within a radius: few, by their parameter, or nearly all."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Discrete(2)
    num_entities = 500

    class Params(NamedTuple):
        reach: f32 = 0.03

    class State(NamedTuple):
        x: array(f32, 500)
        y: array(f32, 500)
        near: array(i32, 500)
        pull: array(f32, 500)

    def reset(s, p, key):
        return s

    def place(s, p, i, key):
        s.x[i] = uniform(key, 0, -1.0, 1.0)
        s.y[i] = uniform(key, 1, 3.0, 4.0) if i > 3 else s.y[i] * 0.0 + 3.5

    def sense(s, p, i):
        near, pull = 0, 0.0
        for j in within(s.x, s.y, i, p.reach):
            near += 1
            pull += s.x[j] - s.x[i]
        s.near[i] = near
        s.pull[i] = pull

    phases = (sense,)
    reset_phases = (place,)

    def step(s, p, action, key):
        return s, sum_over(s.near), False

    def observe(s, p):
        return sum_over(s.pull), max_over(s.near)


class Crowd(KernelEnv):
    """Agents and others that keep apart, found by within() in a phase with an action, draws, a reduction and fields of
    integers, in a number that fills no whole vector."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-1.0, 1.0, (1,))
    num_entities = 203
    num_agents = 3
    max_steps = 3

    class State(NamedTuple):
        x: array(f32, 203)
        y: array(f32, 203)
        z: array(f32, 203)
        group: array(i32, 203)
        weight: array(i8, 203)
        push: array(f32, 203)
        last: array(i32, 203)
        reward: array(f32, 203)

    def reset(s, p, key):
        return s

    def place(s, p, i, key):
        s.x[i] = uniform(key, 0, -2.0, 2.0)
        s.y[i] = uniform(key, 1, 0.0, 1.0)
        s.z[i] = uniform(key, 2, 0.0, 0.1)
        s.group[i] = randint(key, 3, 3)
        s.weight[i] = randint(key, 4, 5) - 2

    def sense(s, p, i, action, key):
        push, last = 0.0, 0
        if s.group[i] > 0:
            for j in within(s.x, s.y, s.z, i, 0.2):
                if s.group[j] == s.group[i]:
                    push += (s.x[j] - s.x[i]) * s.weight[j] + 0.1 * action[0]
                    last = max(last, j)
        s.push[i] = push + uniform(key, 0, 0.0, 0.1) + sum_over(s.y) / 203
        s.last[i] = last

    def move(s, p, i):
        s.x[i] -= 0.01 * s.push[i]
        s.y[i] += 0.001 * (s.last[i] - i)
        s.reward[i] = s.push[i] + s.last[i]

    phases = (sense, move)
    reset_phases = (place,)

    def step(s, p, key):
        return s, s.reward, False

    def observe(s, p, i):
        return s.x[i], s.y[i] + sum_over(s.push)
