"""Data of a run that TensorBoard, wandb and the Hugging Face hub get."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.cli.main import main
from headrace.runs import hub, trackers

SMALL = TINY | {"num_envs": 8, "num_steps": 32, "total_steps": 1000, "target_return": None}


pytestmark = pytest.mark.usefixtures("in_tmp")


def events(path):
    """Scalars of the last step by tag, and the names of hyperparameters."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    scalars, settings = {}, {}
    for file in path.glob("events.out.tfevents.*"):
        data = file.read_bytes()
        while data:  # length, crc, record, crc
            size = int.from_bytes(data[:8], "little")
            for value in Event.FromString(data[12 : 12 + size]).summary.value:
                scalars[value.tag] = value.simple_value
                if value.tag == "_hparams_/session_start_info":
                    info = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    settings = dict(info.session_start_info.hparams)
            data = data[16 + size :]
    return scalars, settings


def test_tensorboard_has_what_stable_baselines3_writes():
    run = hr.train("ppo", "Pendulum-v1", clip=0.15, initial_std=0.5, **SMALL | {"epochs": 3})
    scalars, settings = events(run.path)
    assert scalars["train/clip_range"] == pytest.approx(0.15) and 0.4 < scalars["train/std"] < 0.6
    assert scalars["train/n_updates"] == 3 * run.metrics["iteration"]
    assert settings["learning_rate"].number_value > 0 and settings["env"].string_value == "Pendulum-v1"


def test_tensorboard_has_settings_that_are_infinite_without_a_warning(tmp_path, capsys):
    from headrace.runs.events import EventFile

    file = EventFile(tmp_path, settings={"max_grad_norm": float("inf"), "clip": 0.2, "shared": True, "hidden": (8,)})
    file.write([(0.0, 1, {"a": 1.0})])
    file.close()
    _, settings = events(tmp_path)
    assert settings["max_grad_norm"].string_value == "inf" and settings["clip"].number_value == 0.2
    assert settings["shared"].bool_value and settings["hidden"].string_value == "(8,)" and not capsys.readouterr().err


def test_a_tracker_gets_each_row_by_environment_steps(monkeypatch):
    got = []
    given = SimpleNamespace(row=lambda steps, scalars: got.append((steps, scalars)), close=lambda: got.append("closed"))
    monkeypatch.setattr("headrace.runs.trackers.tracker", lambda name, folder, settings: given if name else None)
    with hr.Training("ppo", Walk(), total_steps=500, track="wandb", **TINY) as t:
        for _ in t:
            t.log("level", 7)
    rows = [json.loads(line)["steps"] for line in (t.run.path / "metrics.jsonl").read_text().splitlines()]
    assert got[-1] == "closed" and [steps for steps, _ in got[:-1]] == rows
    assert got[-2][1]["train/level"] == 7 and "rollout/ep_rew_mean" in got[-2][1]


def test_wandb_is_given_the_settings_and_a_resumed_run_goes_on(monkeypatch):
    made = []

    def init(**settings):
        made.append(settings)
        nothing = lambda *values, **named: None  # noqa: E731
        return SimpleNamespace(define_metric=nothing, log=nothing, finish=nothing)

    fake = ModuleType("wandb")
    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(trackers, "require", lambda package, message: None)
    run = hr.train("ppo", "CartPole-v1", track="wandb", **SMALL)
    hr.train(resume=run.path, total_steps=1500)
    first, second = made
    assert first["config"]["clip"] > 0 and first["project"] == "headrace" and first["name"] == "ppo/CartPole-v1_1"
    assert first["id"] == second["id"] and second["resume"] == "allow" and first["dir"] == str(run.path)


