"""A run goes on with other numbers of environments, steps and learners: learning where it was, in new episodes."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import TINY

import headrace as hr
from headrace.algorithms.dqn import DQN, DQNConfig
from headrace.data.replay import Replay
from headrace.data.spaces import Box, Discrete
from headrace.runs import checkpoint
from headrace.training.from_data import resized

pytestmark = pytest.mark.usefixtures("in_tmp")


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


OFF_POLICY = {"num_envs": 4, "total_steps": 400, "learning_starts": 50, "batch_size": 16, "hidden": (8,)}
OFF_POLICY |= {"progress": "none", "registered": False, "schedule": "constant"}


def transitions(replay):
    """The rows of a ring that may be drawn: observation, action, reward, discount, next observation, of each."""
    times = torch.arange(int(replay.written.max())).unsqueeze(1).expand(-1, replay.num_envs)
    envs = torch.arange(replay.num_envs).expand(len(times), -1)
    there = (times >= replay.oldest()) & (times < replay.written - replay.num_steps + 1)
    batch = Replay.gather(replay, (times % replay.length * replay.num_envs + envs)[there], 0.9)
    columns = (batch.observation, batch.action, batch.reward, batch.discount, batch.next_observation)
    rows = torch.cat([x.float().reshape(len(x), -1) for x in columns], 1)[batch.weight > 0]
    return {tuple(row) for row in rows.tolist()}


@pytest.mark.parametrize("sizes", [{"num_envs": 2}, {"num_envs": 7}, {"num_steps": 6}])
@pytest.mark.parametrize("settings", [{}, {"prioritized": True, "exploration_spread": 7.0}, {"buffer_size": 240}])
def test_a_replay_buffer_is_divided_among_other_environments(sizes, settings, capsys):
    run = hr.train("dqn", "CartPole-v1", **OFF_POLICY | settings)
    with hr.Training(resume=run.path, total_steps=800) as training:
        algorithm = training.trainer.algorithm
        before, updates, weights = transitions(algorithm.replay), algorithm.updates, algorithm.optimizer.flat.clone()
    with hr.Training(resume=run.path, total_steps=800, **sizes, progress="plain") as training:
        trainer, algorithm = training.trainer, training.trainer.algorithm
        after = transitions(algorithm.replay)
        assert after <= before  # none that was never taken, as over the end of a part
        lost = 8 * max(4, trainer.env.num_envs) if "buffer_size" in settings else 0  # those that had no room
        assert len(after) >= len(before) - lost - 4 and len(after) > 100
        assert trainer.steps == run.steps and torch.equal(algorithm.optimizer.flat, weights)
        assert algorithm.optimizer.steps > 50 and abs(algorithm.updates - updates) <= 16
        for _ in training:
            pass
        assert trainer.steps >= 800 and not torch.equal(algorithm.optimizer.flat, weights)
    said = "".join(capsys.readouterr())
    assert f"with another {next(iter(sizes))} new episodes begin" in said


@pytest.mark.parametrize("settings", [{}, {"num_steps": 4, "train_freq": 2}])
def test_sac_goes_on_with_other_sizes(settings):
    run = hr.train("sac", "Pendulum-v1", **OFF_POLICY | settings)
    longer = hr.train(resume=run.path, num_steps=6, num_envs=3, total_steps=600, progress="none")
    again = hr.train(resume=longer.path, total_steps=700, progress="none")
    assert again.steps >= 700


def test_rows_with_a_recurrent_state_keep_their_sizes():
    run = hr.train("dqn", "CartPole-v1", **OFF_POLICY, recurrent="gru")
    with pytest.raises(ValueError, match="num_envs cannot change on resuming with dqn with recurrent='gru'"):
        hr.train(resume=run.path, num_envs=2, total_steps=800)


@pytest.mark.parametrize("settings", [{"hindsight": 4}, {"learners": 2}, {"self_play": True}, {}])
def test_what_else_is_of_one_number_of_environments(settings):
    dqn = DQN.build(DQNConfig(), Box(-1, 1, (2,)), Discrete(2), 0, "cpu")
    resized.check(dqn, {"hindsight": 0, "learners": 1, "shards": None, "self_play": False}, {}, ["num_envs"])
    state = {} if settings else {"ranks": []}
    with pytest.raises(ValueError, match="num_envs and num_steps cannot change on resuming with dqn"):
        resized.check(dqn, settings, state, ["num_envs", "num_steps"])
