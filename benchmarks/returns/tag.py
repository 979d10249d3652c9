"""Do both groups of Tag learn? Their returns against opponents that act at random, before and during training.

    python -m benchmarks.returns.tag                 # three seeds, the registered settings of PPO
    headrace train ppo Tag --seed 0          # the same training

Both groups learn against each other. At each check the taggers are also evaluated with runners that act at random, and
the runners with taggers that do. A return is the mean over the agents of the group: tags of a tagger in an episode,
and, negative, times that a runner was tagged.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing

import torch
from torch import Tensor

from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.envs.builtin.entities.tag import Tag
from headrace.evaluation.evaluator import evaluate
from headrace.policies.base import Policy, PolicyOutput
from headrace.training.trainer import Trainer

CHECKS = (0.0, 0.25, 0.5, 1.0)  # of the training
EPISODES = 20
COLUMNS = ("seed", "steps", "taggers", "runners", "seconds")


class RandomPolicy(Policy):
    """Every action of Tag with the same probability."""

    num_draws = len(Tag.action_space.nvec)

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.observation_space, self.action_space = Tag.observation_space, Tag.action_space

    def act(self, observation: Tensor, rnn_state: Tensor | None, random: Tensor | None) -> PolicyOutput:
        assert random is not None
        counts = torch.as_tensor(Tag.action_space.nvec)
        return PolicyOutput((random[: len(observation)] * counts).int().minimum(counts.int() - 1), None, None, None)


def against_random(policy: GroupedPolicy, group: str, episodes: int, seed: int) -> float:
    """The group's mean return while all other agents act at random."""
    policies = {name: policy[name] if name == group else RandomPolicy() for name in policy.groups}
    result = evaluate(GroupedPolicy(policies, policy.groups), "Tag", episodes, seed, deterministic=False)
    return result.by_group[group]


def checked(seed: int, total_steps: int | None, episodes: int) -> list[Row]:
    """A training with its checks. total_steps: None for the registered number."""
    options: Row = {} if total_steps is None else {"total_steps": total_steps}
    rows, seconds = list[Row](), 0.0
    with closing(Trainer("ppo", "Tag", seed=seed, **options)) as trainer:
        last = trainer.plan.config.total_steps
        assert last is not None and isinstance(trainer.policy, GroupedPolicy)
        for check in CHECKS:
            began = time.perf_counter()
            while trainer.steps < check * last:
                trainer.iterate()
            seconds += time.perf_counter() - began
            found = {group: against_random(trainer.policy, group, episodes, 10_000 + seed) for group in Tag.groups}
            rows.append({"seed": seed, "steps": trainer.steps, **found, "seconds": seconds})
            print(*(f"{rows[-1][name]:.3g}" for name in COLUMNS), flush=True)
    return rows


def main() -> None:
    flags = parser((__doc__ or "").splitlines()[0])
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags.add_argument("--total-steps", type=int, help="instead of the registered number")
    options = flags.parse_args()
    neighbours, rows = Neighbours(), []
    steps, episodes = (40_000, 2) if options.quick else (options.total_steps, EPISODES)
    for seed in options.seeds[: 1 if options.quick else None]:
        rows += checked(seed, steps, episodes)
    print(table(rows, COLUMNS))
    for group in Tag.groups:
        first, last = (statistics.mean(r[group] for r in rows[k :: len(CHECKS)]) for k in (0, len(CHECKS) - 1))
        print(f"{group} against random opponents: {first:.3g} before training, {last:.3g} after")
    finish("tag", rows, options, neighbours)


if __name__ == "__main__":
    main()
