"""Populations: a task whose best learning rate changes when half of the steps are done, by PPO with each learning rate
and by Population Based Training over it.

In the first half the rewards are exact: the larger steps are, the sooner the task is learned. In the second half noise
is added to them, and small steps keep what was learned. All members and all trainings with a fixed learning rate have
the same number of steps; a population has as many members as there are fixed rates. Returns are those of the last
policy (of the best member, by its evaluations in training, which have no noise) without noise, means over EPISODES
episodes of the most likely actions with a seed that training did not have.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.data.spaces import Box
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import cos, f32, normal, sin, uniform

EPISODES, NOISE = 1_000, 10.0
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
COLUMNS = ("learning_rate", "seed", "half", "end", "seconds")
SETTINGS = {"num_envs": 16, "num_steps": 16, "minibatch_size": 64, "epochs": 4, "hidden": [32], "gamma": 0.0}
OTHERS = {"target_kl": 0.0, "gae_lambda": 0.0, "threads": 1}


class Curve(KernelEnv):
    """Follow a curve: the right action for observations x, y is sin(4 x) cos(3 y), and the reward is 1 less four
    times the squared error, plus noise."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Box(-1.5, 1.5, (1,))
    max_steps = 10

    class Params(NamedTuple):
        noise: f32 = 0.0  # standard deviation of rewards

    class State(NamedTuple):
        x: f32
        y: f32

    def reset(s, p, key):
        return Curve.State(uniform(key, 0, -1.0, 1.0), uniform(key, 1, -1.0, 1.0))

    def step(s, p, action, key):
        error = action[0] - sin(4.0 * s.x) * cos(3.0 * s.y)
        reward = 1.0 - 4.0 * error * error + normal(key, 2, 0.0, p.noise)
        return Curve.State(uniform(key, 0, -1.0, 1.0), uniform(key, 1, -1.0, 1.0)), reward, False

    def observe(s, p):
        return s.x, s.y


def change(training: hr.Training, row: object) -> None:
    """The body of a training: noise from half of the steps on."""
    if training.trainer.progress() >= 0.5 and not training.env.changed_params:
        training.env.set_params(noise=NOISE)


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--rates", type=float, nargs="*", default=RATES)
    flags.add_argument("--steps", type=int, default=100_000)
    flags.add_argument("--intervals", type=int, default=20)
    flags.add_argument("--folder", type=Path, help="keep the runs here")
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds, rates, steps, intervals = options.seeds, options.rates, options.steps, options.intervals
    if options.quick:
        seeds, rates, steps, intervals = seeds[:1], [1e-3, 1e-2], 12_000, 4
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        rows = [fixed(folder, rate, seed, steps) for seed in seeds for rate in rates]
        rows += [evolved(folder, len(rates), seed, steps, intervals) for seed in seeds]
    print(table(rows, COLUMNS))
    names = dict.fromkeys(str(row["learning_rate"]) for row in rows)
    means = {name: {when: mean_of(rows, name, when) for when in ("half", "end")} for name in names}
    finish("populations", rows, options, neighbours, means=means)


def mean_of(rows: list[Row], name: str, when: str) -> float | None:
    """The mean over seeds; None where it was not measured."""
    values = [row[when] for row in rows if str(row["learning_rate"]) == name]
    return None if None in values else statistics.mean(values)


def returned(policy: hr.Policy, seed: int) -> float:
    """The return of a policy without noise."""
    return hr.evaluate(policy, Curve, EPISODES, seed=seed + 1_000).mean


def fixed(folder: Path, rate: float, seed: int, steps: int) -> Row:
    """One training with a fixed learning rate."""
    given = {**SETTINGS, **OTHERS, "learning_rate": rate, "seed": seed, "total_steps": steps}
    half, began = 0.0, time.perf_counter()
    with hr.Training("ppo", Curve, progress="none", log_folder=folder / "fixed", **given) as t:
        for row in t:
            if t.trainer.progress() >= 0.5 and not t.env.changed_params:
                half = returned(t.policy, seed)
            change(t, row)
    return shown(rate, seed, half, returned(t.run.policy, seed), began)


def evolved(folder: Path, members: int, seed: int, steps: int, intervals: int) -> Row:
    """One population."""
    began, given = time.perf_counter(), {**SETTINGS, **OTHERS, "seed": seed, "total_steps": steps}
    found = hr.population(
        "ppo",
        Curve,
        mutate={"learning_rate": f"{RATES[0]}..{RATES[-1]}"},
        interval=steps // intervals,
        members=members,
        score="evaluation",
        eval_episodes=100,
        each=change,
        folder=folder / f"population_{seed}",
        **given,
    )
    return shown("population", seed, None, returned(found.policy, seed), began)


def shown(rate: float | str, seed: int, half: float | None, end: float, began: float) -> Row:
    """A row, which is printed too."""
    row = {"learning_rate": rate, "seed": seed, "half": half, "end": end, "seconds": time.perf_counter() - began}
    print(row, file=sys.stderr)
    return row


if __name__ == "__main__":
    main()
