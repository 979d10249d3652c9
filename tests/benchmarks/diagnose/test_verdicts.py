"""The benchmarks of the diagnosis run, quickly."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from helpers.benchmark import ran

from benchmarks.diagnose import verdicts_rates, verdicts_scripts
from benchmarks.diagnose.verdicts_scripts import HALVES, SETS, scripts


@pytest.mark.slow
def test_overhead(tmp_path: Path) -> None:
    ran("diagnose.diagnose_overhead", tmp_path, "--quick")
    lines = (tmp_path / "diagnose_overhead.jsonl").read_text().splitlines()
    rows = [row for line in lines for row in json.loads(line)["rows"]]
    assert [row["script"] for row in rows] == ["one environment", "eight waiting threads", "two worker processes"]
    assert all(row["steps_s_off"] > 0 and 0 < row["own_account"] < 0.1 for row in rows)


@pytest.mark.parametrize(
    ("which", "half", "number"),
    [
        *(("planted", "open", 20), ("planted", "sealed", 20), ("ablated", "open", 10), ("ablated", "sealed", 10)),
        *(("strangers", "open", 36), ("strangers", "sealed", 0)),
    ],
)
def test_changes_can_be_applied_and_the_archive_is_the_one_that_was_committed(
    tmp_path: Path, which: str, half: str, number: int
) -> None:
    found = list(verdicts_scripts.scripts(which, half, tmp_path))
    assert len(found) == number
    for script, truth in found:
        text = script.read_text()
        compile(text, script.name, "exec")
        assert verdicts_scripts.kinds_of(truth)
        parts = truth.get("parts", ())
        for changes in (truth.get("change", []), *(parts.values() if isinstance(parts, dict) else ())):
            compile(verdicts_scripts.changed(text, changes, script.stem), script.name, "exec")


def test_a_change_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="sb3_ppo does not contain 'DummyVecEnv'"):
        verdicts_scripts.changed("import torch", [["DummyVecEnv", "SubprocVecEnv"]], "sb3_ppo")


def test_twenty_first_remedies_are_applied_of_scripts_that_have_one(tmp_path: Path) -> None:
    every = [each for which in SETS for half in HALVES for each in scripts(which, half, tmp_path / which)]
    found = {script.stem: (script.read_text(), truth) for script, truth in every}
    assert len(set(verdicts_rates.APPLIED)) == 20
    for name in verdicts_rates.APPLIED:
        text, truth = found[name]
        assert truth["change"] if "kinds" in truth else "REMEDY" in text


def test_gains_are_compared_with_the_verdict_of_the_same_load(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Namespace(gains=3, python=sys.executable)
    said = {"first": "Remove the sleeping", "predicted": 3.0, "bound": 4.0}
    rates = iter([1.0, 2.0, 1.0, 3.5, 1.0, 4.2])
    monkeypatch.setattr(verdicts_rates, "rate", lambda *_: next(rates))
    (row,) = verdicts_rates.gains(Path("s09_rover_td3.py"), {}, lambda: said, options)
    assert (row["gained"], row["low"], row["high"]) == (3.5, 2.0, 4.2)
    assert row["inside"] and not row["above"]
    rates = iter([1.0, 4.1, 1.0, 4.3, 1.0, 4.2])
    (row,) = verdicts_rates.gains(Path("s09_rover_td3.py"), {}, lambda: said, options)
    assert not row["inside"] and row["above"]
    assert verdicts_rates.gains(Path("s01_dqn_acrobot.py"), {}, lambda: said, options) == []


def test_overhead_is_measured_in_turns_of_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[bool] = []

    def rate(_script: Path, _python: str, _variables: dict[str, str], diagnosed: bool) -> float:
        orders.append(diagnosed)
        return 100.0 if diagnosed else 102.0

    monkeypatch.setattr(verdicts_rates, "rate", rate)
    (row,) = verdicts_rates.overhead(Path("sb3_ppo.py"), Namespace(overhead=2, seconds=5.0, python=sys.executable))
    assert orders == [False, True, True, False]
    assert row["overhead"] == pytest.approx(0.02) and row["turns"] == 2


@pytest.mark.slow
def test_a_planted_verdict(tmp_path: Path) -> None:
    ran("diagnose.verdicts", tmp_path, "--quick")
    (row,) = json.loads((tmp_path / "verdicts.jsonl").read_text())["rows"]
    assert row["seen"] == "sleeping" and row["first"] == "Remove the sleeping"


@pytest.mark.slow
def test_an_interval_of_try_is_measured_again(tmp_path: Path) -> None:
    ran("diagnose.try_intervals", tmp_path, "--quick", "--only", "loads_first")
    (row,) = json.loads((tmp_path / "tries.jsonl").read_text())["rows"]
    assert row["low"] <= row["gain"] <= row["high"] and row["held"] == (row["low"] <= row["later"] <= row["high"])
