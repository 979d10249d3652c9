"""Automatic domain randomisation (Akkaya et al. 2019, arXiv:1910.07113, algorithm 1) of a pole's length, which the
policy does not see.

PPO learns with the usual pole, with lengths drawn from the whole range, and with a range that begins at the usual
length. Half of the environments have a length at one end of the range; where EPISODES of these in a row have a mean
return of at least WIDEN, that end moves out by a factor of STEP, and at most NARROW back in. Returns are means over
episodes of the most likely actions with each of LENGTHS, which no training was told.
"""

from __future__ import annotations

import statistics
import sys
import tempfile

import numpy as np

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.training.episodes import ended_episodes

USUAL, LENGTHS = 0.5, (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)  # m, half of the pole's
BOUNDS = (0.05, 4.0)
WIDEN, NARROW, EPISODES, STEP = 400.0, 100.0, 20, 1.15
COLUMNS = ("lengths", "seed", "mean", *map(str, LENGTHS), "low", "high")
SETTINGS = {"num_steps": 32, "minibatch_size": 256, "learning_rate": 1e-3, "epochs": 8, "entropy_coef": 0.0}
ENVS = 64


class Randomisation:
    """The range of the length, and the length of each environment."""

    def __init__(self, seed: int) -> None:
        self.random, self.range = np.random.default_rng(seed), [USUAL, USUAL]
        self.length = np.full(ENVS, USUAL)
        self.end = np.full(ENVS, -1)  # 0, 1: at that end of the range; -1: in it
        self.whole = np.zeros(ENVS, bool)  # whether the episode under way has had one length alone
        self.returns: list[list[float]] = [[], []]  # of episodes at each end

    def follow(self, ended: np.ndarray) -> bool:
        """Take the episodes that have ended, [E, 4]; returns whether lengths have changed."""
        changed = False
        for _, env, total, _ in ended:
            i = int(env)
            if not self.whole[i]:  # begun with the length before
                self.whole[i] = True
                continue
            if self.end[i] >= 0:
                self._judge(int(self.end[i]), total)
            self.end[i] = self.random.integers(2) if self.random.random() < 0.5 else -1
            low, high = np.log(self.range)
            self.length[i] = self.range[self.end[i]] if self.end[i] >= 0 else np.exp(self.random.uniform(low, high))
            self.whole[i], changed = False, True
        return changed

    def _judge(self, end: int, total: float) -> None:
        """Move an end of the range once it has enough episodes."""
        self.returns[end].append(total)
        if len(self.returns[end]) < EPISODES:
            return
        mean, out = statistics.mean(self.returns[end]), STEP if end else 1 / STEP
        self.returns[end].clear()
        if mean >= WIDEN:
            self.range[end] = float(np.clip(self.range[end] * out, *BOUNDS))
        elif mean <= NARROW:
            back = self.range[end] / out
            self.range[end] = max(back, USUAL) if end else min(back, USUAL)


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--steps", type=int, default=2_000_000)
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds, steps = (options.seeds[:1], 20_000) if options.quick else (options.seeds, options.steps)
    rows = [learned(lengths, seed, steps) for seed in seeds for lengths in ("usual", "uniform", "automatic")]
    print(table(rows, COLUMNS))
    names = dict.fromkeys(row["lengths"] for row in rows)
    means = {name: statistics.mean(row["mean"] for row in rows if row["lengths"] == name) for name in names}
    finish("randomisation", rows, options, neighbours, means=means)


def learned(lengths: str, seed: int, steps: int) -> Row:
    """One training, and the returns of its last policy."""
    own = Randomisation(seed)
    if lengths == "uniform":
        own.length = np.exp(own.random.uniform(*np.log(BOUNDS), ENVS))
    env = hr.make("CartPole-v1", ENVS, params={"half_length": own.length.tolist()})
    given = {**SETTINGS, "seed": seed, "total_steps": steps, "progress": "none"}
    with tempfile.TemporaryDirectory() as folder, hr.Training("ppo", env, log_folder=folder, **given) as t:
        for _ in t:
            if lengths == "automatic" and own.follow(ended_episodes(t.trainer.collector.rollout).numpy()):
                t.env.set_params(half_length=own.length.tolist())
                t.log("randomisation/low", own.range[0])
                t.log("randomisation/high", own.range[1])
    found = {
        str(x): hr.evaluate(t.policy, "CartPole-v1", 100, seed=seed + 1_000, params={"half_length": x}).mean
        for x in LENGTHS
    }
    low, high = own.range if lengths == "automatic" else BOUNDS if lengths == "uniform" else (USUAL, USUAL)
    row = {"lengths": lengths, "seed": seed, "mean": statistics.mean(found.values()), **found, "low": low, "high": high}
    print(row, file=sys.stderr)
    return row


if __name__ == "__main__":
    main()
