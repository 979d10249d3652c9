"""The image of README.md: seconds until CartPole is solved, by library."""

from __future__ import annotations

import pytest
from helpers.benchmark import ROOT

from benchmarks.pages import solve_figure


def test_the_image_of_the_readme_shows_the_newest_measurement_of_all_libraries(tmp_path):
    found = solve_figure.bars(solve_figure.newest(solve_figure.read_rows(solve_figure.FILE)))
    assert [bar.label for bar in found] == list(solve_figure.LIBRARIES.values())
    ours, *others = [f"{bar.median:.2g}" for bar in found]
    readme = (ROOT / "README.md").read_text()
    assert f"Headrace {ours}, the others {min(others, key=float)} to {max(others, key=float)}]" in readme
    solve_figure.draw(found, tmp_path / "image.png")
    assert (tmp_path / "image.png").stat().st_size > 10_000


def test_rows_of_several_sittings_are_not_compared():
    def run(when, library, seconds, config=None):
        row = {"library": library, "config": config, "env": "CartPole-v1", "cache": None, "held": seconds is not None}
        rows = [{**row, "held_train_s": seconds}, {**row, "held_train_s": 2.0, "held": True}]
        return {"when": f"2026-01-01T{when}:00Z", "machine": {"cpu": "a"}, "settings": [], "quick": False, "rows": rows}

    first = [run(f"08:{10 * place:02}", library, 4.0) for place, library in enumerate(solve_figure.LIBRARIES)]
    slow = run("08:35", "rejax", 3.0, "zoo"), run("08:40", "rejax", None, "large")
    found = solve_figure.bars(solve_figure.newest([*first, *slow, run("12:00", "headrace", 1.0)]))
    assert [(bar.config, bar.median, len(bar.seconds)) for bar in found] == [(None, 3.0, 2)] * 3 + [("zoo", 2.5, 2)]
    with pytest.raises(ValueError, match="no sitting with"):
        solve_figure.newest([run(f"0{place}:00", library, 4.0) for place, library in enumerate(solve_figure.LIBRARIES)])
