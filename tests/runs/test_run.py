"""A run's folder: what lies in it, what others can read of it, and what happens when the disk says no."""

from __future__ import annotations

import csv
import json
import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.data.spaces import Box, Discrete
from headrace.evaluation.playing import Evaluation
from headrace.policies.actor_critic import ActorCritic
from headrace.runs import checkpoint, evaluations, progress
from headrace.runs.recorder import Recorder
from headrace.runs.run import new_folder

pytestmark = pytest.mark.usefixtures("in_tmp")


@pytest.fixture
def run():
    return hr.train("ppo", Walk(), total_steps=3000, save_freq=1000, window=20, **TINY)


def test_the_folder_holds_what_is_promised(run):
    assert run.path == Path("runs/ppo/Walk_1").absolute()
    names = {path.name for path in run.path.iterdir()}
    assert {"config.toml", "command.txt", "monitor.csv", "metrics.jsonl", "best", "last", "last.previous"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert len([name for name in names if name.startswith("step_")]) == 3
    assert not [name for name in names if name.startswith(".")]
    config = tomllib.loads((run.path / "config.toml").read_text())
    assert config["algorithm"] == "ppo" and config["total_steps"] == 3000 and config["hidden"] == [8]


def test_monitor_is_as_stable_baselines3_writes_it(run):
    header, *lines = (run.path / "monitor.csv").read_text().splitlines()
    assert header[0] == "#" and json.loads(header[1:])["env_id"] == "Walk"
    rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["r", "l", "t"] and len(rows) == run.metrics["episodes"]
    assert np.mean([float(row["r"]) for row in rows[-20:]]) == pytest.approx(run.metrics["return"])
    times = [float(row["t"]) for row in rows]
    assert times == sorted(times) and 0 < times[-1] <= run.seconds + 1e-5


def test_metrics_are_few_and_the_last_is_there(run):
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1] == run.metrics and rows[-1]["steps"] == run.steps
    assert len(rows) <= 2 + run.seconds / 0.1
    assert {"steps", "seconds", "episodes", "return", "length", "steps_per_second", "value_loss"} <= set(rows[-1])


def test_tensorboard_has_the_tags_people_know(run):
    from tensorboardX.proto.event_pb2 import Event

    (path,) = run.path.glob("events.out.tfevents*")
    tags = {
        value.tag: (event.step, value.simple_value) for event in events(path, Event) for value in event.summary.value
    }
    learning = (
        "policy_gradient_loss",
        "value_loss",
        "entropy_loss",
        "approx_kl",
        "clip_fraction",
        "explained_variance",
    )
    assert {f"train/{name}" for name in (*learning, "learning_rate")} <= set(tags)
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps"} <= set(tags)
    assert tags["rollout/ep_rew_mean"] == (run.steps, pytest.approx(run.metrics["return"]))


def test_a_run_resumed_at_once_does_not_write_over_its_first_events(tmp_path):
    from headrace.runs.events import EventFile

    for step in (1, 2):
        file = EventFile(tmp_path, purge=None if step == 1 else step)
        file.write([(0.0, step, {"a": 1e300})])
        file.close()
    assert len(list(tmp_path.glob("events.out.tfevents*"))) == 2


def events(path, kind):
    """The records of an events file: length (8 bytes), checksum (4), record, checksum (4)."""
    data = path.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        yield kind.FromString(data[12 : 12 + size])
        data = data[16 + size :]


def test_load_gives_the_policy_back(run):
    observation = np.array([[0.1, 0.5], [-0.2, 0.0], [0.3, 1.0]], np.float32)
    last = hr.load(run.path, which="last")
    assert all(torch.equal(a, b) for a, b in zip(last.parameters(), run.policy.parameters(), strict=True))
    assert (last.predict(observation)[0] == run.policy.predict(observation)[0]).all()
    assert last.predict(observation[0])[0].shape == () and last.predict(observation)[0].shape == (3,)
    for path in (run.path, run.path / "best", run.path / "last", next(run.path.glob("step_*"))):
        assert hr.load(path).predict(observation)[0].shape == (3,)
    assert all(torch.equal(a, b) for a, b in zip(hr.load(run.path).parameters(), run.best.parameters(), strict=True))


