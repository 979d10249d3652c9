"""Learning curves: reading runs, aggregating runs, and the image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.evaluation.curves import (
    _plot_env,
    _plot_group,
    interquartile_mean,
    join,
    join_curves,
    plot,
    running_mean,
    strata,
)
from headrace.evaluation.history import read


def make_run(
    folder: Path, episodes: list[tuple[float, int, float]], rows: list[tuple[int, float]] = (), env: str = "SomeEnv"
) -> Path:
    """A run's folder: episodes (return, length, seconds) and rows of metrics (steps, seconds)."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('algorithm = "ppo"\n')
    lines = [f"#{json.dumps({'t_start': 0.0, 'env_id': env})}", "r,l,t", *(",".join(map(str, e)) for e in episodes)]
    (folder / "monitor.csv").write_text("\n".join(lines) + "\n")
    metrics = "".join(json.dumps({"steps": steps, "seconds": seconds}) + "\n" for steps, seconds in rows)
    (folder / "metrics.jsonl").write_text(metrics)
    return folder


def test_steps_are_those_at_the_end_of_each_episode(tmp_path):
    episodes = [(1.0, 10, 0.5), (2.0, 10, 1.0), (4.0, 10, 3.0)]
    history = read(make_run(tmp_path / "a_1", episodes, [(100, 1.0), (500, 3.0)]))
    assert (history.algorithm, history.env) == ("ppo", "SomeEnv")
    assert history.episode_return.tolist() == [1, 2, 4]
    assert history.steps.tolist() == [50, 100, 500]


def test_without_metrics_the_steps_are_those_of_finished_episodes(tmp_path):
    assert read(make_run(tmp_path / "a_1", [(1.0, 10, 0.5), (2.0, 30, 1.0)])).steps.tolist() == [10, 40]


def test_episodes_of_one_iteration_are_spread_over_it(tmp_path):
    episodes = [(0.0, 1, 1.0), (0.0, 1, 1.0), *[(0.0, 1, 3.0)] * 4]
    assert read(make_run(tmp_path / "a_1", episodes)).seconds.tolist() == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    folder = make_run(tmp_path / "a_1", [(1.0, 10, 0.5)], [(100, 1.0)])
    with (folder / "monitor.csv").open("a") as monitor, (folder / "metrics.jsonl").open("a") as metrics:
        monitor.write("2.0,1")
        metrics.write('{"steps": 2')
    assert read(folder).episode_return.tolist() == [1.0]


@pytest.mark.parametrize("damage", ["\0" * 20, '{"steps": 2', "[]", '{"seconds": [2], "steps": 300}', '"\udcff'])
def test_a_damaged_row_is_left_out_with_a_warning_that_names_the_line(tmp_path, damage):
    folder = make_run(tmp_path / "a_1", [(1.0, 10, 0.5), (2.0, 10, 3.0)], [(100, 1.0), (300, 2.0), (500, 3.0)])
    path = folder / "metrics.jsonl"
    first, _, last = path.read_text().splitlines()
    path.write_text(f"{first}\n{damage}\n{last}\n", errors="surrogateescape")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl, line 2 is damaged, and left out: ") as said:
        history = read(folder)
    assert len(said) == 1
    assert history.steps.tolist() == [50, 500]


def test_a_damaged_episode_is_left_out_and_a_damaged_header_is_an_error(tmp_path):
    folder = make_run(tmp_path / "a_1", [(1.0, 10, 0.5), (2.0, 10, 1.0), (3.0, 10, 1.5), (4.0, 10, 2.0)])
    path = folder / "monitor.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], "2.0", "3.0,x,1.5", *lines[5:]]) + "\n")
    with pytest.warns(UserWarning, match=r"monitor\.csv, line [45] is damaged") as said:
        assert read(folder).episode_return.tolist() == [1, 4]
    assert len(said) == 2
    for header in (["#{", lines[1]], [lines[0], "r,l"], [lines[0]]):
        path.write_text("\n".join([*header, *lines[2:]]) + "\n")
        with pytest.raises(ValueError, match=r"monitor\.csv does not begin with the lines .*'r,l,t'"):
            read(folder)


