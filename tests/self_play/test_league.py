"""Ratings, the pool of snapshots, and the draw of opponents."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from headrace.self_play.league import LATEST, League, Snapshot, expected_score, score_of


class Weights:
    """A policy of one number."""

    def __init__(self, number: float) -> None:
        self.tensor = torch.tensor([number])

    def state_dict(self):
        return {"weight": self.tensor}


def test_expected_scores_are_elos():
    assert expected_score(0, 0) == 0.5
    assert expected_score(400, 0) == pytest.approx(10 / 11)
    assert expected_score(-200, 0) == pytest.approx(0.24, abs=5e-3)  # his table


def test_a_rating_settles_where_scores_are_as_expected():
    league = League(opponents=2, latest_share=0.5, best_share=0.5)
    league.take(Weights(0), 0)
    for _ in range(300):
        league.rate([0.0, 7.5], [9, 10])  # of the games against itself none counts
    assert league.chance(league.pool[0]) == pytest.approx(0.75, abs=1e-6)
    assert league.rating + league.pool[0].rating == pytest.approx(0)
    assert league.pool[0].games == 3_000


def test_a_snapshot_keeps_weights_and_rating():
    league, policy = League(snapshot_freq=100), Weights(1.0)
    assert league.is_due(0)
    league.take(policy, 0)
    policy.tensor += 1
    league.rating = 30.0
    assert not league.is_due(99) and league.is_due(130)
    league.take(policy, 130)
    assert not league.is_due(199) and league.is_due(200)
    assert [(one.step, one.rating, one.weights["weight"].item()) for one in league.pool] == [
        (0, 0.0, 1.0),
        (130, 30.0, 2.0),
    ]


def test_the_lowest_rating_leaves_a_full_pool():
    league = League(pool_size=3, snapshot_freq=1)
    for step, rating in enumerate((5.0, 1.0, 7.0, 6.0)):
        league.rating = rating
        league.take(Weights(step), step)
    assert [one.rating for one in league.pool] == [5.0, 7.0, 6.0]
    assert league.best.rating == 7.0


def test_opponents_are_the_latest_the_best_and_others_near_the_learners_rating():
    league = League(opponents=8, latest_share=0.5, best_share=0.125)
    league.pool = [Snapshot(k, k, rating, {}) for k, rating in enumerate((0.0, 600.0, 1000.0))]
    league.rating, drawn = 600.0, Counter()
    for league.taken in range(2_000):
        league._draw()
        assert league.drawn[:5] == [LATEST] * 4 + [2]
        drawn.update(league.drawn[5:])
    weights = [p * (1 - p) for p in map(league.chance, league.pool)]
    for number, weight in enumerate(weights):
        assert drawn[number] / 6_000 == pytest.approx(weight / sum(weights), abs=0.02)


def test_a_league_goes_on_from_its_state():
    league = League(opponents=4, snapshot_freq=10, pool_size=2)
    for step in (0, 10, 20):
        league.take(Weights(step), step)
        league.rate([1.0] * 4, [2] * 4)
    other = League(opponents=4, snapshot_freq=10, pool_size=2)
    other.load_state_dict(league.state_dict())
    for one in (league, other):
        one.take(Weights(30), 30)
    assert league.drawn == other.drawn and league.rating == other.rating
    assert [vars(one) for one in league.pool] == [vars(one) for one in other.pool]


def test_scores():
    assert score_of(torch.tensor([2.0, 0.0, -0.1])).tolist() == [1.0, 0.5, 0.0]
