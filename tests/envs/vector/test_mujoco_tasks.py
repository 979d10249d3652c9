"""Gymnasium's MuJoCo tasks by compiled loops over libmujoco: the episodes that Gymnasium has."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import headrace as hr

pytest.importorskip("mujoco")

from headrace.data.rollout import Rollout
from headrace.envs.vector.mujoco import IDS
from headrace.envs.vector.mujoco_tasks import TASKS

COLUMNS = ("observation", "terminated", "truncated", "valid", "reward")


def stepped(env, steps: int, seed: int, above: float = 1.2) -> Rollout:
    """A rollout of random actions, which leave the bounds by a fifth."""
    rollout = env.rollout(steps, env.columns())
    env.reset(rollout, seed)
    center, half = ((env.action_space.high + sign * env.action_space.low) / 2 for sign in (1, -1))
    drawn = torch.rand(rollout.action.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    rollout.action.copy_(torch.as_tensor(center) + above * torch.as_tensor(half) * drawn)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


def assert_same(one: Rollout, other: Rollout) -> None:
    for name in COLUMNS:
        a, b = getattr(one, name), getattr(other, name)
        if name == "reward":
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(a, b), name
    masked = ~one.valid[: one.num_steps]
    assert torch.equal(one.episode_length[masked], other.episode_length[masked])
    torch.testing.assert_close(one.episode_return[masked], other.episode_return[masked], rtol=1e-5, atol=1e-4)


def assert_as_gymnasium(task: str, num_envs: int, steps: int, seed: int, threads: int, **options) -> Rollout:
    mine = hr.make(f"mujoco/{task}", num_envs, env_kwargs={"num_threads": threads, **options})
    theirs = hr.make(task, num_envs, backend="inline", env_kwargs=options)
    try:
        found = stepped(mine, steps, seed)
        assert_same(found, stepped(theirs, steps, seed))
    finally:
        mine.close()
        theirs.close()
    return found


def test_every_task_is_there():
    assert len(IDS) == len(TASKS) == 11


@pytest.mark.parametrize("task", IDS)
def test_a_task_is_gymnasium_s(task):
    assert_as_gymnasium(task, 3, 120, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("task", IDS)
def test_a_task_is_gymnasium_s_over_a_thousand_steps(task, threads, seed):
    assert_as_gymnasium(task, 4, 1000, seed, threads)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("Ant-v5", {"include_cfrc_ext_in_observation": False, "healthy_z_range": (0.5, 0.7), "main_body": "torso"}),
        ("Ant-v5", {"contact_force_range": (-0.1, 0.1), "contact_cost_weight": 0.5, "reset_noise_scale": 0.3}),
        ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 3.0}),
        ("Hopper-v5", {"terminate_when_unhealthy": False, "frame_skip": 2, "healthy_state_range": (-1, 1)}),
        ("Hopper-v5", {"max_episode_steps": 9, "healthy_angle_range": (-0.05, 0.05), "healthy_reward": 2.5}),
        ("Humanoid-v5", {"include_cvel_in_observation": False, "include_qfrc_actuator_in_observation": False}),
        ("HumanoidStandup-v5", {"impact_cost_weight": 1.0, "impact_cost_range": (0.1, 0.2), "uph_cost_weight": 2}),
        ("InvertedDoublePendulum-v5", {"healthy_reward": 1.0, "reset_noise_scale": 0.5}),
        ("Pusher-v5", {"reward_near_weight": 3, "reward_dist_weight": 2, "reward_control_weight": 1}),
        ("Reacher-v5", {"reward_dist_weight": 3, "reward_control_weight": 0.5, "max_episode_steps": 5}),
        ("Walker2d-v5", {"forward_reward_weight": 2, "healthy_z_range": (1.2, 1.3), "reset_noise_scale": 0.1}),
    ],
)
def test_arguments_of_gymnasium_s_classes_have_their_effect(task, options):
    assert_as_gymnasium(task, 2, 60, 5, 2, **options)


def test_other_episodes_follow_a_new_reset_and_the_same_seed_gives_the_same():
    env = hr.make("mujoco/Hopper-v5", 3)
    first, second, other = (stepped(env, 40, seed) for seed in (1, 1, 2))
    assert_same(first, second)
    assert not torch.equal(first.observation, other.observation)


def test_a_training_learns_what_it_learns_from_gymnasium_s(tmp_path):
    settings = {"num_envs": 4, "num_steps": 32, "total_steps": 400, "hidden": (8,), "progress": "none"}
    runs = [
        hr.train("ppo", source, log_folder=str(tmp_path / str(i)), backend=backend, device="cpu", **settings)
        for i, (source, backend) in enumerate((("mujoco/Hopper-v5", "auto"), ("Hopper-v5", "inline")))
    ]
    one, other = (run.policy.state_dict() for run in runs)
    assert runs[0].steps == runs[1].steps
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)


def test_settings_are_those_of_the_task():
    assert hr.envs.spec("mujoco/Ant-v5").defaults == hr.envs.spec("Ant-v5").defaults != {}


def test_single_environments_are_gymnasium_s():
    env = hr.make("mujoco/Hopper-v5", 2, backend="inline")
    assert env.backend == "inline" and env.apply(lambda one: type(one.unwrapped).__name__) == ["HopperEnv"] * 2
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "wrong"),
    [
        ("mujoco/Hopper-v4", {}, "and not this Hopper-v4: leave mujoco/ out, and Gymnasium steps"),
        ("mujoco/CartPole-v1", {}, "and not this CartPole-v1"),
        ("mujoco/Hopper-v5", {"xml_file": "mine.xml"}, "takes no xml_file: leave mujoco/ out"),
        ("mujoco/Hopper-v5", {"render_mode": "rgb_array"}, "takes no render_mode: leave mujoco/ out"),
        ("mujoco/Hoper-v5", {}, "did you mean 'mujoco/Hopper-v5'"),
        ("mujoco/Hopper-v5", {"num_threads": 0}, "num_threads of mujoco/Hopper-v5 is 0: give a whole number"),
        ("mujoco/Hopper-v5", {"frame_skip": 0}, "frame_skip of mujoco/Hopper-v5 is 0: give a whole number"),
        ("mujoco/Hopper-v5", {"frame_skip": 2.5}, "frame_skip of mujoco/Hopper-v5 is 2.5: give a whole number"),
    ],
)
def test_what_gymnasium_has_to_step_is_refused(name, options, wrong):
    with pytest.raises(ValueError, match=wrong):
        hr.make(name, 2, env_kwargs=options)


def test_actions_that_are_no_numbers_are_errors():
    env = hr.make("mujoco/Hopper-v5", 3)
    rollout = env.rollout(2, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    rollout.action[0, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="the action of environment 1 of mujoco/Hopper-v5 is"):
        env.step(rollout, 0)


@pytest.mark.parametrize("steps", [0, 1])
def test_an_unstable_simulation_ends_its_episode_and_writes_no_file(steps, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = hr.make("mujoco/Hopper-v5", 3)
    rollout = env.rollout(steps + 3, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    for t in range(steps):
        env.step(rollout, t)
    env.source.simulations.datas[1].qvel[:] = 1e30  # which no action can
    env.step(rollout, steps)
    assert rollout.terminated[steps].tolist() == [False, True, False] and env.source.unstable == 1
    assert rollout.reward[steps, 1] == 0
    env.step(rollout, steps + 1)
    env.step(rollout, steps + 2)
    assert rollout.valid[:, 1].tolist() == [True] * (steps + 1) + [False, True, True] and env.source.unstable == 1
    assert np.isfinite(rollout.observation.numpy()).all() and os.listdir(tmp_path) == []
    said = capfd.readouterr().err
    assert "found the simulation of environment 1 unstable" in said and "WARNING" not in said


@pytest.mark.parametrize("num_envs", [1, 5])
def test_halves_that_step_alone_have_the_same_episodes(num_envs):
    env, together = (hr.make("mujoco/Hopper-v5", num_envs) for _ in range(2))
    env.make_async()
    expected = stepped(together, 40, 3)
    assert_same(stepped(env, 40, 3), expected)
    rollout = env.rollout(40, env.columns())
    rollout.action.copy_(expected.action)
    env.reset(rollout, 3)
    for t in range(40):
        for part in range(len(env.parts)):
            env.start(rollout, t, part)
        with pytest.raises(ValueError, match="part 0 is still at a step"):
            env.start(rollout, t, 0)
        found: list[int] = []
        while len(found) < len(env.parts):
            found += env.get()
    assert_same(rollout, expected)
    assert env.get() == []
    env.close()


def test_an_error_of_a_half_is_raised_by_get():
    env = hr.make("mujoco/Hopper-v5", 4)
    env.make_async()
    rollout = env.rollout(2, env.columns())
    env.reset(rollout, 0)
    rollout.action[0] = torch.nan
    env.start(rollout, 0, 1)
    with pytest.raises(ValueError, match="the action of environment 0 of mujoco/Hopper-v5"):
        env.get()
    assert env.get() == []


def test_double_buffered_training_learns_the_same_bits():
    found = []
    for collection in ("sync", "double_buffered"):
        trainer = hr.Trainer("ppo", "mujoco/Hopper-v5", num_envs=5, num_steps=24, epochs=1, collection=collection)
        for _ in range(2):
            trainer.iterate()
        found.append(trainer.policy.state_dict())
        trainer.close()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
