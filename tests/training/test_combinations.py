"""Settings of parallel collection that do not go together are refused, with the nearest that do."""

from __future__ import annotations

import re

import pytest

import headrace as hr
from headrace.core.cores import cores
from headrace.training.trainer import Trainer

REFUSED = [
    ({"actors": 2, "workers": 2}, "so leave out workers"),
    ({"collection": "overlapped", "workers": 2}, "give actors=2 in place of workers=2"),
    ({"actors": 2, "collection": "double_buffered"}, "with actors use 'overlapped'"),
    ({"actors": 2, "collection": "async", "drop_slowest": 0.5}, "lose no steps"),
    ({"actors": 2, "max_policy_lag": 4}, "needs collection='async'"),
    ({"max_policy_lag": 4}, "needs actors and collection='async'"),
    ({"actors": 2, "agent_info": [0.0]}, "leave out actors=2"),
    ({"actors": 2, "backend": "torch"}, "backend='torch' does not run in the processes of actors"),
    ({"advantages": "actor"}, "give actors, or leave it out"),
    ({"actors": 9}, "actors must be between 1 and num_envs = 8, got 9"),
    ({"actors": 0}, "actors must be at least 1, got 0"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        Trainer("ppo", "CartPole-v1", num_envs=8, progress="none", **options)


def test_environments_that_are_made_cannot_be_given_to_actors():
    env = hr.make("CartPole-v1", 8)
    with pytest.raises(ValueError, match="in place of environments that are made"):
        Trainer("ppo", env, actors=2, progress="none")


def test_overlapped_starts_actors_and_leaves_a_core(capfd):
    trainer = Trainer("ppo", "CartPole-v1", num_envs=8, collection="overlapped", progress="none")
    trainer.close()
    assert trainer.config.actors == max(1, min(8, cores() - 1))
    assert "starts actors" in capfd.readouterr().err


def test_processes_may_be_borrowed_for_actors_and_stay():
    with hr.Workers(2) as processes:
        pids = []
        for _ in range(2):
            trainer = Trainer("ppo", "CartPole-v1", num_envs=8, actors=processes, progress="none")
            trainer.iterate()
            pids.append([worker.process.pid for worker in trainer.env.transport.workers])
            trainer.close()
        assert pids[0] == pids[1]


@pytest.mark.parametrize(("algorithm", "words"), [("dqn", "which dqn does not have"), ("appo", "or use ppo")])
def test_advantages_of_actors_are_refused_where_there_are_none_or_others(algorithm, words):
    with pytest.raises(ValueError, match=words):
        Trainer(algorithm, "CartPole-v1", num_envs=8, actors=2, advantages="actor", progress="none")


@pytest.mark.parametrize(("algorithm", "options"), [("dqn", {}), ("pqn", {}), ("ppo", {"schedule": "linear"})])
def test_what_falls_over_the_training_needs_its_length(algorithm, options):
    given = {"total_steps": None, "max_seconds": None, "target_return": 400.0, "num_envs": 8, **options}
    with pytest.raises(ValueError, match="target_return=400 alone does not give the length of the training"):
        Trainer(algorithm, "CartPole-v1", **given)
    Trainer(algorithm, "CartPole-v1", **{**given, "max_episodes": 9}).close()


def test_a_constant_rate_needs_no_length():
    Trainer("a2c", "CartPole-v1", total_steps=None, target_return=400.0, num_envs=8, schedule="constant").close()


@pytest.mark.parametrize(
    ("algorithm", "options", "line"),
    [
        ("ppo", {"rnn_size": 32}, "rnn_size=32 is without effect, since recurrent is 'none'"),
        ("sac", {"burn_in": 2}, "burn_in=2 is without effect, since recurrent is 'none'"),
        ("dqn", {"prioritized": False, "priority_beta": 0.1}, "priority_beta=0.1 .* since prioritized is False"),
        ("sac", {"learn_temperature": False, "target_entropy": -2.0}, "since learn_temperature is False"),
        ("ppo", {"eval_episodes": 3}, "eval_episodes=3 is without effect, since eval_freq is 0"),
        ("ppo", {"desired_kl": 0.02}, "desired_kl=0.02 is without effect, since schedule is 'linear'"),
        ("sac", {"use_expln": True}, "use_expln=True is without effect, since use_sde is False"),
        ("sac", {"sde_sample_freq": 4}, "sde_sample_freq=4 is without effect, since use_sde is False"),
        ("sac", {"v_max": 3.0}, "v_max=3.0 is without effect, since num_atoms is 1"),
        ("ppo", {"cluster_open": True}, "since cluster is None"),
        ("ppo", {"images": "nature"}, "images='nature' is without effect: images are Boxes of uint8"),
        ("ppo", {"initial_std": 0.5}, "initial_std=0.5 is without effect: it is for Box actions"),
    ],
)
def test_settings_without_effect_are_named(algorithm, options, line, capsys):
    env = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    Trainer(algorithm, env, num_envs=8, **options).close()
    assert re.search(line, capsys.readouterr().err)


def test_settings_that_are_used_or_not_given_are_not_named(capsys):
    Trainer("ppo", "Pendulum-v1", num_envs=8, recurrent="gru", rnn_size=32, initial_std=0.5).close()
    Trainer("ppo", "CartPole-v1", num_envs=8, rnn_size=64).close()
    Trainer("ppo", "Pendulum-v1", num_envs=8, desired_kl=0.02, schedule="adaptive", target_kl=0).close()
    Trainer("sac", "Pendulum-v1", num_envs=8, use_sde=True, sde_sample_freq=4, use_expln=True).close()
    assert "without effect" not in capsys.readouterr().err
