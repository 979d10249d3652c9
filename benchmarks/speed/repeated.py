"""CartPole whose step takes `times` the work: so many sub-steps, each of a `times`-th of the time.

A true repetition, since each sub-step needs the one before: no compiler can leave it out. As a KernelEnv, and as
Gymnasium's own CartPole.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from headrace.envs.builtin.cartpole import ANGLE_LIMIT, POSITION_LIMIT, CartPole
from headrace.kernels.language.ops import cos, sin


def kernel(times: int) -> type[CartPole]:
    """The class to be compiled. The compiler follows `times` as the constant it is here."""

    class Repeated(CartPole):
        def step(s, p, action, key):
            force = p.force if action == 1 else -p.force
            mass = p.cart_mass + p.pole_mass
            moment = p.pole_mass * p.half_length
            tau = p.tau / times
            x, velocity, angle, spin = s.x, s.velocity, s.angle, s.spin
            for _ in range(times):
                sine = sin(angle)
                cosine = cos(angle)
                push = (force + moment * spin * spin * sine) / mass
                spin_rate = (p.gravity * sine - cosine * push) / (
                    p.half_length * (4.0 / 3.0 - p.pole_mass * cosine * cosine / mass)
                )
                acceleration = push - moment * spin_rate * cosine / mass
                x = x + tau * velocity
                velocity = velocity + tau * acceleration
                angle = angle + tau * spin
                spin = spin + tau * spin_rate
            fallen = (abs(x) > POSITION_LIMIT) | (abs(angle) > ANGLE_LIMIT)
            return CartPole.State(x, velocity, angle, spin), 1.0, fallen

    return Repeated


class Repeated(CartPoleEnv):
    """Gymnasium's, step for step."""

    def __init__(self, times: int, **options: Any) -> None:
        super().__init__(**options)
        self.times, self.tau = times, self.tau / times

    def step(self, action: Any) -> Any:
        for _ in range(self.times):
            self.steps_beyond_terminated = None  # a sub-step may pass the limits, and the next one come back
            outcome = super().step(action)
        return outcome


def original(times: int) -> Any:
    """A function that makes Gymnasium's, with its time limit, as gymnasium.make does."""
    return partial(_limited, times)


def _limited(times: int) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Repeated(times), 500)
