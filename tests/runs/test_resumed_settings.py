"""Resuming with other settings: each takes effect, or is refused by name."""

from __future__ import annotations

import shutil
from dataclasses import fields

import pytest
import torch
from helpers.tiny import TINY

import headrace as hr
from headrace.algorithms.base import algorithm_classes
from headrace.core.fused import plain_only
from headrace.core.types import MADE_WITH, TAKE_EFFECT
from headrace.training.config import read_toml
from tests.envs.hybrid import Mover

SAC = {"num_envs": 2, "learning_starts": 20, "batch_size": 8, "hidden": (8,), "registered": False, "progress": "none"}
FIXED = {**SAC, "learn_temperature": False, "temperature": 0.2, "total_steps": 60, "seed": 1}


pytestmark = pytest.mark.usefixtures("in_tmp")


@pytest.mark.parametrize(
    ("algorithm", "env", "coefficients"),
    [
        ("sac", "Pendulum-v1", ["ent_coef"]),
        ("discrete_sac", "CartPole-v1", ["ent_coef"]),
        ("hybrid_sac", Mover, ["ent_coef", "choice_coef"]),
    ],
)
def test_a_temperature_that_is_not_learned_takes_effect(algorithm, env, coefficients, capsys):
    with plain_only():
        run = hr.train(algorithm, env, **FIXED)
        again = hr.train(resume=run.path, temperature=5.0, total_steps=120, progress="plain")
        assert "temperature 0.2 -> 5.0 from step" in capsys.readouterr().out
        assert [again.metrics[name] for name in coefficients] == pytest.approx([5.0] * len(coefficients))
        last = hr.train(resume=run.path, total_steps=180, progress="none")
    assert [last.metrics[name] for name in coefficients] == pytest.approx([5.0] * len(coefficients))


def test_a_temperature_that_was_learned_stays_unless_learning_it_ends():
    with plain_only():
        run = hr.train("sac", "Pendulum-v1", **SAC, total_steps=60, seed=1)
        with pytest.raises(ValueError, match=r"temperature is 1.0 in .* it was learned since; give learn_temperature="):
            hr.train(resume=run.path, temperature=0.3, total_steps=120)
        again = hr.train(resume=run.path, temperature=0.3, learn_temperature=False, total_steps=120, progress="none")
    assert again.metrics["ent_coef"] == pytest.approx(0.3)


MADE = {
    "initial_std": 0.3,
    "intrinsic": "none",
    "intrinsic_features": 7,
    "intrinsic_hidden": (5,),
    "hidden": (4, 4),
    "critic_hidden": (5,),
    "rnn_size": 8,
    "ortho_init": False,
    "state_std": True,
    "use_expln": True,
    "skills": 3,
}


def test_settings_that_networks_are_made_by_are_refused_by_name():
    with plain_only():
        given = {**TINY, "total_steps": 100, "intrinsic": "rnd", "intrinsic_hidden": (8,)}
        run = hr.train("ppo", "Pendulum-v1", registered=False, **given)
        for name, value in MADE.items():
            with pytest.raises(ValueError, match=rf"{name} is .* on resuming: networks or buffers were made by it"):
                hr.train(resume=run.path, total_steps=200, **{name: value})
        same = hr.train(resume=run.path, total_steps=200, progress="none", intrinsic_hidden=(8,), initial_std=None)
    assert same.steps >= 200


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "dqn"])
def test_settings_that_take_effect_change_the_weights(algorithm):
    """Each of TAKE_EFFECT is tested, except sizes, and settings that need goals, recurrent networks or noise."""
    new = {
        "exploration_spread": 7.0,
        "priority_alpha": 0.2,
        "train_freq": 2,
        "n_steps": 3,
        "adam_eps": 1e-3,
        "adam_beta2": 0.5,
        "weight_decay": 0.5,
    }
    others = {"num_steps", "buffer_size", "hindsight", "hindsight_goals", "burn_in", "exploration_max"}
    assert {*TAKE_EFFECT} <= {*MADE_WITH} and {*TAKE_EFFECT} - {*new} == others
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    given = {**TINY, "num_envs": 2, "registered": False} if algorithm == "ppo" else {**SAC, "num_steps": 4}
    given |= {"prioritized": True, "buffer_size": 500, "exploration_final": 0.5} if algorithm == "dqn" else {}
    with plain_only():
        run = hr.train(algorithm, env, **given, total_steps=64, seed=1)

        def weights(**own):
            shutil.rmtree("copy", ignore_errors=True)
            shutil.copytree(run.path, "copy")
            found = hr.train(resume="copy", total_steps=128, progress="none", **own)
            return torch.cat([x.flatten() for x in hr.load(found.path, which="last").parameters()])

        own = {setting.name for setting in fields(algorithm_classes(algorithm).config)}
        same = weights()
        assert torch.equal(same, weights())
        for name in {*new} & own:
            assert not torch.equal(same, weights(**{name: new[name]})), name
        if algorithm == "dqn":
            for name, value in (("buffer_size", 300), ("prioritized", False), ("hindsight", 2)):
                with pytest.raises(ValueError, match=f"{name} is .* networks or buffers were made by it"):
                    weights(**{name: value})


