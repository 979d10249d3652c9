"""EnvPool, Atari and MuJoCo, where they are installed."""

from __future__ import annotations

import builtins
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import headrace as hr
from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs import sources


def run(env, steps, seed=0, action=0):
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(steps, env.num_envs, columns)
    rollout.action.fill_(action)
    env.reset(rollout, seed)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


@pytest.fixture
def without(monkeypatch):
    """A function that makes a package as good as not installed."""

    def hide(package):
        real = builtins.__import__

        def refuse(name, *arguments, **named):
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            return real(name, *arguments, **named)

        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr(builtins, "__import__", refuse)

    return hide


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("envpool/Pong-v5", "envpool", "envpool"), ("ALE/Pong-v5", "ale_py", "atari")],
)
def test_what_is_missing_gives_the_line_that_installs_it(name, package, extra, without, monkeypatch):
    monkeypatch.delitem(gymnasium.registry, name, raising=False)
    without(package)
    with pytest.raises(ImportError, match=rf'pip install "headrace\[{extra}\]"'):
        envs.make(name, 2)


@pytest.mark.parametrize(("module", "extra"), [("mujoco", "mujoco"), ("box2d", "box2d")])
def test_gymnasium_environments_likewise(module, extra, monkeypatch):
    def missing(*_, **__):
        raise gymnasium.error.DependencyNotInstalled("not here")

    monkeypatch.setattr(gymnasium, "make", missing)
    spec = gymnasium.envs.registration.EnvSpec("Thing-v0", f"gymnasium.envs.{module}.thing:Thing")
    with pytest.raises(ImportError, match=rf'pip install "headrace\[{extra}\]"'):
        sources.build("Thing-v0", spec, {})


# ---- EnvPool


def test_envpool_rows():
    pytest.importorskip("envpool")
    env = envs.make("envpool/CartPole-v1", 4)
    assert (env.name, env.max_steps, env.backend) == ("envpool/CartPole-v1", 500, "vector")
    rollout = run(env, 40, action=1)
    valid, dead = rollout.valid[:40], ~rollout.valid[:40]
    assert dead.sum() > 8
    assert torch.equal(rollout.reward, valid.float())
    assert torch.equal(rollout.episode_return[dead].int(), rollout.episode_length[dead])
    assert (rollout.observation[:-1][dead][:, 2].abs() > 0.2).all(), "the masked step shows what was seen last"
    again, other = run(env, 40, action=1), run(env, 40, seed=1, action=1)
    assert torch.equal(rollout.observation, again.observation)
    assert not torch.equal(rollout.observation, other.observation)
    env.close()


def test_envpool_steps_together_though_it_hands_over_some_at_a_time():
    pytest.importorskip("envpool")
    together, parts = (envs.make("envpool/CartPole-v1", 4, **options) for options in ({}, {"batch_size": 2}))
    assert torch.equal(run(together, 40, action=1).observation, run(parts, 40, action=1).observation)
    with pytest.raises(ValueError, match="batch_size must be between 1 and num_envs = 4, got 5"):
        envs.make("envpool/CartPole-v1", 4, batch_size=5)
    with pytest.raises(ValueError, match="no task 'CartPole-v9'; did you mean 'CartPole-v1'"):
        envs.make("envpool/CartPole-v9", 4)


def test_envpool_worlds_are_cut_off_and_begun_anew():
    pytest.importorskip("envpool")
    env = envs.make("envpool/CartPole-v1", 3)
    rollout = run(env, 3)
    rollout.valid[-1, 1] = False
    before = rollout.observation[-1].clone()
    rollout.continue_from(rollout)
    env.step(rollout, 0)
    assert rollout.episode_length[0, 1] == 3
    assert rollout.valid[1].all()
    assert (rollout.observation[1, 1].abs() < 0.051).all() and (before[1].abs() > 0.051).any()
    env.load_state_dict({})
    env.step(rollout, 1)
    assert (rollout.observation[2].abs() < 0.051).all()


