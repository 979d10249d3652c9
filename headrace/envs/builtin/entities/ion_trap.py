"""Ions that repel each other in a quadrupole trap, held by the voltage of its electrodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.data.spaces import Box
from headrace.envs.builtin.entities.drawing import discs, plane
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, cos, f32, max_over, normal, sin, sqrt, sum_over, uniform

IONS = 32
PI = 3.14159265
PIXELS = 280  # pixels per side of a rendered image
ION, SQUEEZED, RING = (120, 200, 250), (230, 90, 70), (70, 70, 84)  # colors


class IonTrap(KernelEnv):
    """Hold 32 ions in the plane of a Paul trap for 500 steps. The reward is 1 per step, and the first lost ion ends the
    episode.

    The action is the voltage V, -1 to 1, of a quadrupole field (Paul 1990, Rev. Mod. Phys. 62, 531, eq. 5): an ion at
    (x, y) is accelerated by gradient * V * (-x, y). No constant voltage holds it (Earnshaw's theorem): a voltage that
    pulls it to the middle along one axis pushes it out along the other. So the voltage has to alternate at the right
    times. The ions repel each other by Coulomb's law. An ion is lost when its distance from the middle is above 1.

    The observation has means over the ions: of x, y and their velocities; of x^2, y^2; of x and y times their
    velocities; the largest squared distance from the middle; and the last voltage. Lengths are in radii of the trap,
    velocities in `fast`.
    """

    observation_space = Box(-np.inf, np.inf, (10,))
    action_space = Box(-1.0, 1.0, (1,))
    num_entities = IONS
    max_steps = 500

    class Params(NamedTuple):
        gradient: f32 = 16.0  # radii per time^2 and radius
        repulsion: f32 = 0.0005  # radii^3 per time^2: of two ions
        softening: f32 = 0.02  # radii: added to distances in squares, so that no force is infinite
        dt: f32 = 0.05  # time of a step
        fast: f32 = 0.5  # radii per time: unit of observed velocities

    class State(NamedTuple):
        x: array(f32, IONS)  # radii, from the middle
        y: array(f32, IONS)
        right: array(f32, IONS)  # velocity, radii per time
        up: array(f32, IONS)
        pull_x: array(f32, IONS)  # acceleration by the other ions, radii per time^2
        pull_y: array(f32, IONS)
        squared: array(f32, IONS)  # distance from the middle
        voltage: f32

    def reset(s, p, key):
        return s._replace(voltage=0.0)

    def place(s, p, i, key):
        # evenly over a disc
        radius, angle = 0.4 * sqrt(uniform(key, 0, 0.0, 1.0)), uniform(key, 1, -PI, PI)
        s.x[i] = radius * cos(angle)
        s.y[i] = radius * sin(angle)
        s.right[i] = normal(key, 2, 0.0, 0.05)
        s.up[i] = normal(key, 3, 0.0, 0.05)
        s.squared[i] = radius * radius

    def repel(s, p, i):
        pull_x, pull_y = 0.0, 0.0
        for j in range(len(s.x)):
            right, up = s.x[i] - s.x[j], s.y[i] - s.y[j]  # of the ion itself 0
            squared = right * right + up * up + p.softening * p.softening
            strength = p.repulsion / (squared * sqrt(squared))
            pull_x += strength * right
            pull_y += strength * up
        s.pull_x[i] = pull_x
        s.pull_y[i] = pull_y

    def move(s, p, i, action):
        # semi-implicit Euler: the new velocity moves the ion
        field = p.gradient * action[0]
        right = s.right[i] + p.dt * (s.pull_x[i] - field * s.x[i])
        up = s.up[i] + p.dt * (s.pull_y[i] + field * s.y[i])
        x, y = s.x[i] + p.dt * right, s.y[i] + p.dt * up
        s.right[i] = right
        s.up[i] = up
        s.x[i] = x
        s.y[i] = y
        s.squared[i] = x * x + y * y

    phases = (repel, move)
    reset_phases = (place,)

    def step(s, p, action, key):
        return s._replace(voltage=action[0]), 1.0, max_over(s.squared) > 1.0

    def observe(s, p):
        mean = 1.0 / len(s.x)
        x2, y2, x_right, y_up = 0.0, 0.0, 0.0, 0.0
        for i in range(len(s.x)):
            x2 += s.x[i] * s.x[i]
            y2 += s.y[i] * s.y[i]
            x_right += s.x[i] * s.right[i]
            y_up += s.y[i] * s.up[i]
        return (
            mean * sum_over(s.x),
            mean * sum_over(s.y),
            mean * sum_over(s.right) / p.fast,
            mean * sum_over(s.up) / p.fast,
            mean * x2,
            mean * y2,
            mean * x_right / p.fast,
            mean * y_up / p.fast,
            max_over(s.squared),
            s.voltage,
        )

    def render(s, p):
        image, angle = plane(PIXELS), np.linspace(0, 2 * np.pi, 720)
        discs(image, 0.5 + 0.48 * np.cos(angle), 0.5 + 0.48 * np.sin(angle), 1, RING)
        # the voltage: bars at the electrodes that push inwards, left and right or below and above
        bar = 0.5 + np.linspace(-0.2, 0.2, 80) * abs(s.voltage)
        for edge in (np.full(80, 0.02), np.full(80, 0.98)):
            x, y = (edge, bar) if s.voltage > 0 else (bar, edge)
            discs(image, x, y, 3, SQUEEZED)
        discs(image, 0.5 + 0.48 * np.asarray(s.x), 0.5 + 0.48 * np.asarray(s.y), 3, ION)
        return image
