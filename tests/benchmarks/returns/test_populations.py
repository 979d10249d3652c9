"""The benchmark of populations runs, and learns."""

from __future__ import annotations

import pytest
from helpers import benchmark


@pytest.mark.slow
def test_it_runs_quickly(tmp_path):
    rows = benchmark.last(benchmark.ran("returns.populations", tmp_path, "--quick"))["rows"]
    assert [row["learning_rate"] for row in rows] == [0.001, 0.01, "population"]
    assert all(-20 < row["end"] <= 10 for row in rows)
