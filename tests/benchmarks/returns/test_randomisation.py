"""The benchmark of automatic domain randomisation: its ranges follow episodes, and it runs."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import benchmark

from benchmarks.returns import randomisation


def test_an_end_moves_out_after_good_episodes_and_in_after_bad_ones():
    own = randomisation.Randomisation(0)
    everywhere = np.array([[0, env, 500.0, 500] for env in range(randomisation.ENVS)], float)
    assert not own.follow(everywhere) and own.whole.all()  # begun before the training
    assert own.follow(everywhere) and not own.whole.any()
    assert own.range == [randomisation.USUAL] * 2  # none of these was at an end
    while len(own.returns[1]) < randomisation.EPISODES - 1 and own.range[1] == randomisation.USUAL:
        own.follow(everywhere[:1])
    assert own.length.min() >= own.range[0] and own.length.max() <= own.range[1]
    for _ in range(4_000):
        own.follow(everywhere[:1])
    assert own.range == [randomisation.BOUNDS[0], randomisation.BOUNDS[1]]
    bad = everywhere[:1] * [1, 1, 0, 1]
    for _ in range(6_000):
        own.follow(bad)
    assert own.range == [randomisation.USUAL] * 2


@pytest.mark.slow
def test_it_runs_quickly(tmp_path):
    rows = benchmark.last(benchmark.ran("returns.randomisation", tmp_path, "--quick"))["rows"]
    assert [row["lengths"] for row in rows] == ["usual", "uniform", "automatic"]
    assert all(5 < row["mean"] <= 500 for row in rows)