def test_envpool_runs_physics_and_is_evaluated():
    pytest.importorskip("envpool")
    trainer = hr.Trainer("ppo", "envpool/Pendulum-v1", num_envs=2, num_steps=16, epochs=1)
    trainer.iterate()
    evaluation = hr.evaluate(trainer.policy, "envpool/Pendulum-v1", episodes=2)
    assert evaluation.lengths == (200, 200)
    assert envs.make("envpool/HalfCheetah-v5", 2).action_space.shape == (6,)


# ---- MuJoCo


def test_mujoco_tasks_run_as_they_are():
    pytest.importorskip("mujoco")
    trainer = hr.Trainer("ppo", "HalfCheetah-v5", num_envs=2, num_steps=16, epochs=1)
    trainer.iterate()
    assert trainer.env.observation_space.shape == (17,)
    assert trainer.steps == 32


# ---- Atari


@pytest.fixture
def pong():
    """A game as short as its frames allow: 40 of them, 10 steps."""
    pytest.importorskip("ale_py")
    return lambda num_envs=2, **options: envs.make("ALE/Pong-v5", num_envs, max_num_frames_per_episode=40, **options)


def test_atari_comes_preprocessed(pong):
    env = pong()
    assert (env.name, env.backend) == ("ALE/Pong-v5", "vector")
    assert env.observation_space == Box(0, 255, (4, 84, 84), np.uint8)
    rollout = run(env, 24)
    assert rollout.observation.dtype == torch.uint8 and rollout.observation.max() > 100
    (dead,) = {tuple((~rollout.valid[:, world]).nonzero().flatten().tolist()) for world in range(2)}
    assert dead[0] <= 10 and len(dead) == 2
    assert rollout.truncated[dead[0] - 1].all() and not rollout.terminated.any()
    assert rollout.episode_length[dead[0]].tolist() == [dead[0]] * 2
    assert torch.equal(run(pong(), 24).observation, rollout.observation)


def test_modes_of_atari_agree(pong):
    """A game does not know how it will be reset until its first episode ends."""
    next_step, same_step = (run(pong(autoreset_mode=mode), 12) for mode in ("NextStep", "SameStep"))
    end = int((~next_step.valid[:, 0]).nonzero()[0])
    assert torch.equal(next_step.observation[: end + 1], same_step.observation[: end + 1])
    assert torch.equal(next_step.valid, same_step.valid)


def test_atari_rewards_are_clipped_and_returns_are_not(pong):
    pytest.importorskip("ale_py")
    env = envs.make("ALE/MsPacman-v5", 2, repeat_action_probability=0.0)
    assert env.clip_reward == (-1, 1)
    rollout = run(env, 100, action=3)
    assert rollout.reward.max() == 1
    assert env._returns.max() >= 50, "a pill is ten points"
    assert envs.make("ALE/MsPacman-v5", 1, reward_clipping=False).clip_reward is None


def test_one_game_is_like_many(pong):
    pytest.importorskip("cv2")
    game = envs.factory("ALE/Pong-v5")()
    assert game.observation_space == pong().observation_space
    assert game.action_space == pong().action_space
    first, _ = game.reset(seed=3)
    assert np.asarray(first).shape == (4, 84, 84)
    inline = envs.make("ALE/Pong-v5", 1, backend="inline")
    assert run(inline, 3).observation.dtype == torch.uint8


def test_a_worker_finds_games_though_nobody_has_imported_them_there():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env = envs.make("ALE/Pong-v5", 1, workers=1)
    assert env.observation_space.shape == (4, 84, 84)
    env.close()


def test_a_game_is_learned_by_convolutions(pong):
    trainer = hr.Trainer("ppo", pong(), num_steps=8, epochs=1, hidden=(), shared=True)
    metrics = trainer.iterate().metrics
    assert type(trainer.policy.encoder).__name__ == "ImageEncoder" and trainer.policy.encoder.size == 512
    assert np.isfinite(metrics["loss"])
