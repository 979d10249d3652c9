"""Measurements are kept with their machine, versions and source, and used instead of "auto"."""

from __future__ import annotations

import errno
import json
import stat
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers.tiny import Walk

import headrace as hr
from headrace.kernels.runtime import cache_folder
from headrace.training.plan import settle
from headrace.training.trainer import Trainer
from headrace.tuning import auto, candidates, store
from headrace.tuning.candidates import Candidate, Task
from headrace.tuning.store import Entry, Measured

ENV = """
import gymnasium
from gymnasium.spaces import Box, Discrete


class Still(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, steps=5):
        self.steps = steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.age += 1
        return self.observation_space.sample(), 1.0, False, self.age == self.steps, {}
"""
TINY = {"hidden": (8,), "num_steps": 4, "progress": "none"}


@pytest.fixture
def still(tmp_path, monkeypatch):
    """An environment in a file, and an empty folder of kernels."""
    monkeypatch.setattr(store, "folder", lambda: tmp_path)
    (tmp_path / "still.py").write_text(ENV)
    return f"{tmp_path}/still.py:Still"


def plan_of(env, **options):
    return settle("ppo", env, None, None, TINY | options)


def planted(plan, *rows, choice=0):
    """Keep speeds of changes to a plan's settings."""
    base = Candidate.of(plan.config).but(device="cpu", workers=None, actors=None)
    measured = tuple(Measured(base.but(**changes).settings, speed) for changes, speed in rows)
    store.save(plan, Entry("2026-11-22", measured[choice].settings, measured))


def unused(plan):
    raise AssertionError("nothing has to be tried")


def test_an_entry_is_for_the_owner_alone_and_for_its_source_alone(still, tmp_path, monkeypatch):
    plan = plan_of(still)
    assert store.load(plan) is None
    planted(plan, ({"workers": 2}, 900.0), ({}, 500.0))
    entry = store.load(plan)
    assert entry.fastest().steps_per_second == 900 and entry.fastest(workers=None).steps_per_second == 500
    assert entry.choice["workers"] == 2 and entry.fastest(workers=7) is None
    planted(plan, ({"num_envs": 32}, 70.0))  # of another number of environments: what was known stays
    assert {row.steps_per_second for row in store.load(plan).measured} == {70.0, 900.0, 500.0}
    file = tmp_path / store.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert store.load(plan_of(still, hidden=(9,))) is None  # another network
    assert store.load(plan_of(still, num_steps=8, num_envs=2)) is not None  # not another environment
    (tmp_path / "still.py").write_text(ENV.replace("steps=5", "steps=6"))
    assert store.load(plan_of(still)) is None
    (tmp_path / "still.py").write_text(ENV)
    assert store.load(plan_of(still)) is not None
    with monkeypatch.context() as other:
        other.setattr(store, "machine", lambda: {"cores": 64})
        assert store.load(plan_of(still)) is None
    for damage in ("[]", "{", json.dumps({store.key(plan): {"when": 1}}), json.dumps({store.key(plan): [3]})):
        file.write_text(damage)
        assert store.load(plan_of(still)) is None, damage
    file.unlink()
    planted(plan, ({}, 500.0))
    file.chmod(0o666)  # others may have written it
    assert store.load(plan) is None


def test_what_cannot_be_written_is_not_said_to_be_kept(still, tmp_path, monkeypatch):
    plan = plan_of(still)
    entry = Entry("2026-11-22", {"num_envs": 4}, (Measured({"num_envs": 4, "hidden": (8,)}, 10.0),))
    assert store.save(plan, entry) == tmp_path / "tuned.json"
    monkeypatch.setattr(cache_folder, "write", full)
    assert store.save(plan, entry) == tmp_path / "tuned.json"  # it is there already
    assert store.save(plan, replace(entry, when="2026-11-23")) is None


def test_what_two_processes_measured_at_the_same_time_is_kept(still, monkeypatch, tmp_path):
    """The file is read within its lock: one that waits for the lock adds to what the other has written."""
    plan, table = plan_of(still), store.json_table
    rows = [Measured({"num_envs": number, "hidden": (8,)}, 10.0) for number in (4, 8)]

    @contextmanager
    def after_the_other(*args):
        monkeypatch.setattr(store, "json_table", table)
        store.save(plan, Entry("2026-11-22", rows[0].settings, (rows[0],)))
        with table(*args) as held:
            yield held

    monkeypatch.setattr(store, "json_table", after_the_other)
    store.save(plan, Entry("2026-11-22", rows[1].settings, (rows[1],)))
    assert {row.settings["num_envs"] for row in store.load(plan).measured} == {4, 8}


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_arguments_of_a_function_are_of_its_source(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "folder", lambda: tmp_path)
    short, long = (partial(made, steps) for steps in (3, 4))
    planted(plan_of(short), ({}, 500.0))
    assert store.load(plan_of(short)) is not None and store.load(plan_of(long)) is None
    assert store.save(settle("ppo", Walk(), None, None, TINY), Entry("", {}, ())) is None  # nothing to name it by
    held = [lambda steps=steps: made(steps) for steps in (3, 4)]
    assert store.key(plan_of(held[0])) != store.key(plan_of(held[1]))


def made(steps):
    raise AssertionError(f"no environment of {steps} steps is needed")


