"""Critics of all agents: the return of PPO on simple_spread with `central_critic` (MAPPO) and without (independent).

Three agents learn to cover three landmarks and not to collide. `SimpleSpread` is mpe2's simple_spread_v3 with discrete
actions, compiled; tests/benchmarks/returns/test_central_critic.py compares their steps. Both critics have the same
settings, seeds and number of steps. Returns are those of an agent, means over EPISODES episodes of the most likely
actions, with a seed that training did not have.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import closing
from typing import NamedTuple

import numpy as np

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import absolute, array, exp, f32, log, sqrt, uniform

AGENTS, CONTACT, MARGIN = 3, 0.3, 1e-3  # CONTACT: the distance at which agents touch
EPISODES = 2_000
COLUMNS = ("gamma", "critic", "seed", "steps", "return", "explained_variance", "seconds")
SETTINGS = {"num_envs": 32, "num_steps": 125, "minibatch_size": 500, "learning_rate": 1e-3, "entropy_coef": 0.01}
GAMMAS = (0.95, 0.99)
CRITICS = {"own observation": {}, "all agents": {"central_critic": True}}


def far(right, up):
    """The length of a displacement, above 0."""
    return sqrt(right * right + up * up + 1e-12)


def nearest(place, x, y):
    """The distance from a point to the agent that is nearest to it."""
    found = far(place[0, 0] - x, place[0, 1] - y)
    for i in range(1, AGENTS):
        found = min(found, far(place[i, 0] - x, place[i, 1] - y))
    return found


def touches(place, i):
    """The number of agents that agent i touches."""
    found = 0.0
    for j in range(AGENTS):
        apart = far(place[i, 0] - place[j, 0], place[i, 1] - place[j, 1])
        found += 1.0 if (i != j) & (apart < CONTACT) else 0.0
    return found


class SimpleSpread(KernelEnv):
    """Three agents cover three landmarks. Lowe et al. 2017, arXiv:1706.02275; simple_spread_v3 of mpe2.

    Reward of an agent: half of minus the distance from each landmark to its nearest agent, summed, and half of minus
    the number of agents that it touches. Observation: its velocity and place, the places of landmarks and of the other
    agents relative to its own, and four zeros, which are mpe2's silent channels. Actions: stay, left, right, down, up.
    """

    observation_space = Box(-np.inf, np.inf, (18,))
    action_space = Discrete(5)
    num_agents = AGENTS
    max_steps = 25

    class State(NamedTuple):
        place: array(f32, AGENTS, 2)
        speed: array(f32, AGENTS, 2)
        force: array(f32, AGENTS, 2)
        mark: array(f32, AGENTS, 2)

    def reset(s, p, key):
        for i in range(AGENTS):
            for k in range(2):
                s.place[i, k] = uniform(key, 2 * i + k, -1.0, 1.0)
                s.mark[i, k] = uniform(key, 2 * AGENTS + 2 * i + k, -1.0, 1.0)
                s.speed[i, k] = 0.0
        return SimpleSpread.State(s.place, s.speed, s.force, s.mark)

    def step(s, p, action, key):
        for i in range(AGENTS):
            chosen = action[0] if i == 0 else (action[1] if i == 1 else action[2])
            s.force[i, 0] = (5.0 if chosen == 2 else 0.0) - (5.0 if chosen == 1 else 0.0)
            s.force[i, 1] = (5.0 if chosen == 4 else 0.0) - (5.0 if chosen == 3 else 0.0)
        for i in range(AGENTS):
            for j in range(AGENTS):
                if i != j:  # World.get_collision_force() of mpe2
                    right, up = s.place[i, 0] - s.place[j, 0], s.place[i, 1] - s.place[j, 1]
                    apart = far(right, up)
                    depth = (CONTACT - apart) / MARGIN
                    soft = (depth if depth > 0.0 else 0.0) + log(1.0 + exp(-absolute(depth)))
                    s.force[i, 0] += 100.0 * MARGIN * soft * right / apart
                    s.force[i, 1] += 100.0 * MARGIN * soft * up / apart
        for i in range(AGENTS):
            for k in range(2):
                s.place[i, k] += 0.1 * s.speed[i, k]
                s.speed[i, k] = 0.75 * s.speed[i, k] + 0.1 * s.force[i, k]
        away = 0.0
        for i in range(AGENTS):
            away += nearest(s.place, s.mark[i, 0], s.mark[i, 1])
        first, second, third = touches(s.place, 0), touches(s.place, 1), touches(s.place, 2)
        rewards = (-0.5 * (away + first), -0.5 * (away + second), -0.5 * (away + third))
        return SimpleSpread.State(s.place, s.speed, s.force, s.mark), rewards, False

    def observe(s, p, agent, out):
        for k in range(2):
            out[k] = s.speed[agent, k]
            out[2 + k] = s.place[agent, k]
            for i in range(AGENTS):
                out[4 + 2 * i + k] = s.mark[i, k] - s.place[agent, k]
            for i in range(AGENTS - 1):
                other = i if i < agent else i + 1
                out[10 + 2 * i + k] = s.place[other, k] - s.place[agent, k]
                out[14 + 2 * i + k] = 0.0


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--gammas", type=float, nargs="*", default=GAMMAS)
    flags.add_argument("--steps", type=int, default=1_500_000, help="of agents: three to a step of the environment")
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds, gammas, steps = options.seeds, options.gammas, options.steps
    if options.quick:
        seeds, gammas, steps = seeds[:1], gammas[:1], 20_000
    rows = [learned(critic, gamma, seed, steps) for gamma in gammas for seed in seeds for critic in CRITICS]
    print(table(rows, COLUMNS))
    means = {f"{gamma} {critic}": mean_return(rows, gamma, critic) for gamma in gammas for critic in CRITICS}
    finish("central_critic", rows, options, neighbours, mean_return=means)


def mean_return(rows: list[Row], gamma: float, critic: str) -> float:
    """The mean over seeds."""
    return statistics.mean(row["return"] for row in rows if (row["gamma"], row["critic"]) == (gamma, critic))


def learned(critic: str, gamma: float, seed: int, steps: int) -> Row:
    """One training, and the return of its last policy."""
    settings = {**SETTINGS, **CRITICS[critic], "gamma": gamma}
    with closing(hr.Trainer("ppo", SimpleSpread, seed=seed, total_steps=steps, **settings)) as trainer:
        while trainer.steps < steps:
            metrics = trainer.iterate().metrics
        found = hr.evaluate(trainer.policy, SimpleSpread, EPISODES, seed=seed + 1_000).mean
        row = {"gamma": gamma, "critic": critic, "seed": seed, "steps": trainer.steps, "return": found}
        print(row, file=sys.stderr)
        return {**row, "explained_variance": metrics["explained_variance"], "seconds": trainer.seconds}


if __name__ == "__main__":
    main()
