"""Opponents of self-play: snapshots of this run's policy with Elo ratings, and the draw of the next opponents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headrace.core import rng
from headrace.core.types import StateDict

LATEST = -1  # in place of a snapshot's number: the learner's present policy
SCALE = 400.0  # rating points: with this lead a player expects ten times as many wins as losses
STEP = 4.0  # rating points for a score that is 1 above the expected one


@dataclass
class Snapshot:
    """The policy at a step of the run. number: increases with each snapshot. rating: Elo rating; the first snapshot
    begins with 0. weights: the policy's state_dict()."""

    number: int
    step: int
    rating: float
    weights: dict[str, Tensor]
    games: int = 0


def expected_score(rating: float, other: float) -> float:
    """Expected score against another player: wins, and half of the draws. Elo 1978, section 1.44, with the logistic
    curve."""
    return 1.0 / (1.0 + 10.0 ** ((other - rating) / SCALE))


@dataclass
class League:
    """A pool of snapshots, and the opponents drawn from it.

    opponents: number of opponents at a time. round(latest_share * opponents) of them are LATEST, and round(best_share *
    opponents) are the snapshot with the highest rating. Each other one is a snapshot drawn with probability
    proportional to p * (1 - p), where p is the learner's expected score, so that snapshots near its rating are drawn
    most often (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z, "Prioritized fictitious self-play", f_var). If there
    are more than pool_size snapshots, the one with the lowest rating is removed. snapshot_freq: steps between
    snapshots. seed: of the draws.
    """

    opponents: int = 8
    latest_share: float = 0.5
    best_share: float = 0.125
    pool_size: int = 16
    snapshot_freq: int = 200_000
    seed: int = 0
    rating: float = 0.0  # the learner's
    pool: list[Snapshot] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)  # number of each opponent's snapshot, or LATEST
    taken: int = 0  # snapshots so far

    def is_due(self, step: int) -> bool:
        """True if a snapshot is due at this step."""
        return step >= self.taken * self.snapshot_freq

    def take(self, policy: Any, step: int) -> None:
        """Add a snapshot of a policy, with the learner's rating, and draw opponents."""
        weights = {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}
        self.pool.append(Snapshot(self.taken, step, self.rating, weights))
        while len(self.pool) > self.pool_size:  # of a resumed run, which may have had more
            self.pool.remove(min(self.pool, key=lambda one: (one.rating, one.number)))
        self.taken = max(self.taken + 1, step // self.snapshot_freq + 1)
        self._draw()

    def _draw(self) -> None:
        latest, best = (round(share * self.opponents) for share in (self.latest_share, self.best_share))
        others = max(0, self.opponents - latest - best)
        chances = torch.tensor([p * (1 - p) for p in map(self.chance, self.pool)], dtype=torch.float64)
        draws = rng.uniform(self.seed, rng.Purpose.OPPONENT, self.taken, 1, 1, max(others, 1), "cpu")[0, 0, :others]
        sums = chances.cumsum(0)
        places = torch.searchsorted(sums, draws.double() * sums[-1], right=True).clamp(max=len(self.pool) - 1)
        numbers = [LATEST] * latest + [self.best.number] * best + sorted(self.pool[k].number for k in places.tolist())
        self.drawn = numbers[: self.opponents]

    def chance(self, snapshot: Snapshot) -> float:
        """The learner's expected score against a snapshot."""
        return expected_score(self.rating, snapshot.rating)

    @property
    def best(self) -> Snapshot:
        """The snapshot with the highest rating; the last one of several with equal ratings."""
        return max(self.pool, key=lambda one: (one.rating, one.number))

    def snapshot(self, number: int) -> Snapshot | None:
        """The snapshot with this number; None if it has been removed."""
        return next((one for one in self.pool if one.number == number), None)

    def rate(self, scores: Sequence[float], games: Sequence[int]) -> None:
        """Update the ratings with the learner's games against each opponent. scores: its wins plus half of its draws.
        Ratings are updated with one game against each opponent at a time, with the mean score against that opponent, so
        that the order of games does not matter. Games against LATEST do not count."""
        rivals = [self.snapshot(number) for number in self.drawn]
        for game in range(max(games)):
            for rival, score, number in zip(rivals, scores, games, strict=True):
                if rival is not None and game < number:
                    points = STEP * (score / number - self.chance(rival))
                    self.rating += points
                    rival.rating -= points
        for rival, number in zip(rivals, games, strict=True):
            if rival is not None:
                rival.games += number

    def state_dict(self) -> StateDict:
        """Ratings, snapshots and the opponents drawn."""
        own = {"rating": self.rating, "taken": self.taken, "drawn": list(self.drawn)}
        return own | {"pool": [dict(vars(one)) for one in self.pool]}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict()."""
        self.rating, self.taken, self.drawn = float(state["rating"]), int(state["taken"]), list(state["drawn"])
        self.pool = [Snapshot(**one) for one in state["pool"]]


def score_of(margin: Tensor) -> Tensor:
    """The score of games [N]: 1 for a return above the opponent's, 0.5 for an equal one, else 0. margin: difference of
    the returns."""
    return (margin.sign() + 1) / 2