def test_hindsight_takes_effect_where_it_is_on():
    with plain_only():
        run = hr.train("dqn", "BitFlip", **{**SAC, "hindsight": 4, "n_steps": 1}, total_steps=64, seed=1)

        def weights(**own):
            shutil.rmtree("copy", ignore_errors=True)
            shutil.copytree(run.path, "copy")
            found = hr.train(resume="copy", total_steps=128, progress="none", **own)
            return torch.cat([x.flatten() for x in hr.load(found.path, which="last").parameters()])

        assert not torch.equal(weights(), weights(hindsight=1))
        with pytest.raises(ValueError, match=r"hindsight is 4 .* networks or buffers were made by it"):
            weights(hindsight=0)


DQN = {**SAC, "buffer_size": 400, "num_steps": 4}


def settings(run):
    return read_toml(run.path / "config.toml")


def test_settings_that_nothing_reads_are_said_to_be_without_effect_and_stay(capsys):
    with plain_only():
        run = hr.train("dqn", "CartPole-v1", **DQN, total_steps=64, seed=1)
        before = settings(run)
        new = {"priority_alpha": 0.2, "burn_in": 3, "intrinsic_coef": 0.5}
        capsys.readouterr()
        again = hr.train(resume=run.path, total_steps=128, progress="plain", **new)
        said = "".join(capsys.readouterr())
        others = {"priority_alpha": "prioritized", "burn_in": "recurrent", "intrinsic_coef": "intrinsic"}
        for name, value in new.items():
            assert f"{name}={value!r} is without effect, since {others[name]} is" in said
            assert f"{name} " not in said.replace(f"{name}={value!r}", "")  # neither is it said to have changed
            assert settings(again)[name] == before[name]
        hr.train(resume=run.path, total_steps=192, progress="plain", priority_alpha=0.6)  # as it is
    assert "without effect" not in "".join(capsys.readouterr())


def test_a_smaller_replay_buffer_keeps_the_newest_rows(capsys):
    with plain_only():
        run = hr.train("dqn", "CartPole-v1", **DQN, total_steps=600, seed=1)
        with hr.Training(resume=run.path, total_steps=700, buffer_size=100, progress="plain") as training:
            replay, algorithm = training.trainer.algorithm.replay, training.trainer.algorithm
            assert replay.length * replay.num_envs == 100 and 60 < int(replay.written.sum()) <= 100
            assert training.trainer.steps == run.steps and algorithm.optimizer.steps > 50
            for _ in training:
                pass
        assert training.trainer.steps >= 700
    assert "with another buffer_size new episodes begin" in "".join(capsys.readouterr())


@pytest.mark.parametrize("given", [{}, {"total_steps": 128}])
def test_resuming_takes_a_runs_own_file_of_settings(given):
    with plain_only():
        run = hr.train("dqn", "CartPole-v1", **DQN, total_steps=64, seed=1)
        before = settings(run)
        again = hr.train(resume=run.path, config=run.path / "config.toml", **given)
    assert settings(again) == before | given and again.steps >= given.get("total_steps", 64)


def test_a_file_of_settings_of_another_task_is_refused_on_resuming(tmp_path):
    with plain_only():
        run = hr.train("dqn", "CartPole-v1", **DQN, total_steps=64, seed=1)
        (tmp_path / "other.toml").write_text('algorithm = "dqn"\nenv = "Acrobot-v1"\nlearning_rate = 0.5\n')
        with pytest.raises(
            ValueError, match=r"env is 'Acrobot-v1' in .*other.toml and 'CartPole-v1' in .*: take it out"
        ):
            hr.train(resume=run.path, config="other.toml", total_steps=128)
        again = hr.train(resume=run.path, env="CartPole-v1", config="other.toml", total_steps=128)
    assert settings(again)["learning_rate"] == 0.5
