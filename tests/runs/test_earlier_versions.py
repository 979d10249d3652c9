"""Runs of earlier versions: what they lack has its default; the error of what cannot be used names the version."""

from __future__ import annotations

import json
import shutil
from inspect import signature

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from helpers.tiny import TINY

import headrace as hr
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.algorithms.ppo import PPOConfig
from headrace.bindings.compiled.loss_tries import RunTries, Tries
from headrace.core.packages import commit
from headrace.data.spaces import to_json
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import difference
from headrace.runs import checkpoint
from headrace.runs.checkpoint import OtherVersion
from headrace.runs.run import _policy_class
from headrace.training import resuming
from headrace.training.config import TrainConfig

SETTINGS = TINY | {"num_envs": 4, "num_steps": 16, "total_steps": 128, "target_return": None, "progress": "none"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return hr.train("ppo", "CartPole-v1", **SETTINGS | {"log_folder": str(tmp_path_factory.mktemp("runs"))}).path


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def forge(run, change, of_now=False):
    """Change the manifests of a run, as if an earlier commit had written them."""
    for path in run.glob("*/manifest.json"):
        body = json.loads(path.read_text())
        del body["sha256"]
        if not of_now:
            body["format"] = 1
            del body["versions"]["commit"]
        change(body)
        path.write_text(json.dumps({"sha256": checkpoint._digest(body), **body}))


def lacking(body):
    """Manifest without settings and arguments that have their default, and with others that are off."""
    policy = body["policy"]["config"]
    for name, argument in signature(ActorCritic).parameters.items():
        if name in policy and policy[name] == json.loads(json.dumps(argument.default, default=str)):
            del policy[name]
    policy["of_before"] = False
    settings = body.get("settings", {})
    for config in (TrainConfig(), PPOConfig()):
        for name, value in vars(config).items():
            if name in settings and settings[name] == json.loads(json.dumps(value)):
                del settings[name]
    settings["of_before"] = None


def test_what_a_manifest_lacks_has_its_default(run, trained):
    before = hr.load(trained, which="last").state_dict()
    forge(run, lacking)
    assert all(torch.equal(x, before[name]) for name, x in hr.load(run, which="last").state_dict().items())
    runs = [
        hr.train(resume=path, total_steps=256, progress="none") for path in (run, shutil.copytree(trained, run / "x"))
    ]
    first, second = (one.policy.state_dict() for one in runs)
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_a_setting_that_a_manifest_lacks_is_not_the_one_that_is_registered_today(run):
    folder, manifest, _ = checkpoint.read(run, "last")
    del manifest["settings"]["gae_lambda"], manifest["settings"]["stagger"]
    saved = resuming.saved_settings(folder, manifest)
    assert saved["gae_lambda"] == PPOConfig().gae_lambda and saved["stagger"] == TrainConfig().stagger


def setting(body):
    body.get("settings", {})["of_before"] = 3


def argument(body):
    body["policy"]["config"]["of_before"] = 3


def architecture(body):
    body["policy"]["config"]["hidden"] = [16]


def member(body):
    body["policy"]["class"] = "headrace.policies.actor_critic:Gone"


def state(body):
    body.get("states", {}).get("training", {}).pop("learner", None)


@pytest.mark.parametrize(
    ("change", "use", "why"),
    [
        (setting, "resume", "the setting of_before"),
        (argument, "load", "of_before=3"),
        (member, "load", "Gone"),
        (state, "resume", "learner"),
    ],
)
def test_what_cannot_be_used_is_of_another_version_and_not_damaged(run, change, use, why):
    forge(run, change)
    with pytest.raises(OtherVersion, match=rf"headrace \S+ \(an earlier commit\), and cannot be used by .*{why}"):
        hr.load(run) if use == "load" else hr.train(resume=run, progress="none")


def test_a_policy_of_the_user_s_own_is_told_by_what_differs(run):
    forge(run, architecture)
    with pytest.raises(
        TypeError, match=r"earlier commit\), has another policy .*\(hidden \[16\], not \[8\]\).*algorithm=..."
    ):
        hr.train(resume=run, progress="none")


def test_a_manifest_names_the_version_and_commit_that_wrote_it(run):
    manifest = checkpoint.read_manifest(run / "last")
    assert manifest["format"] == checkpoint.FORMAT and manifest["versions"]["commit"] == commit()
    assert commit() == "" or (len(commit()) == 12 and int(commit(), 16))
    assert checkpoint.written_by(manifest).startswith("headrace ")

    def later(body):
        body["format"], body["versions"]["commit"] = checkpoint.FORMAT + 1, "0123456789ab"

    forge(run, later, of_now=True)
    with pytest.raises(
        OtherVersion, match=rf"format {checkpoint.FORMAT + 1}: headrace \S+ \(0123456789ab\) has written it"
    ):
        hr.load(run)


@pytest.mark.parametrize("part", ["torch", "processor", "commit", ""])
def test_a_run_of_another_version_says_that_its_bits_are_others(run, part, monkeypatch, capsys):
    taken = []
    monkeypatch.setattr(RunTries, "load_state_dict", lambda self, state: taken.append(state))

    def other(body):
        body["versions"] |= {part: "of-before"} if part else {}
        if "training" in body["states"]:
            body["states"]["training"]["compiled"] = {"loss": [Tries(made=3).state_dict()]}

    forge(run, other, of_now=True)
    hr.train(resume=run, total_steps=256, progress="plain")
    said = [line for line in "".join(capsys.readouterr()).splitlines() if "bit for bit" in line]
    assert len(said) == bool(part) and all("of-before" in line and "written by" in line for line in said)
    assert taken == [{} if part else {"loss": [Tries(made=3).state_dict()]}]


def test_classes_that_have_moved_are_found():
    assert _policy_class("headrace.policies.group_policy:GroupedPolicy") is GroupedPolicy


def test_nothing_differs_but_defaults():
    config = ActorCritic(Box(-1, 1, (3,)), Discrete(2), hidden=(8,)).config()
    space = config["observation_space"]
    earlier = {**config, "observation_space": {name: value for name, value in space.items() if name != "dtype"}}
    assert difference(ActorCritic, config, earlier) == ""
    assert difference(ActorCritic, config, {**config, "of_before": 0.0}) == ""
    assert "of_before 3" in difference(ActorCritic, config, {**config, "of_before": 3})
    other = {**config, "observation_space": to_json(Box(-1, 1, (4,)))}
    assert "observation_space" in difference(ActorCritic, config, other)
