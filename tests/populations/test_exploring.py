"""Members that are replaced, their sources, and their new settings."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.algorithms.ppo import PPOConfig
from headrace.populations import exploring
from headrace.populations.exploring import Selection, decide, draw, mutations, perturb
from headrace.tuning.search_space import Range

SPACE = {"learning_rate": Range(1e-5, 1e-1, False), "epochs": [2, 4, 8]}
SETTINGS = [{"learning_rate": 10.0 ** -(1 + member % 4), "epochs": 4} for member in range(10)]


def test_the_lowest_fifth_copies_the_best_fifth():
    scores = [5.0, 9.0, 1.0, 8.0, 2.0, 3.0, 4.0, 6.0, 7.0, 5.5]
    seen = set()
    for interval in range(1, 30):
        found = decide(scores, SETTINGS, SPACE, Selection(0.2, 0.0), interval)
        for member, (source, settings) in enumerate(found):
            if member not in (2, 4):
                assert (source, settings) == (member, SETTINGS[member])
                continue
            assert source in (1, 3)
            factor = settings["learning_rate"] / SETTINGS[source]["learning_rate"]
            assert factor == pytest.approx(0.8) or factor == pytest.approx(1.2)
            assert settings["epochs"] in (2, 8)
            seen.add((source, round(factor, 1), settings["epochs"]))
    assert len(seen) == 8


def test_decisions_follow_from_seed_and_interval_alone():
    scores = [float(member) for member in range(10)]
    first = decide(scores, SETTINGS, SPACE, Selection(seed=3), 7)
    assert first == decide(scores, SETTINGS, SPACE, Selection(seed=3), 7)
    others = [decide(scores, SETTINGS, SPACE, Selection(seed=s), i) for s, i in ((4, 7), (3, 8))]
    assert first not in others
    assert exploring.begin(SPACE, 4, Selection(seed=1)) == exploring.begin(SPACE, 4, Selection(seed=1))


def test_those_that_failed_are_replaced_whatever_the_quantile():
    scores = [None, 3.0, None, 1.0, 2.0]
    for quantile in (0.0, 0.2):
        found = decide(scores, SETTINGS[:5], SPACE, Selection(quantile), 1)
        assert [source for source, _ in found] == [1, 1, 1, 3, 4]
    alone = decide([None, None, -5.0], SETTINGS[:3], SPACE, Selection(0.5), 1)
    assert [source for source, _ in alone] == [2, 2, 2] and alone[2][1] == SETTINGS[2]


def test_values_are_drawn_and_perturbed_within_their_ranges():
    generator = np.random.default_rng(0)
    rates = np.array([draw(SPACE["learning_rate"], generator) for _ in range(2_000)])
    assert rates.min() >= 1e-5 and rates.max() <= 1e-1
    assert np.mean(rates < 1e-3) == pytest.approx(0.5, abs=0.05)  # logarithmic
    flat = np.array([draw(Range(0.0, 1.0, False), generator) for _ in range(2_000)])
    assert np.mean(flat < 0.5) == pytest.approx(0.5, abs=0.05)
    whole = {perturb(Range(1, 5, True), 5, generator) for _ in range(20)}
    assert whole == {4, 5} and all(isinstance(x, int) for x in whole)
    assert {perturb([2, 4, 8], 8, generator) for _ in range(20)} == {4, 8}


@pytest.mark.parametrize(
    ("value", "low", "high", "found"),
    [
        (1, 1, 20, {1, 2}),
        (2, 1, 20, {1, 3}),
        (3, 1, 20, {2, 4}),
        (9, 1, 20, {7, 11}),
        (20, 1, 20, {16, 20}),
        (-1, -5, 5, {-2, 0}),
    ],
)
def test_whole_numbers_change_by_one_at_least(value, low, high, found):
    generator = np.random.default_rng(0)
    drawn = [perturb(Range(low, high, True), value, generator) for _ in range(40)]
    assert {*drawn} == found and all(isinstance(x, int) for x in drawn)


def test_zero_is_drawn_again():
    generator = np.random.default_rng(0)
    shares = np.array([perturb(Range(0.0, 0.02, False), 0.0, generator) for _ in range(500)])
    assert shares.max() <= 0.02 and np.mean(shares < 0.01) == pytest.approx(0.5, abs=0.08)
    assert {perturb(Range(0, 3, True), 0, generator) for _ in range(60)} == {0, 1, 2, 3}


def test_a_learning_rate_may_have_a_schedule_that_follows_the_progress_alone():
    found = mutations({"learning_rate": "1e-4..1e-3"}, "ppo", PPOConfig(schedule="linear"))
    assert found == {"learning_rate": Range(1e-4, 1e-3, False)}
    with pytest.raises(ValueError, match="learning_rate, which follows a schedule"):
        mutations({"learning_rate": "1e-4..1e-3"}, "ppo", PPOConfig(schedule="adaptive"))


@pytest.mark.parametrize(
    ("mutate", "wrong"),
    [
        ({"hidden": "32,64"}, "networks and buffers"),
        ({"num_envs": "8,16"}, "no setting of ppo alone"),
        ({"learning_rate": "1e-3"}, "two different values"),
        ({"clipp": "0.1..0.2"}, "did you mean 'clip'"),
        ({"gamma": "0.9..1.5"}, "gamma must lie"),
        ({"clip": "0.1..0.3"}, "follows a schedule"),
        ({}, "mutate says"),
    ],
)
def test_settings_that_cannot_change_are_named(mutate, wrong):
    with pytest.raises(ValueError, match=wrong):
        mutations(mutate, "ppo", PPOConfig(schedules={"clip": "linear:0.1"}))


def test_values_have_the_type_of_their_setting():
    found = mutations({"epochs": "2,4", "clip": "0.1,0.2", "gamma": "0.9..0.99"}, "ppo", PPOConfig())
    assert found == {"epochs": [2, 4], "clip": [0.1, 0.2], "gamma": Range(0.9, 0.99, False)}
