"""Infos of MuJoCo's tasks by compiled loops: Gymnasium's names and numbers."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr

pytest.importorskip("mujoco")

from headrace.core.rng import env_seed
from headrace.envs.vector.mujoco import IDS, NOT_TAKEN, MujocoSource


def assert_infos_of_gymnasium(task: str, steps: int, seed: int, count: int = 2, **options) -> None:
    """Step both, and compare each info but those of resets, which no training reads."""
    source = MujocoSource(gymnasium.spec(task), count, **options)
    theirs = [gymnasium.make(task, **options) for _ in range(count)]
    source.reset(seed)
    for i, env in enumerate(theirs):
        env.reset(seed=env_seed(seed, i))
    random, ended, compared = np.random.default_rng(seed), [False] * count, 0
    for _ in range(steps):
        space = source.action_space
        actions = random.uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)
        infos = source.step(torch.from_numpy(actions)).infos
        for i, env in enumerate(theirs):
            if ended[i]:
                env.reset()
                ended[i] = False
                continue
            *_, terminated, truncated, info = env.step(actions[i])
            assert infos.keys() == info.keys()
            for name, value in info.items():
                assert infos[name][i] == pytest.approx(value, rel=1e-9, abs=1e-12), name
            ended[i], compared = terminated or truncated, compared + 1
    assert compared > steps
    for env in (source, *theirs):
        env.close()


@pytest.mark.parametrize("task", IDS)
def test_infos_are_gymnasium_s(task):
    assert_infos_of_gymnasium(task, 40, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("task", IDS)
def test_infos_are_gymnasium_s_over_a_thousand_steps(task, seed):
    assert_infos_of_gymnasium(task, 1000, seed)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("Ant-v5", {"main_body": 2, "healthy_z_range": (0.6, 0.8), "contact_cost_weight": 0.5, "healthy_reward": 3}),
        ("Hopper-v5", {"terminate_when_unhealthy": False, "frame_skip": 2, "healthy_state_range": (-1, 1)}),
        ("Humanoid-v5", {"contact_cost_range": (0.1, 0.2), "forward_reward_weight": 2, "ctrl_cost_weight": 3}),
        ("HumanoidStandup-v5", {"impact_cost_range": (0.1, 0.2), "impact_cost_weight": 2}),
        ("InvertedDoublePendulum-v5", {"healthy_reward": 3, "reset_noise_scale": 1.0}),
        ("Pusher-v5", {"reward_near_weight": 3, "reward_dist_weight": 2, "reward_control_weight": 0.5}),
        ("Walker2d-v5", {"healthy_angle_range": (-0.1, 0.1), "healthy_reward": 2.5}),
    ],
)
def test_arguments_have_their_effect_on_infos(task, options):
    assert_infos_of_gymnasium(task, 60, 1, **options)


@pytest.mark.parametrize("task", IDS)
def test_each_argument_of_gymnasium_s_class_is_taken_or_refused(task):
    spec = gymnasium.spec(task)
    made = gymnasium.envs.registration.load_env_creator(spec.entry_point)
    base = inspect.signature(gymnasium.envs.mujoco.mujoco_env.MujocoEnv).parameters
    rendering = {name for name in base if name not in ("model_path", "frame_skip", "observation_space")}
    assert rendering == {*NOT_TAKEN} - {"xml_file"}
    source = MujocoSource(spec, 1)
    own = vars(source.env)
    for name in inspect.signature(made).parameters.keys() - {"kwargs", "frame_skip", *NOT_TAKEN}:
        assert f"_{name}" in own, name  # which the formulas read
    source.close()


@pytest.mark.parametrize("collection", ["sync", "double_buffered"])
def test_log_info_logs_what_gymnasium_s_would(collection, tmp_path):
    options = {"num_envs": 8, "num_steps": 64, "total_steps": 512, "hidden": (4,), "progress": "none", "seed": 2}
    logs = []
    for backend in ("auto", "inline"):
        given = {"collection": collection} if backend == "auto" else {}
        folder, names = str(tmp_path / backend), ("x_position", "reward_survive")
        run = hr.train("ppo", "Hopper-v5", backend=backend, log_info=names, log_folder=folder, **given, **options)
        logs.append([json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()])
    for one, other in zip(*logs, strict=True):  # one iteration: later ones differ by rounding
        for name in ("return", "info/x_position", "info/reward_survive"):
            assert (name in one) == (name in other)
            if name in one:
                assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-4)
    assert "info/x_position" in logs[0][-1]