@pytest.mark.slow  # wandb starts a process
def test_wandb_offline(monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = hr.train("ppo", "CartPole-v1", track="wandb", **SMALL)
    (written,) = run.path.glob("wandb/offline-run-*/run-*.wandb")
    while b"rollout/ep_rew_mean" not in written.read_bytes():  # its process writes after finish() has returned
        time.sleep(0.1)
    assert (run.path / "wandb_id.txt").read_text().encode() in written.read_bytes()


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"headrace\[wandb\]"):
        trackers.tracker("wandb", Path(), {})
    with pytest.raises(ImportError, match=r"headrace\[hub\]"):
        hub.push_to_hub("runs", "me/pole")


# ---------------------------------------------------------------- the hub


class FolderHub:
    """The part of huggingface_hub.HfApi that is used, on a folder."""

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        Path("hub", repo_id).mkdir(parents=True, exist_ok=exist_ok)
        Path("hub", repo_id, ".private").write_text(str(private))

    def upload_folder(self, *, repo_id, folder_path, commit_message=None):
        import shutil

        shutil.copytree(folder_path, Path("hub", repo_id), dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://huggingface.co/{repo_id}/commit/1: {commit_message}")

    def snapshot_download(self, repo_id, *, local_dir=None, revision=None):
        import shutil

        assert revision is None
        return shutil.copytree(Path("hub", repo_id), local_dir or "cache", dirs_exist_ok=True)


@pytest.fixture
def folder_hub(monkeypatch):
    """huggingface_hub with its network replaced; the package itself where it is installed."""
    try:
        import huggingface_hub as package
    except ImportError:
        package = ModuleType("huggingface_hub")
        monkeypatch.setitem(sys.modules, "huggingface_hub", package)
        monkeypatch.setattr(hub, "require", lambda name, message: None)
    monkeypatch.setattr(package, "HfApi", FolderHub, raising=False)


def test_a_policy_goes_to_the_hub_and_comes_back(folder_hub, capsys):
    run = hr.train("ppo", "CartPole-v1", **SMALL)
    assert main(["hub", "push", str(run.path), "me/pole", "--private"]) == 0
    assert "huggingface.co/me/pole/commit/1: ppo on CartPole-v1, 1," in capsys.readouterr().out
    pushed = Path("hub/me/pole")
    files = {os.path.relpath(path, pushed) for path in pushed.rglob("*") if path.is_file()}
    weights = {"best/policy.safetensors", "best/manifest.json"}
    assert files == {"README.md", "config.toml", "metrics.jsonl", "monitor.csv", ".private", *weights}
    assert main(["hub", "pull", "me/pole", "mine"]) == 0
    capsys.readouterr()
    best = run.best
    loaded = hr.load("mine")
    assert all((a == b).all() for a, b in zip(best.parameters(), loaded.parameters(), strict=True))
    assert main(["eval", "mine", "--episodes", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["return"]["mean"]
    assert found == hr.evaluate(best, "CartPole-v1", 3).mean
    assert hr.pull_from_hub("me/pole") == Path("cache")


def test_the_card_lists_the_return(folder_hub):
    run = hr.train("ppo", "CartPole-v1", **SMALL)
    evaluation = run.evaluate(2)
    hr.push_to_hub(run.path, "me/pole", evaluation=evaluation)
    card = Path("hub/me/pole/README.md").read_text()
    index = next(line for line in card.splitlines() if line.startswith("model-index: "))
    (entry,) = json.loads(index.removeprefix("model-index: "))
    value = entry["results"][0]["metrics"][0]["value"]
    assert value == f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}" and "headrace hub pull me/pole" in card


def test_the_card_has_no_return_of_training_episodes(folder_hub, capsys):
    run = hr.train("ppo", "CartPole-v1", **SMALL)
    card = Path("hub/me/pole/README.md")
    hr.push_to_hub(run.path, "me/pole")
    assert "model-index" not in card.read_text()
    assert main(["hub", "push", str(run.path), "me/pole", "--episodes", "3"]) == 0
    found = hr.evaluate(run.best, "CartPole-v1", 3)
    assert f"{found.mean:.2f} +/- {found.std:.2f}" in card.read_text()
    assert f"return {found.mean:.4g}" in capsys.readouterr().out
