"""Self-play: PPO on Pursuit against its own past, and games of its policy against agents that move straight.

Each seed is trained with the registered settings. Before and after it, the policy plays GAMES games as the pursuer
against an evader that moves away along the axis with the larger distance, and as many as the evader against a pursuer
that moves closer along it. A game that does not end with a catch ends after 100 steps. `steps` are the mean length of
games, of which pursuers want short ones.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table

GAMES, STEPS = 500, 100
PLAYED = ("pursuer_before", "evader_before", "pursuer", "evader")
COLUMNS = ("seed", *PLAYED, *(f"{name}_steps" for name in PLAYED), "rating", "cpu_seconds")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    options = flags.parse_args()
    neighbours, rows = Neighbours(), list[Row]()
    print(f"both move straight: caught, steps {played(None, None)}")
    for seed in options.seeds[:1] if options.quick else options.seeds:
        rows.append(trained(seed, 20_000 if options.quick else None))
    print(table(rows, COLUMNS))
    finish("self_play_pursuit", rows, options, neighbours)


def trained(seed: int, steps: int | None) -> Row:
    """Share of games with a catch, by the policy and of it, and their lengths, before and after a training."""
    given: dict[str, Any] = {"self_play": True, "seed": seed} | ({} if steps is None else {"total_steps": steps})
    with closing(hr.Trainer("ppo", "Pursuit", **given)) as trainer:
        policy = trainer.policy
        games = [played(policy, None), played(None, policy)]
        began = time.process_time()
        while not trainer.reason_to_stop():
            result = trainer.iterate()
        spent = time.process_time() - began
        games += [played(policy, None), played(None, policy)]
    row: Row = {"seed": seed, "rating": result.details["self_play/rating"], "cpu_seconds": spent}
    for name, (caught, length) in zip(PLAYED, games, strict=True):
        row |= {name: caught, f"{name}_steps": length}
    return row


@torch.no_grad()
def played(pursuer: Any, evader: Any) -> tuple[float, float]:
    """Share of games that end with a catch, and their mean length. None for an agent that moves straight; policies
    choose their most likely actions."""
    env = hr.make("Pursuit", GAMES)
    rollout = env.rollout(STEPS, env.columns())
    env.reset(rollout, 1)
    caught, length = torch.zeros(GAMES, dtype=torch.bool), torch.zeros(GAMES)
    for t in range(STEPS):
        seen = rollout.observation[t]
        for agent, policy in enumerate((pursuer, evader)):
            own = slice(agent * GAMES, (agent + 1) * GAMES)
            actions = straight(seen[own], agent) if policy is None else policy.act(seen[own], None, None).action
            rollout.action[t, own] = actions.int()
        env.step(rollout, t)
        first = rollout.valid[: t + 1, :GAMES].all(0)  # games whose first episode goes on
        caught |= first & rollout.terminated[t, :GAMES]
        length += first
    return round(float(caught.float().mean()), 3), round(float(length.mean()), 1)


def straight(seen: Tensor, agent: int) -> Tensor:
    """The action that brings the pursuer closer, or the evader away, along the axis with the larger distance."""
    right, up = seen[:, 0], seen[:, 1]
    along = torch.where(right.abs() > up.abs(), torch.where(right > 0, 1, 2), torch.where(up > 0, 3, 4))
    away = torch.tensor([0, 2, 1, 4, 3])
    return away[along] if agent else along


if __name__ == "__main__":
    main()
