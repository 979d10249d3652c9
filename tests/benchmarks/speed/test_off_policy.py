"""The benchmarks of gradient steps run, quickly, and keep what they promise: so they never rot."""

from __future__ import annotations

import json
import sys

import pytest
from helpers.benchmark import run

from benchmarks.speed import off_policy_loop


@pytest.mark.slow
def test_off_policy(tmp_path):
    printed, result = run("speed.off_policy", tmp_path, "--only", "sac", "--libraries", "headrace")
    (row,) = result["rows"]
    assert row["library"] == "headrace" and row["hidden"] == [256, 256] and row["batch_size"] == 256
    assert 0 < row["per_second_min"] <= row["per_second"] <= row["per_second_max"] and "per_second" in printed


@pytest.mark.slow
def test_one_line(tmp_path):
    printed, result = run("speed.one_line", tmp_path, "--sizes", "1,8", "--peers-home", tmp_path)
    rows = {row["program"]: row for row in result["rows"]}
    assert {"headrace_quickstart", "single_file_sync", "single_file_headrace", "headrace_sb3"} <= rows.keys()
    before, after = rows["single_file_sync"], rows["single_file_headrace"]
    assert after["times_before"] == pytest.approx(after["steps_per_second"] / before["steps_per_second"])
    assert after["bound"] == pytest.approx(1 / (1 - before["in_envs"])) and 0 < before["in_envs"] < 1
    assert "times_before" in printed


def test_off_policy_loop_keeps_each_measurement_and_goes_on(tmp_path, monkeypatch, capsys):
    """Interrupted at its third measurement, it has two; then it makes the others, and counts all."""
    asked: list[tuple[str, ...]] = []

    def measure(python, program, library, name, size, *_, **__):
        asked.append((library, name, size))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"sps": float(len(asked))}

    monkeypatch.setattr(off_policy_loop, "run_program", measure)
    monkeypatch.setattr(off_policy_loop, "interpreters", lambda names, *_: dict.fromkeys(names, sys.executable))
    given = ["--libraries", "kernel", "gymnasium", "--rounds", "2", "--sizes", "64", "--algorithms", "sac"]
    monkeypatch.setattr(sys, "argv", ["off_policy_loop", *given, "--results", str(tmp_path), "--resume"])
    with pytest.raises(KeyboardInterrupt):
        off_policy_loop.main()
    off_policy_loop.main()
    assert [library for library, *_ in asked] == ["kernel", "gymnasium", "kernel", "kernel", "gymnasium"]
    lines = [json.loads(line) for line in (tmp_path / "off_policy_loop.jsonl").read_text().splitlines()]
    assert [line["sps"] for line in lines[:-1]] == [1, 2, 4, 5]
    assert [row["per_second"] for row in lines[-1]["rows"]] == [2.5, 3.5]
    off_policy_loop.main()
    assert len(asked) == 5
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--label", "another"])
    off_policy_loop.main()
    assert len(asked) == 9


@pytest.mark.slow
def test_off_policy_loop(tmp_path):
    _, result = run(
        "speed.off_policy_loop", tmp_path, "--algorithms", "sac", "--libraries", "kernel", "gymnasium", "--sizes", "64"
    )
    kernel, gymnasium = result["rows"]
    assert (kernel["library"], kernel["kernel_ratio"], gymnasium["library"]) == ("kernel", 1.0, "gymnasium")
    assert gymnasium["kernel_ratio"] == kernel["per_second"] / gymnasium["per_second"] > 0


@pytest.mark.slow
def test_cold_start(tmp_path):
    _, result = run("speed.cold_start", tmp_path)
    (row,) = result["rows"]
    assert row["cold_s"] > row["warm_s"] > 0 and row["compiling_s"] > 0
