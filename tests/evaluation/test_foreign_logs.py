"""Learning curves of other libraries: their files as they write them, in one plot with Headrace's."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from headrace.evaluation.curves import grouped, plot
from headrace.evaluation.foreign_logs import read


def monitor(path: Path, rows: list[tuple[float, int, float]], began: float = 100.0, env: str = "SomeEnv-v1") -> Path:
    """A monitor file as Stable-Baselines3's Monitor writes it: csv.DictWriter ends lines with a carriage return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"#{json.dumps({'t_start': began, 'env_id': env})}\n"
    path.write_text(head + "".join(f"{','.join(map(str, row))}\r\n" for row in [("r", "l", "t"), *rows]), newline="")
    return path


def events(folder: Path, scalars: dict[str, list[tuple[int, float, float]]], table: dict[str, object] | None = None):
    """TensorBoard's events: scalars by tag (step, seconds, value), and CleanRL's table of hyperparameters."""
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import text

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"))
    writer.write_event(Event(wall_time=1000.0, file_version="brain.Event:2"))
    if table:
        rows = "\n".join(f"|{name}|{value}|" for name, value in table.items())
        writer.write_event(Event(wall_time=1000.0, summary=text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")))
    for tag, values in scalars.items():
        for step, seconds, value in values:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.write_event(Event(wall_time=1000.0 + seconds, step=step, summary=summary))
    writer.close()
    return folder


def test_monitors_of_several_environments_are_one_run_in_the_order_of_their_clocks(tmp_path):
    monitor(tmp_path / "a2c_3/0.monitor.csv", [(1.0, 10, 1.0), (3.0, 30, 3.0)])
    monitor(tmp_path / "a2c_3/1.monitor.csv", [(2.0, 20, 1.5)], began=100.5)
    run = read(tmp_path / "a2c_3")
    assert run.episode_return.tolist() == [1, 2, 3]
    assert run.steps.tolist() == [10, 30, 60] and run.seconds.tolist() == [1, 2, 3]
    assert (run.name, run.env) == ("a2c (SB3)", "SomeEnv-v1")
    alone = read(tmp_path / "a2c_3/1.monitor.csv")
    assert alone.seconds.tolist() == [1.5] and alone.name == "1 (SB3)"


def test_a_folder_of_the_zoo_has_its_algorithm_and_hyperparameters(tmp_path):
    yaml = pytest.importorskip("yaml")
    runs = []
    for number, rate in enumerate((0.1, 0.1, 0.2)):
        folder = tmp_path / f"logs/ppo/SomeEnv-v1_{number}"
        monitor(folder / "0.monitor.csv", [(1.0, 10, 1.0)])
        (folder / "SomeEnv-v1").mkdir()
        entry = OrderedDict(learning_rate=rate, n_timesteps=number, policy_kwargs=pytest.raises)
        (folder / "SomeEnv-v1/config.yml").write_text(yaml.dump(entry))
        runs.append(read(folder))
    groups = grouped(runs)
    assert {name: len(members) for name, members in groups.items()} == {
        "ppo (rl_zoo3), learning_rate 0.1": 2,
        "ppo (rl_zoo3), learning_rate 0.2": 1,
    }


def test_damaged_hyperparameters_leave_the_curve(tmp_path, capsys):
    monitor(tmp_path / "ppo/SomeEnv-v1_1/0.monitor.csv", [(1.0, 10, 1.0)])
    (tmp_path / "ppo/SomeEnv-v1_1/SomeEnv-v1").mkdir()
    (tmp_path / "ppo/SomeEnv-v1_1/SomeEnv-v1/config.yml").write_text("a: [")
    assert read(tmp_path / "ppo/SomeEnv-v1_1").settings == {}
    assert "config.yml" in capsys.readouterr().err


def test_events_of_cleanrl_are_episodes_with_the_names_of_its_table(tmp_path):
    table = {"exp_name": "dqn", "env_id": "SomeEnv-v1", "seed": 3, "learning_rate": 0.5, "total_timesteps": 9}
    curve = [(10, 1.0, 5.0), (40, 3.0, 7.0)]
    folder = events(tmp_path / "a", {"charts/episodic_return": curve, "losses/loss": [(1, 1, 1)]}, table)
    run = read(folder)
    assert run.steps.tolist() == [10, 40] and run.episode_return.tolist() == [5, 7]
    assert run.seconds == pytest.approx([1.0, 3.0])
    assert (run.name, run.env, run.settings) == ("dqn (CleanRL)", "SomeEnv-v1", {"learning_rate": "0.5"})
    assert read(next(folder.iterdir())).steps.tolist() == [10, 40]


def test_an_event_that_is_being_written_is_left_out_and_a_damaged_one_ends_the_file(tmp_path):
    folder = events(tmp_path / "PPO_1", {"rollout/ep_rew_mean": [(10, 1.0, 5.0), (40, 3.0, 7.0)]})
    file = next(folder.iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    run = read(folder)
    assert run.steps.tolist() == [10] and run.averaged and run.name == "PPO (SB3)"
    place = whole.index(b"rollout/ep_rew_mean", whole.index(b"rollout/ep_rew_mean") + 1)
    file.write_bytes(whole[: place - 4] + b"\xff" * 4 + whole[place:])
    with pytest.warns(UserWarning, match=r"byte \d+ is damaged"):
        assert read(folder).steps.tolist() == [10]


@pytest.mark.parametrize("kind", ["nothing", "other scalars", "no episode"])
def test_what_is_no_run_is_named(tmp_path, kind):
    if kind == "nothing":
        with pytest.raises(FileNotFoundError, match=r"is not a run: it has no monitor\.csv.*TensorBoard"):
            read(tmp_path)
    elif kind == "other scalars":
        with pytest.raises(ValueError, match=r"has no scalars charts/episodic_return .* it has losses/loss"):
            read(events(tmp_path, {"losses/loss": [(1, 1.0, 1.0)]}))
    else:
        monitor(tmp_path / "monitor.csv", [])
        with pytest.raises(ValueError, match="no episode has ended"):
            read(tmp_path)


def test_all_libraries_are_in_one_picture(tmp_path):
    own = tmp_path / "runs/ppo/SomeEnv-v1_1"
    monitor(own / "monitor.csv", [(1.0, 10, 1.0), (2.0, 10, 2.0)])
    (own / "config.toml").write_text('algorithm = "ppo"\n')
    monitor(tmp_path / "sb3/0.monitor.csv", [(1.0, 10, 1.0), (2.0, 10, 2.0)])
    table = {"exp_name": "ppo", "env_id": "SomeEnv-v1"}
    events(tmp_path / "cleanrl", {"charts/episodic_return": [(10, 1.0, 5.0)]}, table)
    means = events(tmp_path / "PPO_1", {"rollout/ep_rew_mean": [(10, 1.0, 5.0), (20, 2.0, 6.0)]})
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        picture = plot([own, tmp_path / "sb3", tmp_path / "cleanrl", means], tmp_path / "all.svg").read_text()
    for words in ("PPO, mean of 100", "sb3 (SB3)", "ppo (CleanRL)", "PPO (SB3)", "SomeEnv-v1"):
        assert words in picture
    assert "environment unknown" not in picture  # which is the others'
    assert not np.isnan(read(own).seconds).any()
