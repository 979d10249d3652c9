"""Settings of recurrent policies that follow from others: whole sequences, and several of them in each minibatch."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from helpers.recall import Recall

import headrace as hr
from headrace.algorithms.dqn import DQNConfig
from headrace.algorithms.ppo import PPOConfig
from headrace.bindings.compiled.compiled_losses import too_few
from headrace.training.plan import settle
from headrace.training.scaling import SEQUENCES, derived

GRU = {"recurrent": "gru", "rnn_size": 8, "hidden": (8,)}


class Blink(gymnasium.Env):
    """Two steps; nothing but the first observation says which action is right. It has no time limit."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        return np.array([0, 1], np.float32), float(action == self.cue), self.time == 2, False, {}


def settings(env, **given):
    """num_steps, sequence_length and minibatch_size of a training, and the settings that followed."""
    plan = settle("ppo", env, None, None, {**GRU, **given})
    own = plan.algorithm_config
    return (own.num_steps, own.sequence_length, own.minibatch_size), plan.derived


def test_an_environment_of_ones_own_has_minibatches_of_eight_short_sequences():
    (steps, length, rows), follows = settings(Blink, total_steps=50_000)
    assert (steps, length, rows) == (64, 16, 8 * 16)
    rate = pytest.approx(3e-4 * 2**0.5)  # as for other minibatches that follow: docs/scaling.md
    assert follows == {"sequence_length": 16, "minibatch_size": 128, "learning_rate": rate}
    assert "learning_rate" not in settings(Blink, total_steps=50_000, learning_rate=1e-3)[1]
    assert settings(Recall)[0] == (128, 32, 256)  # PPO's defaults: as many rows as before, of shorter sequences


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sequence_length": 64}, (64, 64, 512)),
        ({"minibatch_size": 512}, (64, 64, 512)),
        ({"minibatch_size": 64}, (64, 16, 64)),
        ({"minibatch_size": 32}, (64, 8, 32)),
        ({"minibatch_size": 64, "sequence_length": 64}, (64, 64, 64)),
        ({"sequence_length": 0}, (64, 0, 512)),
        ({"num_steps": 20}, (20, 20, 160)),
        ({"num_steps": 20, "num_envs": 2}, (20, 10, 64)),  # four, the whole rollout
        ({"scale": False}, (64, 0, 64)),
    ],
)
def test_what_is_given_stays_and_the_rest_follows(given, expected):
    assert settings(Blink, total_steps=50_000, **given)[0] == expected


def test_registered_sequences_stay_and_other_policies_have_none():
    plan = settle("ppo", "CartPoleHidden", None, None, {})
    own = plan.algorithm_config
    assert (own.num_steps, own.sequence_length, own.minibatch_size, plan.derived) == (32, 16, 256, {})
    own = settle("ppo", Blink, None, None, {"total_steps": 50_000}).algorithm_config
    assert (own.minibatch_size, own.sequence_length) == (64, 0)


def test_rollouts_have_whole_sequences_of_a_given_length():
    steps = settings(Blink, total_steps=50_000, sequence_length=16, num_envs=32)[0][0]
    assert steps == 32  # 17, the horizon of advantages, rounded up
    assert settings(Blink, total_steps=50_000, sequence_length=24)[0][0] == 72  # 64, likewise
    assert PPOConfig(num_steps=64).scaled(8, 32, sequence_length=16).num_steps == 32
    with pytest.raises(ValueError, match="sequence_length is 24: let it divide num_steps, 64, as with num_steps=48"):
        hr.Trainer("ppo", Blink, total_steps=50_000, sequence_length=24, scale=False, **GRU)


def test_registered_sequences_follow_a_given_length_of_rollouts():
    for steps, length in ((100, 20), (17, 17), (24, 12), (8, 8)):
        follows = derived(PPOConfig, {"num_steps": 32, "sequence_length": 16, "recurrent": "gru"}, {"num_steps": steps})
        assert follows.get("sequence_length", 16) == length


def test_batches_of_a_replay_buffer_are_whole_sequences():
    known = {"batch_size": 128, "recurrent": "gru"}
    assert derived(DQNConfig, known, {"sequence_length": 24}) == {"batch_size": 144}
    assert derived(DQNConfig, known, {"batch_size": 100}) == {"sequence_length": 20}
    assert derived(DQNConfig, known, {"batch_size": 100, "sequence_length": 24}) == {}  # which is refused
    assert derived(DQNConfig, {"batch_size": 128}, {"batch_size": 100}) == {}  # no sequences
    for given, rows in (
        ({"batch_size": 48}, 48),
        ({"sequence_length": 80}, 320),
        ({"sequence_length": 20}, 80),
        ({}, 64),
    ):
        plan = settle("dqn", Recall, None, None, {"recurrent": "gru", **given})
        assert plan.algorithm_config.batch_size == rows


def test_a_stagger_is_not_chosen_where_it_does_nothing_or_is_refused(capsys):
    for given, stagger, said in (
        ({}, False, False),
        ({"stagger": True}, True, True),
        ({"time_limit": 50}, True, False),
    ):
        with closing(hr.Trainer("ppo", Blink, num_envs=16, **given)) as trainer:
            assert trainer.config.stagger is stagger
            assert ("stagger" in trainer.plan.derived) == ("time_limit" in given)
        assert ("stagger does nothing" in capsys.readouterr().err) == said
    refusing = {"workers": 2, "collection": "async", "drop_slowest": 0.5}
    for given in (refusing, {"learners": 2, "actors": 2, "num_envs": 16}):
        assert "stagger" not in derived(PPOConfig, {"num_envs": 8, "num_steps": 64}, {"num_envs": 16, **given})


def test_a_run_says_which_sequences_it_has_and_resumes_with_them(in_tmp, capsys):
    run = hr.train("ppo", Blink, total_steps=600, num_envs=8, log_folder=".", progress="plain", **GRU)
    assert "a recurrent policy: sequence_length 16, minibatch_size 128" in capsys.readouterr().out
    again = hr.train(resume=run.path, total_steps=1_200, progress="none", env=Blink)
    assert "sequence_length = 16" in (again.path / "config.toml").read_text()


def test_too_few_sequences_are_named_with_a_remedy():
    config = PPOConfig(num_steps=64, minibatch_size=64)
    said = too_few(64, 64, config)
    assert "1 sequence of 64 rows (sequence_length 64, minibatch_size 64)" in said
    assert "give minibatch_size=512 or more, or a shorter sequence_length" in said
    assert too_few(3 * 64, 64, config) is None and too_few(3, 1, config) is None
    assert "2 rows (minibatch_size 64)" in too_few(2, 1, config) and "sequence" not in too_few(2, 1, config)
    assert "(sequence_length 16, batch_size 32)" in too_few(32, 16, DQNConfig(batch_size=32))
    assert "give more num_envs" in too_few(2, 1, object())
    assert SEQUENCES * 64 == 512
