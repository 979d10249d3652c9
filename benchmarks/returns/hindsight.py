"""Hindsight replay: bits flipped with and without it, and a gripper that reaches goals.

DQN flips 30 bits, and SAC moves the gripper of Reach, by the registered settings. `solved` is the fraction of 200
evaluation episodes, by the most likely actions, that reach the goal: of bits within the 30 steps, of the gripper at the
last step. `steps_to_95` are those until 95 % do, looked at every 5,000 steps (2,500 of Reach); then the training ends.
"""

from __future__ import annotations

from contextlib import closing

import torch

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace import envs
from headrace.policies.base import Policy

EPISODES = 200
TASKS = {  # name -> environment, algorithm, hindsight, steps at most, steps between evaluations
    "bit_flip": ("BitFlip", "dqn", 4, 150_000, 5_000),
    "bit_flip_without": ("BitFlip", "dqn", 0, 60_000, 20_000),
    "reach": ("Reach", "sac", 4, 50_000, 2_500),
}
COLUMNS = ("task", "seed", "hindsight", "solved", "steps", "steps_to_95")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds = options.seeds[:1] if options.quick else options.seeds
    rows = [learned(task, seed, options.quick) for task in options.tasks for seed in seeds]
    print(table(rows, COLUMNS))
    finish("hindsight", rows, options, neighbours)


def learned(task: str, seed: int, quick: bool) -> Row:
    """One training."""
    env, algorithm, hindsight, most, every = TASKS[task]
    most, every = (1_200, 1_200) if quick else (most, every)
    settings = {"hindsight": hindsight, "total_steps": most, "seed": seed}
    fraction, due = 0.0, every
    with closing(hr.Trainer(algorithm, env, **settings)) as trainer:
        while trainer.steps < most and fraction < 0.95:
            trainer.iterate()
            if trainer.steps >= due:
                due += every
                fraction = solved(trainer.policy, env, seed)
        reached = trainer.steps if fraction >= 0.95 else None
        row = {"task": task, "seed": seed, "hindsight": hindsight, "solved": fraction, "steps": trainer.steps}
    return row | {"steps_to_95": reached}


@torch.no_grad()
def solved(policy: Policy, name: str, seed: int) -> float:
    """The fraction of episodes in whose last step the goal is reached."""
    env = envs.make(name, EPISODES)
    rollout = env.rollout(env.max_steps or 1, env.columns())
    env.reset(rollout, 10_000 + seed)
    for t in range(rollout.num_steps):
        rollout.action[t] = policy.act(rollout.observation[t], None, None).action
        env.step(rollout, t)
    last = rollout.valid[:-1].cummin(0).values.sum(0) - 1  # of the first episode
    return (rollout.reward.gather(0, last.unsqueeze(0)) == 0).float().mean().item()


if __name__ == "__main__":
    main()