def test_best_is_the_policy_with_the_best_window():
    class Fading(Walk):
        """Pays until the third rollout is done, then no more."""

        def step(self, rollout, t):
            super().step(rollout, t)
            rollout.reward[t] *= self.taken <= 48

    seen = {}
    trainer = hr.Trainer("ppo", Fading(), total_steps=2000, window=8, **TINY)
    with Recorder(trainer, new_folder("runs", "ppo", "Walk")) as recorder:
        while not trainer.reason_to_stop():
            recorder.record(trainer.iterate())
            if trainer.episodes.full:
                seen.setdefault(trainer.episodes.mean_return(), trainer.steps)
        run = recorder.finish("total_steps")
    facts = checkpoint.read_manifest(run.path / "best")
    assert facts["score"] == max(seen) and facts["steps"] == seen[max(seen)]


class Chain(gymnasium.Env):
    """Ten steps, each of which earns 1 by action 1."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.left = 10
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), float(action), False, self.left == 0, {}


@pytest.mark.parametrize("last_is_better", [True, False])
def test_the_policy_of_the_best_window_is_best_if_the_last_one_is_not_better(last_is_better):
    def prefer(action):
        with torch.no_grad():
            trainer.policy.actor_out.weight.zero_()
            trainer.policy.actor_out.bias.copy_(torch.tensor([0.0, 9.0] if action else [9.0, 0.0]))

    trainer = hr.Trainer("ppo", Chain, num_envs=8, window=8, total_steps=640, **TINY)
    with Recorder(trainer, new_folder("runs", "ppo", "Chain")) as recorder:
        prefer(1)
        result = trainer.iterate()
        prefer(int(not last_is_better))  # what a lucky window, of 10, leaves behind
        recorder.record(result)
        prefer(0)
        while not trainer.reason_to_stop():
            recorder.record(trainer.iterate())
        prefer(int(last_is_better))
        run = recorder.finish("total_steps")
    chosen = checkpoint.read_manifest(run.path / "best")["steps"]
    assert chosen == run.steps if last_is_better else chosen < run.steps
    assert hr.evaluate(hr.load(run.path), Chain, 3).mean == 10.0
    assert checkpoint.read_manifest(run.path / "last")["ended_by"] == "total_steps"


def test_where_the_returns_of_agents_cancel_the_last_policy_is_best(monkeypatch):
    def duel(*arguments, **options):
        means.append(0.01 / len(means))
        return Evaluation(means[-1], 1.0, (0.0,), (5,), 0.1, {"one": (4.0,), "other": (2 * means[-1] - 4.0,)})

    means = [1.0]
    monkeypatch.setattr(evaluations.Evaluator, "evaluate", duel)
    run = hr.train("ppo", Chain, num_envs=2, total_steps=300, eval_freq=100, **TINY)
    assert len(means) > 2 and checkpoint.read_manifest(run.path / "best")["steps"] == run.steps
    team = Evaluation(3.0, 1.0, (3.0,), (5,), 0.1, {"one": (4.0,), "other": (2.0,)})
    assert not evaluations.cancelling(team)


def test_evaluations_choose_the_best_and_are_logged():
    options = TINY | {"num_steps": 64}
    run = hr.train(
        "ppo", "CartPole-v1", backend="inline", num_envs=4, total_steps=1500, eval_freq=500, eval_episodes=2, **options
    )
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    scores = {row["steps"]: row["eval_return"] for row in rows if "eval_return" in row}
    assert len(scores) == 3
    facts = checkpoint.read_manifest(run.path / "best")
    assert facts["score"] == max(scores.values()) and scores[facts["steps"]] == facts["score"]


def test_load_needs_no_file_of_the_users(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\nclass Mine(CartPoleEnv): pass\n"
    )
    run = hr.train("ppo", "mine.py:Mine", num_envs=2, total_steps=100, **TINY)
    assert run.path.name == "Mine_1"
    source.unlink()
    assert hr.load(run.path).predict(np.zeros(4))[0] in (0, 1)


def test_a_policy_of_ones_own_is_loaded_by_its_class():
    class Mine(ActorCritic):
        pass

    env = Walk()
    algorithm = hr.PPO(Mine(env.observation_space, env.action_space, hidden=(8,)), hr.PPOConfig(num_steps=8))
    run = hr.train(algorithm, env, total_steps=100, progress="none")
    with pytest.raises(ValueError, match="give load"):
        hr.load(run.path)
    assert isinstance(hr.load(run.path, policy_class=Mine), Mine)


def test_runs_that_start_together_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: new_folder("runs", "ppo", "ALE/Pong-v5"), range(64)))
    assert len(set(folders)) == 64 and {folder.parent for folder in folders} == {Path("runs/ppo")}
    assert {folder.name for folder in folders} == {f"ALE-Pong-v5_{n}" for n in range(1, 65)}


def test_a_log_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "runs").write_text("a file is in the way")
    with pytest.raises(OSError, match=r"cannot write the run's files: Not a directory: '.*/runs/ppo'"):
        hr.train("ppo", Walk(), total_steps=100, **TINY)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_is_a_clear_error(monkeypatch):
    trainer = hr.Trainer("ppo", Walk(), total_steps=1000, **TINY)
    folder = new_folder("runs", "ppo", "Walk")
    (folder / "metrics.jsonl").symlink_to("/dev/full")
    recorder = Recorder(trainer, folder)
    with pytest.raises(OSError, match=r"cannot write the run's files: No space left on device: .*metrics\.jsonl"):
        recorder.record(trainer.iterate())


def test_a_disk_that_fills_while_saving_keeps_the_checkpoint_before(run, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_file", full)
    before = checkpoint.load(run.path / "last", "training")
    with pytest.raises(OSError, match="cannot write the checkpoint: No space left on device"):
        checkpoint.save(run.path / "last", {"training": {}})
    assert checkpoint.load(run.path / "last", "training")["learner"]["steps"] == before["learner"]["steps"]


def test_a_run_says_in_one_line_what_it_is(run):
    line = repr(run)
    assert "\n" not in line and "runs/ppo/Walk_1" in line and f"{run.steps:,} steps" in line and "total_steps" in line


# --- progress


def test_plain_progress_is_single_lines_and_a_summary(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_AFTER", 0.0)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    run = hr.train("ppo", Walk(), total_steps=500, **TINY | {"progress": "auto"})  # captured output is no terminal
    *lines, summary, path = capsys.readouterr().out.splitlines()
    assert lines and all("steps/s" in line and "left" in line for line in lines)
    assert summary.startswith(f"trained in {run.seconds:.2f} s, ended by total_steps: {run.steps:,} steps, ")
    assert summary.endswith(f"return {run.metrics['return']:.4g} (last {min(100, run.metrics['episodes'])} episodes)")
    assert path == str(run.path.relative_to(Path.cwd()))


def test_a_live_table_shows_speed_losses_and_shares(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LIVE_AFTER", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    hr.train("ppo", Walk(), total_steps=500, **TINY | {"progress": "rich"})
    out = capsys.readouterr().out
    for word in ("ppo on Walk", "steps/s", "return", "value loss", "inference", "learning", "trained in"):
        assert word in out


def test_no_progress_is_silent(capsys):
    hr.train("ppo", Walk(), total_steps=100, **TINY)
    assert capsys.readouterr().out == ""


def test_a_folder_belongs_to_one_training_at_a_time(run):
    class Nosy(Walk):
        def step(self, rollout, t):
            super().step(rollout, t)
            with pytest.raises(
                RuntimeError, match=rf"another training \(process {os.getpid()} on .*\) is writing to .*ppo/Walk_1"
            ):
                hr.train(resume=run.path, env=Walk())

    monitor = (run.path / "monitor.csv").read_bytes()
    hr.train(resume=run.path, env=Nosy(), total_steps=run.steps + 1)
    assert (run.path / "monitor.csv").read_bytes().startswith(monitor)
    hr.train(resume=run.path, env=Walk(), total_steps=run.steps + 1)  # it is free again


def test_a_policy_of_a_training_that_was_stepped_by_hand_is_saved_and_loaded(tmp_path):
    trainer = hr.Trainer("ppo", "CartPole-v1", num_envs=4, num_steps=8, hidden=(8,))
    trainer.iterate()
    folder = hr.save(trainer.policy, tmp_path / "policy")
    loaded = hr.load(folder)
    for name, tensor in trainer.policy.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    trainer.iterate()
    hr.save(trainer.policy, folder)  # in place of the one before
    assert torch.equal(hr.load(folder).actor_out.weight, trainer.policy.actor_out.weight)
    trainer.close()
