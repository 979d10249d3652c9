"""Settings that follow from the number of environments: the rule, what overrides it, and that a run keeps them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import gymnasium
import pytest
import torch
from helpers.tiny import TINY

import headrace as hr
from headrace.algorithms.ppo import PPOConfig
from headrace.algorithms.vtrace.appo import APPOConfig
from headrace.envs import registry
from headrace.training.config import read_toml
from headrace.training.plan import settle
from headrace.training.scaling import derived, scaling_message

BASE = PPOConfig(num_steps=100, epochs=8, minibatch_size=128, learning_rate=1e-3, gamma=0.9, clip=0.2)
SIZES = (1, 2, 8, 32, 64, 100, 128, 512, 2048, 4096, 100_000)
QUIET = {"progress": "none"}


SWING = {"num_envs": 64, "num_steps": 100, "epochs": 4, "minibatch_size": 128, "gamma": 0.9, "total_steps": 600_000}


@pytest.fixture(autouse=True)
def _registered(in_tmp, monkeypatch):
    known = registry.Spec("Swing", "headrace.envs.builtin.pendulum:Pendulum", {"ppo": SWING | {"hidden": (8,)}})
    monkeypatch.setitem(registry._specs, "Swing", known)


def test_the_base_is_what_it_was():
    assert BASE.scaled(64, 64) == BASE
    assert derived(PPOConfig, {"num_envs": 64, "num_steps": 100}, {"num_envs": 64}) == {}


def test_fewer_envs_take_longer_rollouts_of_fewer_rows():
    fewer = BASE.scaled(64, 16)
    assert fewer.num_steps == 200  # 100 sqrt(4): half the rows
    assert BASE.scaled(64, 1).num_steps == 1024  # but not fewer rows than this
    assert PPOConfig(num_steps=8).scaled(64, 8).num_steps == 64  # or than there were
    assert (fewer.epochs, fewer.minibatch_size, fewer.learning_rate) == (8, 128, 1e-3)


def test_more_envs_take_shorter_rollouts_and_look_at_each_row_less():
    more = BASE.scaled(64, 256)
    assert more.num_steps == 25  # as many rows
    assert more.epochs == 4  # 8 / sqrt(4)
    assert (more.minibatch_size, more.learning_rate, more.target_kl) == (128, 1e-3, 0.0)


def test_rollouts_stay_as_long_as_advantages_reach():
    assert BASE.scaled(64, 4096).num_steps == 7  # 1 / (1 - 0.9 * 0.95) = 6.9
    far = PPOConfig(num_steps=100, gamma=1.0, gae_lambda=1.0)
    assert far.scaled(64, 4096).num_steps == 100
    assert PPOConfig(num_steps=4).scaled(64, 4096).num_steps == 4  # nor longer than they were


def test_once_rows_are_seen_once_minibatches_grow_and_kl_guards_the_rate():
    large = BASE.scaled(64, 65536)  # rows: 1024 * 7 / 100 = 71.7 rollouts' worth, seen once instead of 8 times
    assert large.epochs == 1 and large.minibatch_size == 128 * 9
    assert large.learning_rate == pytest.approx(3e-3)
    assert large.target_kl == 0.0  # which would leave out some of the updates that are left


@pytest.mark.parametrize("base", [BASE, PPOConfig(), PPOConfig(num_steps=16, epochs=20, gamma=0.98)])
def test_from_one_number_of_envs_to_a_larger_nothing_turns_back(base):
    scaled = [base.scaled(64, size) for size in SIZES]
    for less, more in pairwise(scaled):
        assert less.num_steps >= more.num_steps >= 1 and less.epochs >= more.epochs >= 1
        assert less.minibatch_size <= more.minibatch_size and less.learning_rate <= more.learning_rate
    for size, config in zip(SIZES, scaled, strict=True):
        updates = size * config.num_steps * config.epochs / config.minibatch_size
        assert updates < 1.6 * (64 * base.num_steps * base.epochs / base.minibatch_size)


def test_what_is_given_stays_and_the_rest_follows_from_it():
    given = BASE.scaled(64, 256, num_steps=100)
    assert given.num_steps == 100 and given.epochs == 1  # 4 times the rows, of 4 times the envs: 8 / (4 * 2)
    assert BASE.scaled(64, 65536, minibatch_size=512).learning_rate == 1e-3
    assert BASE.scaled(64, 256, learning_rate=5e-4).learning_rate == 5e-4
    assert BASE.scaled(64, 65536, target_kl=0.05).target_kl == 0.05
    assert BASE.scaled(64, 256, clip=0.1, gamma=0.5) == BASE.scaled(64, 256, clip=0.1, gamma=0.5, epochs=4)


def test_gradients_through_memory_keep_their_length():
    config = PPOConfig(num_steps=64, sequence_length=16, gamma=0.9).scaled(64, 2048)
    assert config.num_steps == 16


def test_a_policy_that_is_updates_older_collects_shorter_rollouts():
    long = PPOConfig(num_steps=256, epochs=8, minibatch_size=128)
    assert [long.lagging(16, lag).num_steps for lag in (0, 1, 2)] == [256, 128, 85]
    assert long.lagging(16, 1) == replace(long, num_steps=128)  # so that there are as many gradient steps for each step
    assert long.lagging(16, 7).num_steps == 64  # 1,024 rows: gradients of fewer are too noisy
    assert BASE.lagging(512, 15).num_steps == 7  # as many as advantages sum over: 1 / (1 - 0.9 * 0.95) = 6.9
    assert PPOConfig(num_steps=4).lagging(4096, 1).num_steps == 4  # nor more than there were
    assert PPOConfig(num_steps=96, sequence_length=32, gamma=0.9).lagging(64, 1).num_steps == 64
    appo = APPOConfig(num_steps=256, clip_rho=2.0)
    assert appo.lagging(16, 2) == replace(appo, num_steps=85)


# --- a training


def test_registered_settings_follow_and_explicit_ones_win():
    follows = hr.Trainer("ppo", "Swing", num_envs=256)
    assert follows.algorithm.num_steps == 25 and follows.config.stagger
    assert follows.plan.derived == {"num_steps": 25, "epochs": 2, "stagger": True}
    assert scaling_message(follows.config, follows.plan.derived).startswith(
        "for 256 envs: num_steps 25, epochs 2, stagger true"
    )
    fixed = hr.Trainer("ppo", "Swing", num_envs=256, num_steps=30, stagger=False)
    assert fixed.algorithm.num_steps == 30 and not fixed.config.stagger and "num_steps" not in fixed.plan.derived
    kept = hr.Trainer("ppo", "Swing", num_envs=256, scale=False)
    assert kept.algorithm.num_steps == 100 and kept.plan.derived == {} and not kept.config.stagger


def made(algorithm: str, **options) -> tuple[int, dict[str, object]]:
    """The steps of a rollout, and what followed for the training."""
    trainer = hr.Trainer(algorithm, "Swing", **{"num_envs": 64, "hidden": (8,), "target_return": None, **options})
    trainer.close()
    return trainer.algorithm.num_steps, trainer.plan.derived


def test_rollouts_are_shorter_where_actors_collect_with_an_older_policy(monkeypatch):
    monkeypatch.setitem(registry._specs["Swing"].defaults, "appo", SWING)
    monkeypatch.setitem(registry._specs["Swing"].defaults, "impala", {"num_steps": 100})
    overlapped, asynchronous = {"actors": 1, "collection": "overlapped"}, {"actors": 2, "collection": "async"}
    for actors in (1, 2):
        assert made("ppo", **{**overlapped, "actors": actors}) == (50, {"num_steps": 50})
    assert made("appo", **asynchronous) == (33, {"num_steps": 33})
    assert made("appo", **asynchronous, max_policy_lag=1) == (50, {"num_steps": 50})
    assert made("ppo", **overlapped, num_envs=256) == (12, {"num_steps": 12, "epochs": 2, "stagger": True})
    for same in ({"actors": 1}, {}, overlapped | {"num_steps": 100}, overlapped | {"scale": False}):
        assert made("ppo", **same) == (100, {})
    assert made("impala", **asynchronous) == (100, {})  # it takes one gradient step a rollout


def test_a_run_says_that_rollouts_are_shorter_and_resumes_with_them(capsys):
    options = {"num_envs": 64, "actors": 1, "collection": "overlapped", "target_return": None}
    run = hr.train("ppo", "Swing", total_steps=6_400, progress="plain", **options)
    said = "for 64 envs, collected by a policy up to 1 update older: num_steps 50 (--no-scale"
    assert said in capsys.readouterr().out
    settings = read_toml(run.path / "config.toml")
    assert settings["num_steps"] == 50
    again = hr.train(resume=run.path, total_steps=12_800, progress="plain")
    assert "num_steps" not in capsys.readouterr().out and read_toml(again.path / "config.toml")["num_steps"] == 50


def test_a_budget_of_steps_is_one_of_iterations():
    defaults = {"num_envs": 64, "num_steps": 16, "total_steps": 1000, "gamma": 0.98}
    assert derived(PPOConfig, defaults, {"num_envs": 640})["total_steps"] == 9375  # 10 times the envs, 15 of 16 steps
    assert "total_steps" not in derived(PPOConfig, defaults, {"num_envs": 640, "total_steps": 500})
    assert "total_steps" not in derived(
        PPOConfig, {**defaults, "total_steps": None, "max_seconds": 1}, {"num_envs": 640}
    )


def test_settings_registered_without_a_number_of_envs_follow_more_than_the_default():
    assert derived(PPOConfig, {"num_steps": 100}, {"num_envs": 32}) == {}
    follows = derived(PPOConfig, {"num_steps": 100}, {"num_envs": 2048})
    assert follows == derived(PPOConfig, {"num_steps": 100, "num_envs": 64}, {"num_envs": 2048})
    assert follows["num_steps"] == 17 and follows["stagger"]
    assert derived(PPOConfig, {}, {"num_envs": 2048, "scale": False}) == {}
    assert derived(None, {"num_envs": 64}, {"num_envs": 4096}) == {}


def test_a_run_says_what_followed_and_keeps_it(capsys):
    run = hr.train("ppo", "Swing", num_envs=256, total_steps=12_000, progress="plain")
    assert "for 256 envs: num_steps 25, epochs 2, stagger true (--no-scale" in capsys.readouterr().out
    settings = read_toml(run.path / "config.toml")
    assert (settings["num_steps"], settings["epochs"], settings["stagger"]) == (25, 2, True)
    again = hr.Trainer(config=run.path / "config.toml")
    assert again.plan.derived == {} and again.algorithm.num_steps == 25


def test_a_run_whose_settings_followed_resumes_bit_for_bit():
    options = {"num_envs": 96, "backend": "cpu", "target_return": None, **QUIET}  # phases of 67 steps
    straight = hr.train("ppo", "Swing", total_steps=40_000, save_freq=8_000, **options)
    saved = sorted(straight.path.glob("step_*"), key=lambda path: int(path.name.partition("_")[2]))
    resumed = hr.train(resume=saved[0])
    ours, theirs = straight.policy.state_dict(), resumed.policy.state_dict()
    assert saved[0].name < "step_2" and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert resumed.metrics["episodes"] == straight.metrics["episodes"] > 0


def test_other_sizes_are_refused_as_ever():
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        hr.Trainer("ppo", "Swing", num_envs=0)
    with pytest.raises(TypeError, match="no setting 'num_step'"):
        hr.Trainer("ppo", "Swing", num_envs=128, num_step=3)
    assert hr.Trainer("ppo", "Swing", num_envs=4, backend="inline", **TINY).plan.derived == {}


def test_environments_stepped_one_by_one_keep_the_gradient_steps_of_a_rollout():
    base = PPOConfig(num_steps=64, epochs=10, minibatch_size=64)
    assert base.scaled(8, 64, singly=True).epochs == 4  # 17 steps of 64: 2.1 times the rows
    assert (base.scaled(8, 64).epochs, base.scaled(8, 64, True).num_steps) == (1, 17)
    given = {"num_envs": 64, "total_steps": 100_000, "backend": "inline"}
    own = settle("ppo", lambda: gymnasium.make("Pendulum-v1"), None, None, given).algorithm_config
    assert (own.num_steps, own.epochs, own.minibatch_size) == (17, 4, 64)
    asynchronous = APPOConfig(num_steps=64, epochs=10, minibatch_size=64)
    assert (asynchronous.scaled(8, 64, True).epochs, asynchronous.scaled(8, 64).epochs) == (4, 1)