def test_numbers_that_were_measured_are_used_and_said(still, capsys):
    planted(plan_of(still), ({}, 500.0), ({"workers": 2}, 800.0), ({"actors": 3}, 900.0), choice=2)
    with_actors = auto.settled("ppo", still, None, None, TINY | {"actors": "auto"}, unused)
    assert with_actors.config.actors == 3 and with_actors.config.workers is None
    said = "actors=auto: 3 actors: measured by `headrace tune` on 2026-11-22, 900 steps/s, 500 in one process"
    assert said in capsys.readouterr().err
    with_workers = auto.settled("ppo", still, None, None, TINY | {"workers": "auto"}, unused)
    assert with_workers.config.workers == 2 and with_workers.config.actors is None
    assert "workers=auto: 2 workers: measured" in capsys.readouterr().err


def test_what_was_not_measured_is_tried(still, monkeypatch):
    planted(plan_of(still), ({}, 500.0), ({"workers": 2}, 800.0))
    tried = []
    monkeypatch.setattr(auto, "_tried", lambda plan, task, name, make: tried.append(name) or plan)
    for options in ({"num_envs": 32}, {"collection": "async"}, {"threads": 2}, {"registered": False}):
        auto.settled("ppo", still, None, None, TINY | {"workers": "auto"} | options, unused)
    assert tried == ["workers"] * 4


def test_num_envs_is_used_where_nothing_is_registered_or_given(still, capsys, tmp_path):
    rows = (({}, 500.0), ({"num_envs": 256}, 2000.0), ({"num_envs": 512, "workers": 2}, 9000.0))
    planted(plan_of(still), *rows, choice=2)

    def number(**options):
        return auto.settled("ppo", still, None, None, TINY | options, unused).config.num_envs

    assert number() == 256  # the fastest in one process
    assert (
        "num_envs=256: measured by `headrace tune` on 2026-11-22, 2,000 steps/s, 500 with 8" in capsys.readouterr().err
    )
    assert number(workers="auto") == 512
    assert number(num_envs=32) == 32 and number(registered=False) == 64
    (tmp_path / "file.toml").write_text("num_envs = 16")
    assert auto.settled("ppo", still, tmp_path / "file.toml", None, TINY, unused).config.num_envs == 16
    planted(plan_of("CartPole-v1"), *rows)
    assert auto.settled("ppo", "CartPole-v1", None, None, TINY, unused).config.num_envs == 64  # registered


def test_the_device_that_was_faster_is_used(still, monkeypatch, capsys):
    planted(plan_of(still), ({}, 500.0), ({"device": "cuda", "collect_device": "cpu"}, 800.0))
    assert auto.settled("ppo", still, None, None, TINY, unused).config.device == "auto"  # there is no GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = auto.settled("ppo", still, None, None, TINY, unused).config
    assert (found.device, found.collect_device) == ("cuda", "cpu")
    assert "device=cuda: measured by `headrace tune` on 2026-11-22, 800 steps/s, 500 on cpu" in capsys.readouterr().err
    assert auto.settled("ppo", still, None, None, TINY | {"device": "cpu"}, unused).config.device == "cpu"


@pytest.fixture
def two_cores(monkeypatch):
    """Processes are worth trying, on a machine with one core, too."""
    monkeypatch.setattr(candidates, "cores", lambda: 2)


def test_a_short_run_is_not_worth_trying(still, capsys, two_cores):
    plan = auto.settled("ppo", still, None, None, TINY | {"actors": "auto", "total_steps": 100}, Trainer.of)
    assert plan.config.actors is None and "too short to try processes" in capsys.readouterr().err
    plan = auto.settled("ppo", still, None, None, TINY | {"workers": "auto", "total_steps": 100}, Trainer.of)
    assert plan.config.workers != "auto" and "a step of one environment takes" in capsys.readouterr().err


def test_steps_that_take_too_long_to_try_leave_an_estimate(still, capsys, monkeypatch, two_cores):
    monkeypatch.setattr(auto.Search, "_hopeless", lambda self, candidate: "not tried: an iteration takes 10 s or more")
    for name in ("actors", "workers"):
        options = TINY | {name: "auto", "total_steps": None, "max_seconds": 1e6}
        assert getattr(auto.settled("ppo", still, None, None, options, Trainer.of).config, name) != "auto"
        said = capsys.readouterr().err
        assert f"{name}=auto: " in said and "an iteration takes too long to try processes" in said


def test_who_made_environments_or_algorithm_gives_a_number():
    policy = hr.ActorCritic(Walk.observation_space, Walk.action_space, hidden=(8,))
    with pytest.raises(ValueError, match='actors="auto" tries environments and algorithms that it makes by name'):
        Trainer(hr.PPO(policy), "CartPole-v1", actors="auto")


def test_modes_that_are_given_have_their_own_candidates(still):
    for options, words in (
        ({"collection": "overlapped"}, "overlapped"),
        ({"collection": "async"}, "async"),
        ({"exchange": "gradients"}, "actors"),
    ):
        algorithm = "a2c" if "exchange" in options else "ppo"
        plan = settle(algorithm, still, None, None, {"hidden": (8,), "actors": "auto", **options})
        found = [candidate.placed() for candidate in Task.of(plan, frozenset({"collection"})).placements()]
        assert found and all(words.rstrip("s") in placed for placed in found), found
