"""Simulators that a process may have once only: evaluations are in the training's own. Members that are ignored."""

from __future__ import annotations

import csv
import json

import pytest
import torch

import headrace as hr
from headrace.data.spaces import Box, Dict, Discrete

SMALL = {"num_steps": 8, "hidden": (8,), "progress": "none"}
OWN = {"num_envs": 4, "device": "cpu", **SMALL}


class Only:
    """Episodes of 5 steps with reward 1 each. The process may have one of it at a time."""

    single, autoreset, device, name, max_steps = True, "SameStep", "cpu", "only", 5
    observation_space, action_space = Box(-1, 1, (2,)), Box(-1, 1, (1,))
    alive = made = 0

    def __init__(self, num_envs):
        if Only.alive:
            raise RuntimeError("a process has one simulator")
        Only.alive, Only.made, self.num_envs = 1, Only.made + 1, num_envs
        self.age = torch.zeros(num_envs, dtype=torch.int64)

    def _seen(self):
        return torch.stack([self.age / 5, self.age / 5], 1)

    def reset(self, seed):
        self.age.zero_()
        return self._seen()

    def step(self, action):
        self.age += 1
        final, late = self._seen(), self.age >= 5
        self.age[late] = 0
        return self._seen(), torch.ones(self.num_envs), torch.zeros_like(late), late, final

    def close(self):
        Only.alive = 0


class Several(Only):
    single = False


@pytest.fixture(autouse=True)
def none_yet():
    Only.alive = Only.made = 0


def lengths_in(run):
    with open(run.path / "monitor.csv") as file:
        next(file)
        return {(float(row["r"]), int(row["l"])) for row in csv.DictReader(file)}


@pytest.mark.parametrize("eval_freq", [0, 64])
@pytest.mark.parametrize("ready", [False, True])
def test_evaluations_are_in_those_of_the_training(eval_freq, ready, tmp_path):
    """Trainings go on with whole episodes after an evaluation: none is reported that an evaluation has cut."""
    source, settings = (hr.make(Only, 4), SMALL) if ready else (Only, OWN)
    run = hr.train("ppo", source, total_steps=400, eval_freq=eval_freq, log_folder=str(tmp_path), **settings)
    assert (Only.made, Only.alive) == (1, ready)
    assert lengths_in(run) == {(5.0, 5)}
    if eval_freq:
        rows = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
        assert {row["eval_return"] for row in rows if row.get("eval_return") is not None} == {5.0}


def test_the_last_policy_and_the_best_are_compared_in_those_of_the_training(tmp_path, capsys):
    run = hr.train("ppo", Only, total_steps=4_000, log_folder=str(tmp_path), **OWN)
    assert Only.made == 1 and "chosen by training episodes alone" not in capsys.readouterr().err
    assert (run.path / "best" / "manifest.json").exists()


def test_others_have_evaluations_of_their_own(tmp_path):
    with pytest.raises(RuntimeError, match="a process has one simulator"):
        hr.train("ppo", Several, total_steps=400, eval_freq=64, log_folder=str(tmp_path), **OWN)


def test_an_evaluation_in_the_body_of_a_training(tmp_path):
    with hr.Training("ppo", Only, total_steps=400, log_folder=str(tmp_path), **OWN) as training:
        found = [training.evaluate(6).mean for _ in training]
    assert set(found) == {5.0} and Only.made == 1 and lengths_in(training.run) == {(5.0, 5)}


class Members:
    """Observations with a member that is NaN where an episode has ended."""

    device, name, max_steps = "cpu", "members", 5
    observation_space = Dict({"a": Box(-9, 9, (2,)), "b": Box(-9, 9, (3,)), "text": Discrete(4)})
    action_space = Discrete(2)
    autoreset = "SameStep"

    def __init__(self, num_envs):
        self.num_envs, self.age = num_envs, torch.zeros(num_envs, dtype=torch.int64)

    def _seen(self):
        age = self.age.float()[:, None]
        return {"a": age.expand(-1, 2), "b": -age.expand(-1, 3), "text": ["?"] * self.num_envs}

    def reset(self, seed):
        self.age.zero_()
        return self._seen()

    def step(self, action):
        self.age += 1
        late = self.age >= 5
        final = self._seen()
        self.age = torch.where(late, 0, self.age)
        return self._seen(), torch.ones(self.num_envs), torch.zeros_like(late), late, final


def test_vectors_leave_members_out(tmp_path):
    env = hr.make(Members, 3, ignore=("text",))
    assert list(env.observation_space) == ["a", "b"] and env.made_with == {"ignore": ("text",)}
    rollout = env.rollout(8, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    for t in range(8):
        env.step(rollout, t)
    assert rollout.observation.a[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 1, 2, 3]  # 5: the final one
    run = hr.train("ppo", Members, ignore=("text", "b"), total_steps=400, log_folder=str(tmp_path), **OWN)
    assert list(run.policy.observation_space) == ["a"]
    assert run.evaluate(3).mean == 5.0
    with pytest.raises(ValueError, match="ignore has c, and the observations of members have members a, b, text"):
        hr.make(Members, 3, ignore=("c",))
    with pytest.raises(ValueError, match="takes no frame_stack=2: use"):
        hr.make(Members, 3, ignore=("text",), frame_stack=2)


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_what_a_library_gives_at_masked_rows_is_not_learned_from(mode):
    class Odd(Several):
        autoreset, single, ended = mode, False, None

        def step(self, action):
            seen, reward, terminated, late, final = super().step(action)
            wrong = torch.zeros_like(late) if self.ended is None else self.ended
            self.ended = late
            outcome = seen, torch.where(wrong, torch.nan, reward), terminated, late
            return (*outcome, final) if mode == "SameStep" else outcome

    env = hr.make(Odd, 2)
    rollout = env.rollout(12, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    for t in range(12):
        env.step(rollout, t)
    assert rollout.reward.isfinite().all() and not rollout.reward[~rollout.valid[:12]].any()
