"""A run goes on with other numbers of environments, steps and learners: learning where it was, in new episodes."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import TINY

import headrace as hr
from headrace.runs import checkpoint


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


OPTIONS = TINY | {"num_envs": 8, "total_steps": 1_000, "registered": False}


@pytest.mark.parametrize("backend", ["cpu", "torch", "inline"])
@pytest.mark.parametrize("recurrent", ["none", "gru"])
@pytest.mark.parametrize("sizes", [{"num_envs": 4}, {"num_envs": 20, "num_steps": 32}])
def test_learning_goes_on_in_new_episodes(backend, recurrent, sizes):
    run = hr.train("ppo", "CartPole-v1", backend=backend, recurrent=recurrent, **OPTIONS)
    with hr.Training(resume=run.path, total_steps=2_000, **sizes) as training:
        trainer = training.trainer
        before = trainer.algorithm.state_dict()
        saved = checkpoint.read(run.path, "last", state="training")[2]["learner"]["algorithm"]
        assert before["iteration"] == saved["iteration"] > 0 and trainer.steps == run.steps
        assert all(torch.equal(x, saved["policy"][name]) for name, x in before["policy"].items())
        assert torch.equal(before["optimizer"]["mean"], saved["optimizer"]["mean"])
        trainer.iterate()
        rollout = trainer.collector.rollout
        starts = rollout.observation[0]
        assert rollout.num_envs == sizes["num_envs"]
        assert rollout.valid[0].all() and (starts.abs() < 0.06).all()  # as CartPole begins
        assert len({tuple(row) for row in starts.tolist()}) == len(starts)


def test_it_is_said_that_the_bits_are_others(capsys):
    run = hr.train("ppo", "CartPole-v1", **OPTIONS)
    longer = hr.train(resume=run.path, num_envs=4, total_steps=2_000, progress="plain")
    said = "".join(capsys.readouterr())
    assert "num_envs 8 -> 4 from step" in said and "with another num_envs new episodes begin" in said
    again = hr.train(resume=longer.path, total_steps=3_000)  # which has 4 now
    assert again.steps >= 3_000


def test_what_has_a_replay_buffer_keeps_its_sizes():
    options = {"num_envs": 4, "total_steps": 400, "learning_starts": 50, "batch_size": 16, "hidden": (8,)}
    run = hr.train("dqn", "CartPole-v1", progress="none", registered=False, **options)
    with pytest.raises(ValueError, match="num_envs cannot change on resuming with dqn: only"):
        hr.train(resume=run.path, num_envs=2, total_steps=800)
