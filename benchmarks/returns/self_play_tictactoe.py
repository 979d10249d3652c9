"""Self-play on a game of PettingZoo: PPO on tic-tac-toe, and games of its policy against a player that moves at random,
before and after training. A draw is half a win; both sides are played as often."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table

GAME = "pettingzoo.classic.tictactoe_v3:env"
SETTINGS: dict[str, Any] = {
    **{"num_envs": 32, "num_steps": 64, "learning_rate": 1e-3, "entropy_coef": 0.01},
    **{"hidden": (64, 64), "minibatch_size": 512, "threads": 1},
}
COLUMNS = ("seed", "score_before", "score", "lost", "cpu_seconds")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--steps", type=int, default=60_000, help="moves of the learner")
    options = flags.parse_args()
    neighbours, seeds = Neighbours(), options.seeds[:1] if options.quick else options.seeds
    rows = [trained(seed, 5_000 if options.quick else options.steps) for seed in seeds]
    print(table(rows, COLUMNS))
    finish("self_play_tictactoe", rows, options, neighbours)


def trained(seed: int, steps: int) -> Row:
    """A training, and games before and after it."""
    with closing(hr.Trainer("ppo", GAME, self_play=True, seed=seed, total_steps=steps, **SETTINGS)) as trainer:
        before, _ = played(trainer.policy, 200, 0)
        began = time.process_time()
        while not trainer.reason_to_stop():
            trainer.iterate()
        spent = time.process_time() - began
        score, lost = played(trainer.policy, 400, 1)
    return {"seed": seed, "score_before": before, "score": score, "lost": lost, "cpu_seconds": spent}


def played(policy: Any, games: int, seed: int) -> tuple[float, int]:
    """The policy's mean score against a player that moves at random, and how many games it has lost."""
    from pettingzoo.classic import tictactoe_v3

    rng, scores = np.random.default_rng(seed), []
    for game in range(games):
        env, total = tictactoe_v3.env(), 0.0
        env.reset(seed=game)
        own = env.possible_agents[game % 2]
        for agent in env.agent_iter():
            seen, reward, terminated, truncated, _ = env.last()
            total += reward if agent == own else 0.0
            if terminated or truncated:
                action = None
            elif agent == own:
                action = int(policy.predict(seen)[0])
            else:
                action = int(rng.choice(np.flatnonzero(seen["action_mask"])))
            env.step(action)
        scores.append((np.sign(total) + 1) / 2)
    return float(np.mean(scores)), scores.count(0)


if __name__ == "__main__":
    main()
