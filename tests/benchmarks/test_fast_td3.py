"""The benchmark of FastTD3 and TD3: both ways train to a mark of CPU time, and its table has their means."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "fast_td3.py"


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("fast_td3", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("way", ["fasttd3", "td3"])
def test_a_way_trains_to_each_mark(program, way, monkeypatch):
    monkeypatch.setattr(program, "EPISODES", 1)
    points = program.train(way, "InvertedPendulum-v5", 0, [0.05, 0.2])
    assert [point["cpu_s"] for point in points] == [0.05, 0.2] and 0 < points[0]["steps"] < points[1]["steps"]
    assert all(point["spent"] >= point["cpu_s"] and point["return"] >= 1 for point in points)


def test_the_table_has_means_of_seeds(program):
    points = ([{"cpu_s": 100.0, "return": value}] for value in (3.0, 5.0, -1.0))
    rows = [{"env": "E", "way": way, "points": found} for way, found in zip(("b", "b", "a"), points, strict=True)]
    lines = program.summary(rows)
    assert [(line["way"], line["return"], line["lowest"], line["seeds"]) for line in lines] == [
        ("a", -1.0, -1.0, 1),
        ("b", 4.0, 3.0, 2),
    ]