def test_a_run_without_episodes_and_a_folder_that_is_no_run_are_errors(tmp_path):
    with pytest.raises(ValueError, match="no episode has ended"):
        read(make_run(tmp_path / "a_1", []))
    (tmp_path / "a_1" / "monitor.csv").write_text("#{")  # incomplete
    with pytest.raises(ValueError, match="no episode has ended"):
        read(tmp_path / "a_1")
    with pytest.raises(FileNotFoundError, match=r"is not a run: it has no monitor\.csv"):
        read(tmp_path)


def test_running_mean_is_of_the_last_entries():
    assert running_mean(np.array([2.0, 4.0, 6.0, 8.0]), window=2).tolist() == [2, 3, 5, 7]


def test_interquartile_mean_leaves_the_outer_quarters_out():
    assert interquartile_mean(np.array([-1000.0, 1.0, 3.0, 1000.0])) == 2.0
    assert interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0


def test_runs_are_aggregated_by_their_interquartile_mean_within_a_band(tmp_path):
    levels = [0.0, 10.0, 20.0, 100.0]
    runs = [
        make_run(tmp_path / f"a_{level}", [(level, 10, t) for t in (1.0, 2.0, 3.0)], [(300, 3.0)]) for level in levels
    ]
    x, middle, low, high = join([read(run) for run in runs], "steps")
    assert (x[0], x[-1]) == (100, 300)
    assert middle == pytest.approx(np.full(200, 15.0))
    assert (low < 15).all() and (high > 15).all() and (low >= 0).all() and (high <= 100).all()


def test_a_run_that_ended_before_others_keeps_its_last_value(tmp_path):
    short = make_run(tmp_path / "a_1", [(10.0, 10, 1.0)], [(100, 1.0)])
    long = make_run(tmp_path / "a_2", [(20.0, 10, 1.0), (20.0, 10, 2.0)], [(200, 2.0)])
    _, middle, _, _ = join([read(short), read(long)], "steps")
    assert middle[-1] == 15.0


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_runs_of_two_environments_get_a_row_each(tmp_path, ending):
    episodes = [(float(i), 10, i / 10) for i in range(1, 30)]
    one = make_run(tmp_path / "a_1", episodes, [(300, 3.0)], "SomeEnv")
    other = make_run(tmp_path / "b_1", episodes, [(300, 3.0)], "OtherEnv")
    single = plot([one], tmp_path / f"one.{ending}")
    both = plot([one, other], tmp_path / "images" / f"both.{ending}")
    assert both.stat().st_size > single.stat().st_size > 10_000


def test_the_image_has_labels(tmp_path):
    runs = [make_run(tmp_path / f"a_{i}", [(i, 10, t) for t in (1.0, 2.0)], [(200, 2.0)]) for i in range(5)]
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text, not paths
        text = plot(runs, tmp_path / "curves.svg").read_text()
    for words in ("SomeEnv", "environment steps", "wall time of training (s)", "episode return", "PPO"):
        assert words in text
    assert "interquartile mean of 5 runs" in text


