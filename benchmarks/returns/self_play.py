"""Self-play: PPO on Connect Four against its own past, and matches of its policy against alpha-beta search.

Each seed is trained one after the other. At POINTS moments of a training, and at its end, the policy's most likely
actions play from OPENINGS openings of four random moves with both sides each, against a search of four moves; a draw is
half a win. Leaves of the search are worth nothing unless somebody has won, or they are valued by open lines: see
connect_four_search.py. Then moves per second of the learner are compared with a loop over PettingZoo's
connect_four_v3 in which both players choose at random, so that the loop has the game's time alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import closing
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from benchmarks.returns.connect_four_search import LEAVES, match

POINTS, OPENINGS, DEPTH = 8, 200, 4
COLUMNS = ("seed", "steps", "rating", *LEAVES, "cpu_seconds")
SPEEDS = ("what", "moves_per_second")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--steps", type=int, default=None, help="moves of the learner; None: those registered")
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds, steps = (options.seeds[:1], 20_000) if options.quick else (options.seeds, options.steps)
    rows, speeds = list[Row](), list[Row]()
    for seed in seeds:
        learned, speed = trained(seed, steps)
        rows += learned
        speeds.append({"what": f"self-play, seed {seed}", "moves_per_second": speed})
    speeds.append({"what": "loop over connect_four_v3", "moves_per_second": loop_speed(0.5 if options.quick else 5.0)})
    last = [[row for row in rows if row["seed"] == seed][-1] for seed in seeds]
    print(table(rows, COLUMNS))
    print(table(speeds, SPEEDS))
    means = {leaves: statistics.mean(row[leaves] for row in last) for leaves in LEAVES}
    print(f"win rate at the end, mean of {len(seeds)} seeds: {means}")
    finish("self_play", rows + speeds, options, neighbours, win_rate=means)


def trained(seed: int, steps: int | None) -> tuple[list[Row], float]:
    """A row for each of the moments at which the policy played, and the learner's moves per CPU second."""
    given: dict[str, Any] = {"self_play": True, "seed": seed} | ({} if steps is None else {"total_steps": steps})
    with closing(hr.Trainer("ppo", "ConnectFourPlayers", **given)) as trainer:
        rows, spent = list[Row](), 0.0
        total = trainer.config.total_steps or 0
        while not trainer.reason_to_stop():
            began = time.process_time()
            result = trainer.iterate()
            spent += time.process_time() - began
            if result.steps * POINTS >= total * (len(rows) + 1) or trainer.reason_to_stop():
                rates = {leaves: match(trainer.policy, OPENINGS, DEPTH, leaves)["win_rate"] for leaves in LEAVES}
                rating = result.details["self_play/rating"]
                rows.append({"seed": seed, "steps": result.steps, "rating": rating, **rates, "cpu_seconds": spent})
                print(rows[-1], file=sys.stderr, flush=True)
        return rows, trainer.steps / spent


def loop_speed(seconds: float) -> float:
    """Moves per CPU second of one player in a loop over PettingZoo's game: half of all moves, as self-play counts."""
    from pettingzoo.classic import connect_four_v3

    env, rng, moves = connect_four_v3.env(), np.random.default_rng(0), 0
    began = time.process_time()
    while time.process_time() - began < seconds:
        env.reset()
        for agent in env.agent_iter():
            observation, _, terminated, truncated, _ = env.last()
            ended = terminated or truncated
            env.step(None if ended else int(rng.choice(np.flatnonzero(observation["action_mask"]))))
            moves += not ended
            del agent
    return moves / 2 / (time.process_time() - began)


if __name__ == "__main__":
    main()
