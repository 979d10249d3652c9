"""The benchmark of FastTD3 and TD3: both ways train to a mark of CPU time, and its table has their means."""

from __future__ import annotations

import pytest

pytest.importorskip("mujoco")

from benchmarks.returns import fast_td3


@pytest.mark.parametrize("way", ["fasttd3", "td3"])
def test_a_way_trains_to_each_mark(way, monkeypatch):
    monkeypatch.setattr(fast_td3, "EPISODES", 1)
    points = fast_td3.train(way, "InvertedPendulum-v5", 0, [0.05, 0.2])
    assert [point["cpu_s"] for point in points] == [0.05, 0.2] and 0 < points[0]["steps"] < points[1]["steps"]
    assert all(point["spent"] >= point["cpu_s"] and point["return"] >= 1 for point in points)


def test_the_table_has_means_of_seeds():
    points = ([{"cpu_s": 100.0, "return": value}] for value in (3.0, 5.0, -1.0))
    rows = [{"env": "E", "way": way, "points": found} for way, found in zip(("b", "b", "a"), points, strict=True)]
    lines = fast_td3.summary(rows)
    assert [(line["way"], line["return"], line["lowest"], line["seeds"]) for line in lines] == [
        ("a", -1.0, -1.0, 1),
        ("b", 4.0, 3.0, 2),
    ]
