"""A critic that sees what the actor does not: the steps that PPO needs with `critic_members` and without.

A cart is driven to a mark by pushes, on a hill whose slope is drawn for each episode. The slope decides much of the
return, and no sensor of the cart measures it: with "nobody" actor and critic see position and speed alone, with
"critic" the critic sees the slope too. Steps are those until the mean return of 500 episodes, of the most likely
actions, is GOAL, looked at every 4,096 steps.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.data.spaces import Box, Dict, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import clip, f32, uniform

GOAL, EPISODES, EVERY = -8.0, 500, 4_096
COLUMNS = ("sees_slope", "seed", "steps_to_goal", "return", "steps")
SETTINGS = {"num_envs": 32, "num_steps": 64, "minibatch_size": 512, "epochs": 4, "hidden": (64, 64), "gamma": 0.98}


class Hill(KernelEnv):
    """Push a cart to a mark and hold it there, on a hill of unknown slope. Reward: minus the distance, and minus the
    work against the slope, which no action changes."""

    observation_space = Dict({"observation": Box(-np.inf, np.inf, (2,)), "slope": Box(-1.0, 1.0, (1,))})
    action_space = Discrete(3)
    max_steps = 100

    class Params(NamedTuple):
        push: f32 = 0.02  # m/step^2
        pull: f32 = 0.01  # m/step^2, of a slope of 1
        work: f32 = 0.7

    class State(NamedTuple):
        x: f32
        v: f32
        slope: f32

    def reset(s, p, key):
        return Hill.State(uniform(key, 0, -1.0, 1.0), 0.0, uniform(key, 1, -1.0, 1.0))

    def step(s, p, action, key):
        v = 0.95 * s.v + p.push * (action - 1) - p.pull * s.slope
        x = clip(s.x + v, -2.0, 2.0)
        return Hill.State(x, v, s.slope), -abs(x) - p.work * s.slope, False

    def observe(s, p):
        return s.x, s.v, s.slope


class Blind(Hill):
    """The same, and nobody sees the slope."""

    observation_space = Box(-np.inf, np.inf, (2,))

    def observe(s, p):
        return s.x, s.v


SOURCES: dict[str, tuple[type[KernelEnv], Any]] = {
    "nobody": (Blind, {}),
    "critic": (Hill, {"critic_members": ("slope",)}),
}


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--max-steps", type=int, default=500_000)
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds, most = (options.seeds[:1], EVERY) if options.quick else (options.seeds, options.max_steps)
    rows = [learned(sees, seed, most) for seed in seeds for sees in SOURCES]
    print(table(rows, COLUMNS))
    steps = {name: [row["steps_to_goal"] or most for row in rows if row["sees_slope"] == name] for name in SOURCES}
    medians = {name: statistics.median(found) for name, found in steps.items()}
    finish(
        "critic_members",
        rows,
        options,
        neighbours,
        median_steps=medians,
        fraction=medians["critic"] / medians["nobody"],
    )


def learned(sees: str, seed: int, most: int) -> Row:
    """One training, until its policy reaches the goal."""
    source, options = SOURCES[sees]
    found, reached, due = -np.inf, None, EVERY
    with closing(hr.Trainer("ppo", source, seed=seed, total_steps=most, **SETTINGS, **options)) as trainer:
        while trainer.steps < most and reached is None:
            trainer.iterate()
            if trainer.steps >= due:
                due += EVERY
                found = hr.evaluate(trainer.policy, source, EPISODES, seed=seed).mean
                reached = trainer.steps if found >= GOAL else None
        return {"sees_slope": sees, "seed": seed, "steps_to_goal": reached, "return": found, "steps": trainer.steps}


if __name__ == "__main__":
    main()
