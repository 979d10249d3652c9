"""The benchmarks of asynchronous collection run, quickly, and keep what they promise: so they never rot."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import forked

from tests.benchmarks.test_benchmarks import BENCHMARKS, run


def test_no_torn_weights_are_read(tmp_path):
    _, result = run("torn_weights", tmp_path, "--load", "0")
    assert all(row["torn"] == 0 < row["reads"] for row in result["rows"])
    assert result["rows"][0]["reads"] >= 2_000 and result["rows"][0]["versions"] > 3


def test_torn_weights_would_be_noticed(tmp_path):
    _, result = run("torn_weights", tmp_path, "--load", "0", "--unordered")
    assert result["rows"][0]["torn"] > 0


@pytest.mark.slow
def test_modes(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "modes.py"), "--quick", "--only", "sac", "--results", str(tmp_path)]
    printed = forked.run(command, capture_output=True, text=True, check=True).stdout
    rows = json.loads(printed.strip().splitlines()[-1])["rows"]
    assert [row["mode"] for row in rows] == ["inline", "sync", "overlapped", "async"]
    assert rows[1]["lag_max"] == 0 and rows[2]["lag_max"] == 1 >= rows[2]["lag"] > 0
    assert len((tmp_path / "modes.jsonl").read_text().splitlines()) == 4 and "relative" in printed
