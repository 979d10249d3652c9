"""The benchmarks of the diagnosis run, quickly."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from helpers import forked

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_overhead(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "diagnose_overhead.py"), "--quick", "--results", str(tmp_path)]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "diagnose_overhead.jsonl").read_text().splitlines()
    rows = [row for line in lines for row in json.loads(line)["rows"]]
    assert [row["script"] for row in rows] == ["one environment", "eight waiting threads", "two worker processes"]
    assert all(row["steps_s_off"] > 0 and 0 < row["own_account"] < 0.1 for row in rows)


@pytest.mark.parametrize(("which", "number"), [("planted", 20), ("ablated", 10)])
def test_changes_can_be_applied_and_the_archive_is_the_one_that_was_committed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str, number: int
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import verdicts

    for folder in (verdicts.SETS[which] / "open", verdicts.unpack(which, tmp_path)):
        truth = tomllib.loads(next(folder.rglob("truth.toml")).read_text())
        assert len(truth) == number
        for name, own in truth.items():
            text = next(folder.rglob(f"{name}.py")).read_text()
            compile(text, name, "exec")
            assert which == "ablated" or own["kinds"]
            assert all(old in text for old, _ in own.get("change", []))


@pytest.mark.slow
def test_a_planted_verdict(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "verdicts.py"), "--quick", "--results", str(tmp_path)]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert row["seen"] == "sleeping" and row["first"] == "Remove the sleeping"


@pytest.mark.slow
def test_an_interval_of_try_is_measured_again(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "tries.py"), "--quick", "--only", "loads_first"]
    done = forked.run([*command, "--results", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "tries.jsonl").read_text())["rows"]
    assert row["low"] <= row["gain"] <= row["high"] and row["held"] == (row["low"] <= row["later"] <= row["high"])


def test_the_guides_steps_change_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import diagnose_guide

    text = diagnose_guide.START.lstrip()
    for _, changes in diagnose_guide.CHANGES:
        text = diagnose_guide.apply(text, changes)
        compile(text, "train.py", "exec")
    for piece in ("set_num_threads(1)", "eval_freq=1_250", "n_envs=8", "n_steps=256", "batch_size=256", "fused=True"):
        assert piece in text