def test_any_logged_column_takes_the_place_of_returns(tmp_path):
    run = make_run(tmp_path / "a_1", [(9.0, 10, 1.0), (8.0, 10, 2.0), (7.0, 10, 3.0)], [(10, 1.0), (30, 3.0)])
    head, names, *rows = (run / "monitor.csv").read_text().splitlines()
    rows = [
        f"{row},{hits}" for row, hits in zip(rows, ("2.0", "", "4.0"), strict=True)
    ]  # an episode without the number
    (run / "monitor.csv").write_text("\n".join([head, f"{names},hits", *rows]) + "\n")
    losses = [
        {"steps": 30, "seconds": 3.0, "loss": 0.5},
        {"steps": 10, "seconds": 1.0, "loss": 2},
        {"steps": 40, "seconds": 4.0},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in losses))
    hits, loss = read(run, "hits"), read(run, "loss")
    assert hits.episode_return.tolist() == [2, 4] and hits.steps.tolist() == [10, 30] and not hits.averaged
    assert loss.episode_return.tolist() == [2, 0.5] and loss.steps.tolist() == [10, 30] and loss.averaged
    with pytest.raises(ValueError, match="a_1 has logged no 'los'; did you mean 'loss'"):
        plot([run], tmp_path / "x.svg", metric="los")
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = plot([run], tmp_path / "hits.svg", metric="hits").read_text()
    assert ">hits<" in text and "episode return" not in text
    (tmp_path / "x.monitor.csv").write_text((run / "monitor.csv").read_text())
    with pytest.raises(ValueError, match="no run of Headrace"):
        plot([tmp_path / "x.monitor.csv"], tmp_path / "x.svg", metric="hits")


def test_the_legend_is_below_the_curves(tmp_path):
    from matplotlib.figure import Figure

    panels = Figure(layout="constrained").subplots(1, 2)
    _plot_env(panels, "Env", {"PPO": [read(make_run(tmp_path / "a_1", [(1.0, 10, 0.5), (2.0, 10, 1.0)]))]})
    panels[0].figure.draw_without_rendering()
    legend, axes = panels[0].get_legend().get_window_extent(), panels[0].get_window_extent()
    assert legend.y1 < axes.y0 and legend.y0 > 0


def test_a_missing_library_is_an_error_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'headrace\[plot\]'"):
        plot([make_run(tmp_path / "a_1", [(1.0, 1, 1.0)])], tmp_path / "x.png")


def test_a_bootstrap_draws_again_among_runs_of_the_same_settings(tmp_path):
    """Two settings that learn 0 and 10 in each of their seeds: only between settings is there a difference."""
    x = np.array([0.0, 100.0])
    curves = [(x, np.full(2, value)) for value in (0.0, 0.0, 10.0, 10.0)]
    _, middle, low, high = join_curves(curves, ["a", "a", "b", "b"])
    assert (middle == 5).all() and (low == 5).all() and (high == 5).all()
    _, middle, low, high = join_curves(curves, ["a"] * 4)
    assert (middle == 5).all() and (low < 2).all() and (high > 8).all()
    runs = [make_run(tmp_path / f"a_{k}", [(1.0, 10, 0.5)]) for k in range(3)]
    for run, rate, seed in zip(runs, (1, 1, 2), (0, 1, 0), strict=True):
        (run / "config.toml").write_text(f'algorithm = "ppo"\nlearning_rate = {rate}\nseed = {seed}\n')
    first, second, third = strata([read(run) for run in runs])
    assert first == second != third


def test_several_agents_have_a_line_each(tmp_path):
    from matplotlib.figure import Figure

    runs = [make_run(tmp_path / f"a_{k}", [(1.0, 10, 0.5)]) for k in range(2)]
    rows = [{"steps": 100 * k, "seconds": k, "return/fox": k, "return/hen": -k} for k in range(1, 4)]
    for run in runs:
        (run / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in [{**rows[0], "return/fox": None}, *rows])
        )
    histories = [read(run) for run in runs]
    assert histories[0].by_agent["fox"].tolist() == [[100, 1, 1], [200, 2, 2], [300, 3, 3]]
    for members, ends in ((histories[:1], "PPO, fox"), (histories, "PPO, fox, mean of 2 runs, 95 % band")):
        panel = Figure().subplots()
        _plot_group(panel, "steps", "#000000", "PPO", members)
        fox, hen = panel.get_lines()
        assert fox.get_label() == ends and fox.get_ydata()[-1] == 3 and hen.get_ydata()[-1] == -3
        assert fox.get_linestyle() != hen.get_linestyle()
