"""The benchmark of automatic domain randomisation: its ranges follow episodes, and it runs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import forked

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "randomisation.py"


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("randomisation", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "randomisation", module)
    spec.loader.exec_module(module)
    return module


def test_an_end_moves_out_after_good_episodes_and_in_after_bad_ones(program):
    own = program.Randomisation(0)
    everywhere = np.array([[0, env, 500.0, 500] for env in range(program.ENVS)], float)
    assert not own.follow(everywhere) and own.whole.all()  # begun before the training
    assert own.follow(everywhere) and not own.whole.any()
    assert own.range == [program.USUAL] * 2  # none of these was at an end
    while len(own.returns[1]) < program.EPISODES - 1 and own.range[1] == program.USUAL:
        own.follow(everywhere[:1])
    assert own.length.min() >= own.range[0] and own.length.max() <= own.range[1]
    for _ in range(4_000):
        own.follow(everywhere[:1])
    assert own.range == [program.BOUNDS[0], program.BOUNDS[1]]
    bad = everywhere[:1] * [1, 1, 0, 1]
    for _ in range(6_000):
        own.follow(bad)
    assert own.range == [program.USUAL] * 2


@pytest.mark.slow
def test_it_runs_quickly(tmp_path):
    done = forked.run(
        [sys.executable, str(PROGRAM), "--quick", "--results", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.strip().splitlines()[-1])["rows"]
    assert [row["lengths"] for row in rows] == ["usual", "uniform", "automatic"]
    assert all(5 < row["mean"] <= 500 for row in rows)
