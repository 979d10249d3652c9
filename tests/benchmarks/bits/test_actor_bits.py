"""The benchmark of what actors learn runs, quickly, and notices bits that differ."""

from __future__ import annotations

import pytest
from helpers.benchmark import ran

from benchmarks.bits import actor_bits


def test_it_notices_bits_that_differ():
    right = {("a", "inline", 0): "1", ("a", "sync", 2): "1", ("a", "overlapped", 1): "2", ("b", "inline", 0): "2"}
    assert actor_bits.differing(right) == []
    assert "a: sync gave 2 different" in actor_bits.differing({**right, ("a", "sync", 2): "3"})[0]
    assert "a: overlapped gave 2 different" in actor_bits.differing({**right, ("a", "overlapped", 4): "3"})[0]
    assert "same policy as sync" in actor_bits.differing({**right, ("a", "overlapped", 1): "1"})[0]


@pytest.mark.slow
def test_it_runs(tmp_path):
    for _ in range(2):  # the second time from its results
        ran("bits.actor_bits", tmp_path, "--quick")
    assert len((tmp_path / "actor_bits.jsonl").read_text().splitlines()) == 5
