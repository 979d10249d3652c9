"""Replay buffers of models: what is seen of them, files without pickle, and other environments that go on with one."""

from __future__ import annotations

import io
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from headrace.sb3 import DQN, PPO, SAC, TD3, make_vec_env

SMALL = {
    "buffer_size": 300,
    "learning_starts": 20,
    "batch_size": 8,
    "policy_kwargs": {"net_arch": [8]},
    "device": "cpu",
}


class Counter(gymnasium.Env):
    """Observations count by `by`; an episode has seven steps, every second one terminates."""

    observation_space = gymnasium.spaces.Box(-1e4, 1e4, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    by, begin, episodes = 1, 100, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.now, self.steps, self.episodes = self.begin, 0, self.episodes + 1
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.array([self.now], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.now, self.steps = self.now + self.by, self.steps + 1
        ends = self.steps == 7
        return self._seen(), float(self.now), ends and self.episodes % 2 == 0, ends and self.episodes % 2 == 1, {}


class Backwards(Counter):
    by, begin = -1, -100


def dqn(n_steps: int = 1, num_envs: int = 2) -> DQN:
    return DQN("MlpPolicy", make_vec_env(Counter, num_envs), n_steps=n_steps, seed=0, **SMALL)


def check_seams(model: Any, n_steps: int) -> set[float]:
    """Each transition that can be drawn stays in one episode of one environment. Returns the signs of observations."""
    torch.manual_seed(0)
    replay = model.algorithm.replay
    batch = replay.gather(replay.draw(torch.rand(4000, replay.draws)), 1.0)
    drawn = batch.weight > 0
    seen, after, reward = (x[drawn].flatten() for x in (batch.observation, batch.next_observation, batch.reward))
    sign, steps = seen.sign(), (after - seen).abs()
    assert len(seen) > 2000 and steps.min() >= 1 and steps.max() <= n_steps
    assert torch.equal((after - seen).sign(), sign)
    torch.testing.assert_close(reward, steps * seen + sign * steps * (steps + 1) / 2)  # of the rewards in between
    return {*sign.tolist()}


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("way", ["set_env", "file", "file before set_env"])
def test_other_environments_go_on_with_the_replay_buffer(way, n_steps):
    model, other = dqn(n_steps).learn(45), make_vec_env(Backwards, 2)
    steps = model.replay_buffer.size()
    if way == "set_env":
        model.set_env(other)
    else:
        file, zipped = io.BytesIO(), io.BytesIO()
        model.save_replay_buffer(file)
        model.save(zipped)
        for each in (file, zipped):
            each.seek(0)
        model = DQN.load(zipped, env=None if way == "file before set_env" else other)
        model.load_replay_buffer(file)
        if model.get_env() is None:
            model.set_env(other)
    assert model.replay_buffer.size() == steps > 20 and check_seams(model, n_steps) == {1.0}
    model.learn(60, reset_num_timesteps=False)
    assert check_seams(model, n_steps) == {1.0, -1.0} and model.replay_buffer.size() > steps + 25
    model.learn(600, reset_num_timesteps=False)
    assert model.replay_buffer.full and check_seams(model, n_steps) == {-1.0}


def test_another_number_of_environments_begins_with_an_empty_one(capsys):
    model = dqn().learn(45)
    model.set_env(make_vec_env(Counter, 3))
    assert model.replay_buffer.size() == 0
    assert "the replay buffer begins empty: there is another number of environments" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [DQN, SAC, TD3])
def test_samples_have_the_names_of_stable_baselines3(kind):
    env = make_vec_env("CartPole-v1" if kind is DQN else "Pendulum-v1", 2)
    model = kind("MlpPolicy", env, seed=0, **SMALL)
    buffer = model.replay_buffer
    assert buffer.size() == buffer.pos == 0 and not buffer.full and (buffer.buffer_size, buffer.n_envs) == (150, 2)
    with pytest.raises(ValueError, match="none can be drawn yet"):
        buffer.sample(4)
    model.learn(100)
    assert buffer.size() == buffer.pos == model.replay_buffer.size() >= 50
    size = model.observation_space.shape[0]
    drawn = buffer.sample(16)
    assert drawn.observations.shape == drawn.next_observations.shape == (16, size) and drawn.actions.shape == (16, 1)
    assert drawn.rewards.shape == drawn.dones.shape == drawn.discounts.shape == (16, 1)
    assert all(x == 0 or x == pytest.approx(0.99) for x in drawn.discounts.flatten().tolist())
    assert torch.equal(drawn.dones, (drawn.discounts == 0).float())
    for name in ("add", "observations", "rewards", "reset"):
        with pytest.raises(AttributeError, match=f"ReplayBuffer has no attribute '{name}': "):
            getattr(buffer, name)


def test_files_have_a_suffix_and_are_whole(tmp_path):
    model = dqn().learn(45)
    model.save_replay_buffer(tmp_path / "steps")
    model.save_replay_buffer(str(tmp_path / "steps.pkl"))  # as CheckpointCallback names it
    assert {path.name for path in tmp_path.iterdir()} == {"steps.pt", "steps.pkl"}
    fresh = dqn()
    for name in ("steps", "steps.pkl"):
        fresh.load_replay_buffer(tmp_path / name)
        assert torch.equal(fresh.algorithm.replay.ring.reward, model.algorithm.replay.ring.reward)


def test_what_is_no_replay_buffer_is_refused(tmp_path):
    model = dqn()
    (tmp_path / "theirs.pkl").write_bytes(pickle.dumps(np.random.default_rng(0)))
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("theirs.pkl", "other.pt", "empty.pt"):
        with pytest.raises(ValueError, match=f"{name} is no replay buffer that save_replay_buffer"):
            model.load_replay_buffer(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        model.load_replay_buffer(tmp_path / "missing")
    with pytest.raises(ValueError, match="truncate_last_traj=False has no counterpart"):
        model.load_replay_buffer(tmp_path / "missing", truncate_last_traj=False)
    dqn(num_envs=3).learn(45).save_replay_buffer(tmp_path / "three")
    with pytest.raises(ValueError, match=r"of 3 envs .* and a ring of 150 rows of 2 envs"):
        model.load_replay_buffer(tmp_path / "three")
    SAC("MlpPolicy", make_vec_env("Pendulum-v1", 2), **SMALL).learn(45).save_replay_buffer(tmp_path / "sac")
    with pytest.raises(ValueError, match="is of other environments"):
        model.load_replay_buffer(tmp_path / "sac")
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    with pytest.raises(ValueError, match="no environments, and so no replay buffer"):
        DQN.load(file).save_replay_buffer(tmp_path / "none")


def test_models_that_learn_from_rollouts_have_none():
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    for name in ("replay_buffer", "save_replay_buffer", "load_replay_buffer"):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match="PPO has no replay buffer: it learns from each rollout once"):
            getattr(model, name)
    with pytest.raises(AttributeError, match=r"replay_buffer of DQN cannot be set: .*load_replay_buffer\(path\)"):
        dqn().replay_buffer = None
