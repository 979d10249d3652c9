"""Birds that fly in a flock by the rules of Reynolds (1987), and birds among them that learn to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.data.spaces import Box
from headrace.envs.builtin.entities.drawing import discs, plane
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, atan2, clip, cos, f32, floor, normal, sin, sqrt, uniform

BIRDS = 64
PI = 3.14159265
PIXELS = 320  # pixels per side of a rendered image
RULED, LEARNED = (110, 150, 200), (240, 180, 60)  # colors


def apart(here, there):
    """The shortest displacement from one coordinate to another on the torus, in [-0.5, 0.5)."""
    way = there - here
    return way - floor(way + 0.5)


def flock_state(num_birds: int) -> Any:
    """Make the State of a flock of `num_birds` birds, with an entry for each bird in every field."""
    names = "x y right up centre_x centre_y along_x along_y away_x away_y neighbours reward"
    # x, y: sides, 0 .. 1; right, up: direction of flight, a unit vector; the others: see sense
    return NamedTuple("State", [(name, array(f32, num_birds)) for name in names.split()])  # type: ignore[misc]


class Flock(KernelEnv):
    """64 birds on a torus of side 1. The first quarter learns to fly with the others.

    All fly at the same speed, and turn by at most `turn` in a step. Birds that do not learn follow the rules of
    Reynolds (1987), "Flocks, Herds, and Schools". They turn to the mean direction of their neighbours, to their centre,
    and away from neighbours that are too near, with some noise. The action of a learning bird is its turn, in units of
    `turn`.

    Its reward is the mean cosine between its direction and its neighbours', 0 without neighbours, minus `crowding` for
    each that is too near. Its observation has vectors with components forward and to the left: to its neighbours'
    centre (in units of `reach`), their mean direction, and the sum of vectors from those too near (in units of `near`).
    The last entry is a sixteenth of the number of its neighbours.

    For another number of birds, a multiple of 4, make a subclass with the State of that size:

        class LargeFlock(Flock):
            num_entities, num_agents = 1024, 256
            State = flock_state(1024)
    """

    observation_space = Box(-np.inf, np.inf, (7,))
    action_space = Box(-1.0, 1.0, (1,))
    num_entities = BIRDS
    num_agents = BIRDS // 4
    max_steps = 200
    State = flock_state(BIRDS)

    class Params(NamedTuple):
        reach: f32 = 0.12  # side lengths; nearer birds are neighbours
        near: f32 = 0.03  # side lengths; nearer birds are too near
        speed: f32 = 0.01  # side lengths per step
        turn: f32 = 0.35  # radians
        noise: f32 = 0.1  # radians, of the birds that do not learn
        cohesion: f32 = 0.5  # weight of the way to the centre, with 1 for the mean direction
        separation: f32 = 1.0  # weight of the ways from those too near
        crowding: f32 = 0.25

    def reset(s, p, key):
        return s

    def place(s, p, i, key):
        heading = uniform(key, 2, -PI, PI)
        s.x[i] = uniform(key, 0, 0.0, 1.0)
        s.y[i] = uniform(key, 1, 0.0, 1.0)
        s.right[i] = cos(heading)
        s.up[i] = sin(heading)

    def sense(s, p, i):
        centre_x, centre_y, along_x, along_y, away_x, away_y = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        neighbours, crowd = 0.0, 0.0
        for j in range(len(s.x)):
            right, up = apart(s.x[i], s.x[j]), apart(s.y[i], s.y[j])
            squared = right * right + up * up
            seen = 1.0 if (squared < p.reach * p.reach) & (j != i) else 0.0
            close = 1.0 if (squared < p.near * p.near) & (j != i) else 0.0
            centre_x += seen * right
            centre_y += seen * up
            along_x += seen * s.right[j]
            along_y += seen * s.up[j]
            away_x -= close * right
            away_y -= close * up
            neighbours += seen
            crowd += close
        share = 1.0 / max(neighbours, 1.0)
        s.centre_x[i] = share * centre_x / p.reach
        s.centre_y[i] = share * centre_y / p.reach
        s.along_x[i] = share * along_x
        s.along_y[i] = share * along_y
        s.away_x[i] = away_x / p.near
        s.away_y[i] = away_y / p.near
        s.neighbours[i] = neighbours
        s.reward[i] = share * (along_x * s.right[i] + along_y * s.up[i]) - p.crowding * crowd

    def fly(s, p, i, action, key):
        x = s.along_x[i] + p.cohesion * s.centre_x[i] + p.separation * s.away_x[i]
        y = s.along_y[i] + p.cohesion * s.centre_y[i] + p.separation * s.away_y[i]
        wanted = atan2(s.right[i] * y - s.up[i] * x, s.right[i] * x + s.up[i] * y)  # 0 without neighbours
        ruled = clip(wanted, -p.turn, p.turn) + normal(key, 0, 0.0, 1.0) * p.noise
        turn = p.turn * action[0] if 4 * i < len(s.x) else ruled
        cosine, sine = cos(turn), sin(turn)
        right = cosine * s.right[i] - sine * s.up[i]
        up = sine * s.right[i] + cosine * s.up[i]
        length = 1.0 / sqrt(right * right + up * up)  # so that rounding does not add up
        s.right[i] = length * right
        s.up[i] = length * up
        x_next, y_next = s.x[i] + p.speed * length * right, s.y[i] + p.speed * length * up
        s.x[i] = x_next - floor(x_next)
        s.y[i] = y_next - floor(y_next)

    phases = (fly, sense)
    reset_phases = (place, sense)

    def step(s, p, key):
        return s, s.reward, False

    def observe(s, p, i):
        right, up = s.right[i], s.up[i]
        return (
            right * s.centre_x[i] + up * s.centre_y[i],
            right * s.centre_y[i] - up * s.centre_x[i],
            right * s.along_x[i] + up * s.along_y[i],
            right * s.along_y[i] - up * s.along_x[i],
            right * s.away_x[i] + up * s.away_y[i],
            right * s.away_y[i] - up * s.away_x[i],
            s.neighbours[i] / 16.0,
        )

    def render(s, p):
        image, (x, y, right, up) = plane(PIXELS), (np.asarray(field) for field in s[:4])
        learning = len(x) // 4
        for which, color in ((slice(learning, None), RULED), (slice(learning), LEARNED)):
            for behind, radius in ((0.024, 1), (0.018, 1), (0.012, 2), (0.006, 2), (0.0, 3)):  # a tail, then the bird
                discs(image, (x - behind * right)[which], (y - behind * up)[which], radius, color)
        return image
