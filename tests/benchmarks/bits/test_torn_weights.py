"""The benchmark of torn weights runs, quickly, and would notice one: so it never rots."""

from __future__ import annotations

from helpers.benchmark import run


def test_no_torn_weights_are_read(tmp_path):
    _, result = run("bits.torn_weights", tmp_path, "--load", "0")
    assert all(row["torn"] == 0 < row["reads"] for row in result["rows"])
    assert result["rows"][0]["reads"] >= 2_000 and result["rows"][0]["versions"] > 3


def test_torn_weights_would_be_noticed(tmp_path):
    _, result = run("bits.torn_weights", tmp_path, "--load", "0", "--unordered")
    assert result["rows"][0]["torn"] > 0
