"""Schedules of settings: their values, that they take effect, that a resumed training goes on where they were."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.tiny import TINY

import headrace as hr
from headrace.algorithms.dqn import DQNConfig
from headrace.algorithms.ppo import PPO, PPOConfig, _adapt
from headrace.algorithms.sac import SACConfig
from headrace.core.fused import plain_only
from headrace.parallel.collector import InlineCollector
from headrace.setting_schedules import at, curve, learning_rate

SMALL = {"num_steps": 8, "minibatch_size": 32, "epochs": 2, "hidden": (8,)}


pytestmark = pytest.mark.usefixtures("in_tmp")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("constant", [0.4, 0.4, 0.4, 0.4]),
        ("linear", [0.4, 0.3, 0.2, 0.0]),
        ("linear:0.1", [0.4, 0.325, 0.25, 0.1]),
        ("linear:0.8:0.1", [0.8, 0.625, 0.45, 0.1]),
        ("cosine:0.2", [0.4, 0.3 + 0.1 * math.cos(math.pi / 4), 0.3, 0.2]),
        ("warmup:0.5", [0.0, 0.2, 0.4, 0.4]),
        ("warmup:0.5+linear", [0.0, 0.2, 0.4, 0.0]),
    ],
)
def test_values_are_those_of_the_text(text, wanted):
    known = curve("clip", text, 0.4)
    assert [known(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(wanted)
    tensors = [float(known(torch.tensor(progress, dtype=torch.float64))) for progress in (0.0, 0.25, 0.5, 1.0)]
    assert tensors == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [
        (PPOConfig, {"schedules": {"clip": "linear"}}, "clip must be above 0, got 0.0 by its schedule linear:0.2:0.0"),
        (PPOConfig, {"schedules": {"hidden": "linear"}}, "schedules has hidden='linear': schedules are for numbers"),
        (PPOConfig, {"schedules": {"num_steps": "linear:8"}}, "schedules are for numbers that are read again"),
        (PPOConfig, {"schedules": {"learning_rate": "linear"}}, "`schedule` is that of the learning rate"),
        (PPOConfig, {"schedules": {"clip": "falling"}}, "schedule of clip is 'falling': give constant, linear"),
        (PPOConfig, {"schedule": "warmup:1.5+linear"}, "warmup takes a fraction"),
        (PPOConfig, {"schedule": "linear:0.1:0.0"}, "it begins at learning_rate, 0.0003; give its end"),
        (PPOConfig, {"schedule": "adaptive", "target_kl": 0.01}, "give target_kl=0, or another schedule"),
        (SACConfig, {"schedules": {"extrinsic_coef": "linear:0.5"}}, "extrinsic_coef is None: give both values"),
        (SACConfig, {"schedules": {"target_entropy": "warmup:0.1"}}, "target_entropy is None: give both values"),
        (SACConfig, {"schedules": {"extrinsic_coef": "linear:1:-1"}}, "extrinsic_coef must be 0 or more, got -1.0"),
        (SACConfig, {"schedules": {"critic_hidden": "linear:1:2"}}, "schedules are for numbers"),
        (SACConfig, {"schedules": {"initial_std": "linear:1:2"}}, "schedules are for numbers that are read again"),
        (SACConfig, {"schedule": "adaptive"}, "follows the KL divergence of PPO's minibatches"),
        (DQNConfig, {"schedules": {"utd_ratio": "linear:1"}}, "the number of gradient steps follows from it"),
    ],
)
def test_what_no_schedule_can_change_is_refused(config, given, message):
    with pytest.raises(ValueError, match=message):
        config(**given)


def test_whole_numbers_stay_whole_and_a_changed_config_keeps_its_start():
    config = PPOConfig(schedules={"epochs": "linear:1", "clip": "linear:0.1"}, epochs=4)
    half = at(config, 0.5)
    assert (half.epochs, half.clip) == (2, pytest.approx(0.15))
    assert at(half, 0.75).clip == pytest.approx(0.125) and at(half, 0.0).clip == pytest.approx(0.2)


def made(config):
    env = hr.make("CartPole-v1", 8)
    ppo = PPO.build(config, env.observation_space, env.action_space, 3, "cpu")
    return ppo, InlineCollector(env, ppo.policy, config.num_steps, ppo.columns(), seed=1)


def test_a_schedule_learns_as_settings_that_are_set():
    ends = []
    for schedules in ({"clip": "cosine:0.01", "entropy_coef": lambda progress: 0.5 * progress}, {}):
        ppo, collector = made(PPOConfig(**SMALL, schedules=schedules))
        for k in range(4):
            if not schedules:
                clip = 0.01 + 0.19 * 0.5 * (1 + math.cos(math.pi * k / 4))
                ppo.config = replace(ppo.config, clip=clip, entropy_coef=0.5 * k / 4)
            ppo.update(collector.collect(), k / 4)
        ends.append(ppo.optimizer.flat.clone())
    assert torch.equal(*ends)


def test_a_scheduled_setting_is_no_constant_of_a_compiled_loss(capsys):
    """A recurrent policy learns by a program that is made of ppo_loss, which chooses by value_clip."""
    ppo, collector = made(PPOConfig(**SMALL, recurrent="gru", rnn_size=8, schedules={"clip": "linear:0.1"}))
    for k in range(8):
        ppo.update(collector.collect(), k / 8)
    assert "traced again" not in capsys.readouterr().err


@pytest.mark.parametrize(("kl", "factor"), [(0.03, 1 / 1.5), (0.012, 1.0), (0.004, 1.5), (0.0, 1.0)])
def test_an_adaptive_learning_rate_follows_rsl_rl_s_rule(kl, factor):
    rate = torch.tensor(1e-3)
    _adapt(rate, torch.tensor(kl), 0.01)
    assert float(rate) == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(("kl", "bound"), [(1.0, 1e-5), (1e-9, 1e-2)])
def test_an_adaptive_learning_rate_has_bounds(kl, bound):
    rate = torch.tensor(1e-3)
    for _ in range(20):
        _adapt(rate, torch.tensor(kl), 0.01)
    assert float(rate) == pytest.approx(bound)


def test_adaptive_learning_is_minibatch_by_minibatch_and_resumes():
    config = PPOConfig(**SMALL, schedule="adaptive", desired_kl=1e-4, learning_rate=1e-3)
    ppo, collector = made(config)
    ppo.update(collector.collect(), 0.0)
    rate = float(ppo.optimizer.learning_rate)
    steps = math.log(rate / 1e-3) / math.log(1.5)
    assert rate != 1e-3 and round(steps) == pytest.approx(steps, abs=1e-4)
    again, _ = made(config)
    again.load_state_dict(ppo.state_dict())
    assert float(again.optimizer.learning_rate) == rate
    other, _ = made(replace(config, learning_rate=2e-3))
    other.load_state_dict(ppo.state_dict())
    assert float(other.optimizer.learning_rate) == pytest.approx(2e-3)


def test_off_policy_learning_rates_follow_a_cosine():
    options = {"num_envs": 4, "total_steps": 400, "learning_starts": 40, "batch_size": 16, "hidden": (8,)}
    options |= {"schedule": "cosine:1e-5", "learning_rate": 1e-3, "registered": False, "progress": "none"}
    trainer = hr.Trainer("sac", "Pendulum-v1", schedules={"tau": "linear:0.1"}, **options)
    for _ in range(20):
        progress = trainer.progress()
        metrics = trainer.iterate().metrics
        assert metrics["learning_rate"] == pytest.approx(learning_rate(trainer.algorithm.config, progress))
        assert trainer.algorithm.config.tau == pytest.approx(0.005 + 0.095 * progress)
    assert float(trainer.algorithm.optimizers["actor"].learning_rate) < 1e-3
    trainer.close()


def test_a_resumed_schedule_goes_on_where_it_was_and_a_jump_is_said(tmp_path, capsys):
    (tmp_path / "own.py").write_text("def falling(progress):\n    return 0.4 - 0.3 * progress\n")
    own = {"schedule": "warmup:0.2+cosine", "schedules": {"clip": "own.py:falling", "entropy_coef": "linear:0.1:0"}}
    options = TINY | own | {"num_envs": 8, "total_steps": 2000, "save_freq": 500, "registered": False}
    whole = hr.train("ppo", "CartPole-v1", **options)
    step = next(whole.path.glob("step_1*"))
    resumed = hr.train(resume=step)
    assert all(map(torch.equal, whole.policy.state_dict().values(), resumed.policy.state_dict().values()))
    assert "jumps" not in "".join(capsys.readouterr())
    hr.train(resume=step, total_steps=4000, progress="plain")
    said = "".join(capsys.readouterr())
    assert all(f"{name} jumps from" in said for name in ("learning_rate", "clip", "entropy_coef"))


def test_a_schedule_that_has_no_name_is_asked_for_again_on_resuming():
    options = TINY | {"num_envs": 8, "total_steps": 500, "registered": False}
    run = hr.train("ppo", "CartPole-v1", schedule=lambda progress: 1e-3, **options)
    with pytest.raises(TypeError, match=r"the schedule of .* was made by you: give it again"):
        hr.train(resume=run.path, total_steps=1000)
    again = hr.train(resume=run.path, total_steps=1000, schedule=lambda progress: 1e-3)
    assert again.steps >= 1000


def test_kernels_serve_whatever_files_of_the_user_were_loaded(tmp_path, capsys):
    (tmp_path / "another.py").write_text("def falling(progress):\n    return 1.0 - progress\n")
    PPOConfig(schedules={"clip": f"{tmp_path / 'another.py'}:falling"})
    options = {"num_envs": 4, "total_steps": 200, "learning_starts": 40, "batch_size": 16, "hidden": (8,)}
    trainer = hr.Trainer("dqn", "CartPole-v1", registered=False, progress="none", **options)
    for _ in range(15):
        trainer.iterate()
    trainer.close()
    assert "plain PyTorch" not in capsys.readouterr().err


@pytest.mark.parametrize("intrinsic", ["rnd", "diayn"])
def test_a_setting_that_is_none_by_default_follows_its_schedule(intrinsic):
    given = {"total_steps": 200, "num_envs": 2, "learning_starts": 20, "hidden": (8,), "intrinsic_hidden": (8,)}
    given |= {"n_steps": 1, "intrinsic": intrinsic, "batch_size": 16, "registered": False, "progress": "none"}

    def weights(**own):
        run = hr.train("sac", "Pendulum-v1", seed=1, **given, **own)
        return torch.cat([x.flatten() for x in hr.load(run.path, which="last").parameters()])

    with plain_only():
        constant = weights(extrinsic_coef=0.5)
        assert torch.equal(constant, weights(schedules={"extrinsic_coef": "constant:0.5:0.5"}))
        assert not torch.equal(constant, weights(schedules={"extrinsic_coef": "linear:0.5:0"}))


def test_a_scheduled_target_entropy_is_that_of_plain_pytorch():
    config = SACConfig(schedules={"target_entropy": "linear:-1:-3"})
    assert [at(config, progress).target_entropy for progress in (0.0, 0.25, 1.0)] == [-1.0, -1.5, -3.0]
    given = {"total_steps": 200, "num_envs": 2, "learning_starts": 20, "hidden": (8,), "batch_size": 16, "seed": 1}
    given |= {"registered": False, "progress": "none", "learning_rate": 0.01}
    coefficients = []
    for plain, schedule in ((False, "linear:-1:-30"), (True, "linear:-1:-30"), (False, "constant:-1")):
        with plain_only(plain):
            run = hr.train("sac", "Pendulum-v1", schedules={"target_entropy": schedule}, **given)
        coefficients.append(run.metrics["ent_coef"])
    assert coefficients[0] == pytest.approx(coefficients[1], rel=1e-3)
    assert coefficients[0] != pytest.approx(coefficients[2], rel=1e-2)
