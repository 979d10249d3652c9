"""The benchmark of what actors learn runs, quickly, and notices bits that differ."""

from __future__ import annotations

import sys

import pytest
from helpers import forked

from tests.benchmarks.test_benchmarks import BENCHMARKS


@pytest.fixture
def actor_bits(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import actor_bits

    return actor_bits


def test_it_notices_bits_that_differ(actor_bits):
    right = {("a", "inline", 0): "1", ("a", "sync", 2): "1", ("a", "overlapped", 1): "2", ("b", "inline", 0): "2"}
    assert actor_bits.differing(right) == []
    assert "a: sync gave 2 different" in actor_bits.differing({**right, ("a", "sync", 2): "3"})[0]
    assert "a: overlapped gave 2 different" in actor_bits.differing({**right, ("a", "overlapped", 4): "3"})[0]
    assert "same policy as sync" in actor_bits.differing({**right, ("a", "overlapped", 1): "1"})[0]


@pytest.mark.slow
def test_it_runs(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "actor_bits.py"), "--quick", "--results", str(tmp_path)]
    for _ in range(2):  # the second time from its results
        done = forked.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "actor_bits.jsonl").read_text().splitlines()) == 5
