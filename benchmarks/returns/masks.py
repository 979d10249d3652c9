"""Action masks: forbidden actions taken in a million steps, and the steps to win Connect Four with a mask and without.

PPO with the registered settings for ConnectFour, against an opponent that plays at random. With "mask" full columns are
forbidden; with "penalty" there is no mask, and a piece dropped into a full column loses the game. Steps are those until
at least 95 % of 500 games are won, looked at every 16,384 steps, by sampled actions.
"""

from __future__ import annotations

import statistics
from contextlib import closing

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace import envs
from headrace.data.rollout import Column
from headrace.envs.builtin.connect_four import ConnectFour
from headrace.parallel.collector import InlineCollector

WON, GAMES, EVERY = 0.95, 500, 16_384
COLUMNS = ("actions", "seed", "steps_to_95", "wins", "steps", "forbidden")


class Penalty(ConnectFour):
    """Connect Four without a mask."""

    action_mask = None


SOURCES = {"mask": ConnectFour, "penalty": Penalty}


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--max-steps", type=int, default=1_000_000)
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds, most = (options.seeds[:1], 4096) if options.quick else (options.seeds, options.max_steps)
    rows = [learned(actions, seed, most) for seed in seeds for actions in SOURCES]
    print(table(rows, COLUMNS))
    steps = {name: [row["steps_to_95"] or most for row in rows if row["actions"] == name] for name in SOURCES}
    medians = {name: statistics.median(found) for name, found in steps.items()}
    finish("masks", rows, options, neighbours, median_steps=medians, fraction=medians["mask"] / medians["penalty"])


def learned(actions: str, seed: int, most: int) -> Row:
    """One training; of a mask with the number of forbidden actions in a million steps of its policy."""
    settings = envs.spec("ConnectFour").defaults["ppo"] | {"total_steps": most, "target_return": None}
    source = SOURCES[actions]
    wins, reached, due = 0.0, None, EVERY
    with closing(hr.Trainer("ppo", source, seed=seed, **settings)) as trainer:
        while trainer.steps < most and reached is None:
            trainer.iterate()
            if trainer.steps >= due:
                due += EVERY
                games = hr.evaluate(trainer.policy, source, GAMES, seed=seed, deterministic=False)
                wins = sum(total > 0 for total in games.returns) / GAMES
                reached = trainer.steps if wins >= WON else None
        row: Row = {"actions": actions, "seed": seed, "steps_to_95": reached, "wins": wins, "steps": trainer.steps}
        if actions == "mask":
            row["forbidden"] = forbidden(trainer.policy, 1_000_000 if most > EVERY else 10_000)
    return row


def forbidden(policy: hr.ActorCritic, steps: int) -> int:
    """Count the actions that the mask forbids among so many sampled ones."""
    env = envs.make(ConnectFour, 250)
    collector = InlineCollector(env, policy, 40, {"log_prob": Column(), "value": Column(bootstrap=True)}, seed=1)
    features, found = env.observation_space.features, 0  # type: ignore[attr-defined]
    taken = 0
    while taken < steps:
        rollout = collector.collect()
        mask = rollout.observation[:-1, :, features:].gather(2, rollout.action.long().unsqueeze(2)).squeeze(2)
        valid = rollout.valid[:-1]
        found += int(((mask == 0) & valid).sum())
        taken += int(valid.sum())
    return found


if __name__ == "__main__":
    main()
