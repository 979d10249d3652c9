"""A replay buffer that begins with recorded data: it draws what was recorded, and what does not fit is refused."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import headrace as hr
from headrace.cli.main import main
from headrace.core.fused import plain_only
from headrace.data.rollout import named_tensors
from headrace.evaluation.recording import EpisodeRecorder, read_episodes

pytest.importorskip("h5py")

GAMMA = 0.9
SMALL = {"registered": False, "hidden": (8,), "batch_size": 16, "learning_starts": 0, "log_folder": "runs"}
QUIET = {"progress": "none", "total_steps": 60}


class Line(gymnasium.Env):
    """A place on a line; every observation occurs once. Every second episode is truncated."""

    def __init__(self, kind: str = "box") -> None:
        seen = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.nested = kind == "dict"
        self.observation_space = spaces.Dict(place=seen, odd=spaces.Discrete(2)) if self.nested else seen
        self.action_space = spaces.Discrete(3, start=1) if kind == "discrete" else spaces.Box(-1, 1, (2,), np.float32)
        self.time = self.episode = 0

    def _observed(self):
        place = np.array([self.time, self.episode], np.float32)
        return {"place": place, "odd": np.int64(self.time % 2)} if self.nested else place

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time, self.count = self.episode + 1, self.time + 1, 0
        return self._observed(), {}

    def step(self, action):
        self.time, self.count = self.time + 1, self.count + 1
        odd = self.episode % 2
        return self._observed(), self.time / 7, self.count == 5 and odd == 1, self.count == 4 and odd == 0, {}


def record(kind: str, steps: int, folder: str = "line") -> Path:
    """Random episodes, the last of which is cut short."""
    env = EpisodeRecorder(Line(kind), folder)
    env.action_space.seed(3)
    env.reset(seed=0)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    env.close()
    return Path(folder)


def expected(folder: Path, n: int) -> dict[float, tuple]:
    """Observation's first number -> action, n-step return, discount, first number of the observation after it."""
    found = {}
    for episode in read_episodes(folder):
        seen = episode.observations["place"] if isinstance(episode.observations, dict) else episode.observations
        for t in range(len(episode.rewards)):
            end = min(t + n, len(episode.rewards))
            reward = sum(GAMMA**k * episode.rewards[t + k] for k in range(end - t))
            discount = 0.0 if episode.terminations[end - 1] else GAMMA ** (end - t)
            found[float(seen[t][0])] = (episode.actions[t], reward, discount, float(seen[end][0]))
    return found


@pytest.mark.parametrize(("kind", "algorithm"), [("box", "sac"), ("discrete", "dqn"), ("dict", "td3")])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_each_recorded_step_is_a_transition(kind, algorithm, num_envs, n, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = record(kind, 31)
    wanted = expected(folder, n)
    with closing(
        hr.Trainer(algorithm, partial(Line, kind), num_envs=num_envs, replay="line", n_steps=n, **SMALL)
    ) as trainer:
        replay = trainer.algorithm.replay
        rows = torch.arange(int(replay.written[0]) * num_envs)
        batch = replay.gather(rows[replay.ring.valid.flatten()[rows]], GAMMA)
        seen, after = (x.place if kind == "dict" else x for x in (batch.observation, batch.next_observation))
        assert sorted(seen[:, 0].tolist()) == sorted(wanted)
        shorter = 0
        for i, place in enumerate(seen[:, 0].tolist()):
            action, reward, discount, following = wanted[place]
            np.testing.assert_allclose(batch.action[i].numpy(), action, rtol=1e-6)
            if float(after[i, 0]) < following:  # cut off where the part of the next environment begins
                shorter += 1
                assert float(after[i, 0]) > place and float(batch.discount[i]) > discount * (discount > 0)
                continue
            assert float(after[i, 0]) == following
            assert float(batch.reward[i]) == pytest.approx(reward, rel=1e-5)
            assert float(batch.discount[i]) == pytest.approx(discount)
        assert shorter <= (num_envs - 1) * (n - 1)
        trainer.iterate()


def test_rows_of_a_run_are_those_it_had(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = hr.train(
        "dqn", "CartPole-v1", num_envs=2, buffer_size=50, reward_scale=0.5, backend="inline", **SMALL, **QUIET
    )
    options = {"num_envs": 3, "replay": str(run.path), "buffer_size": 100, **SMALL}
    with closing(
        hr.Trainer(
            "dqn", "CartPole-v1", num_envs=2, buffer_size=50, reward_scale=0.5, backend="inline", **SMALL, **QUIET
        )
    ) as before:
        while before.steps < 60:
            before.iterate()
        had = before.algorithm.replay
        old = torch.stack([had.oldest() + 0, had.written])
        rows = torch.cat([torch.arange(int(a), int(b)) % had.length * 2 + n for n, (a, b) in enumerate(old.T)])
        old_batch = had.gather(rows[had.ring.valid.flatten()[rows]], GAMMA)
    with closing(hr.Trainer("dqn", "CartPole-v1", **options)) as trainer:
        replay = trainer.algorithm.replay
        rows = torch.arange(int(replay.written[0]) * 3)
        batch = replay.gather(rows[replay.ring.valid.flatten()[rows]], GAMMA)

    def listed(batch, factor):
        columns = (batch.observation, batch.action[:, None], batch.reward[:, None] * factor, batch.discount[:, None])
        return sorted(torch.cat([x.double() for x in (*columns, batch.next_observation)], 1).tolist())

    assert listed(batch, 0.5) == listed(old_batch, 1.0)
    assert "are in the buffer before the first step" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ddpg", "tqc", "crossq"])
def test_the_compiled_loop_learns_from_these_rows_as_plain_torch_does(algorithm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hr.train("sac", "Pendulum-v1", num_envs=1, num_steps=20, **SMALL, **QUIET | {"total_steps": 300})

    def learned():
        options = {"num_envs": 1, "replay": "runs/sac/Pendulum-v1_1", **SMALL}
        with closing(hr.Trainer(algorithm, "Pendulum-v1", **options, num_steps=4, backend="inline")) as trainer:
            metrics = [trainer.iterate().metrics for _ in range(2)]
        return metrics

    with plain_only():
        plain = learned()
    for fast, slow in zip(learned(), plain, strict=True):
        assert fast["critic_loss"] == pytest.approx(slow["critic_loss"], rel=1e-3)


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_resumed_run_has_these_rows(prioritized, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record_run = hr.train("dqn", "CartPole-v1", num_envs=2, **SMALL, **QUIET)
    options = {
        "num_envs": 2,
        "replay": str(record_run.path),
        "prioritized": prioritized,
        "priority_beta": 1.0,
        **SMALL,
        "progress": "none",
    }
    whole = hr.train("dqn", "CartPole-v1", total_steps=80, schedule="constant", exploration_fraction=0, **options)
    part = hr.train("dqn", "CartPole-v1", total_steps=40, schedule="constant", exploration_fraction=0, **options)
    shutil.rmtree(record_run.path)
    resumed = hr.train(resume=part.path, total_steps=80, progress="none")
    of_both = [dict(named_tensors(hr.load(run.path / "last").state_dict())) for run in (whole, resumed)]
    assert all(torch.equal(x, of_both[1][name]) for name, x in of_both[0].items())
    with pytest.raises(ValueError, match=r"replay is .* and cannot become"):
        hr.train(resume=part.path, replay="elsewhere", total_steps=90, progress="none")


def test_statistics_of_observations_are_those_of_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = record("box", 30)
    seen = np.concatenate([episode.observations[:-1] for episode in read_episodes(folder)])
    with closing(hr.Trainer("sac", Line, num_envs=2, replay=folder, normalize_observation=True, **SMALL)) as trainer:
        mean = dict(trainer.policy.named_buffers())["encoder.normalizer.statistics.mean"]
        assert torch.allclose(mean.float(), torch.from_numpy(seen.mean(0)), rtol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ("dqn", {"recurrent": "lstm"}, "replay='.*line' does not go with recurrent='lstm'"),
        ("ppo", {}, "is for one algorithm with a replay buffer, not ppo"),
        ("dqn", {"shards": 2}, "is for one algorithm with a replay buffer"),
        ("dqn", {"buffer_size": 20}, "no room for: let buffer_size be"),
        ("sac", {"env": "Pendulum-v1"}, "observations of Box.*, and those of the environment are Box"),
        ("dqn", {"env": partial(Line, "box")}, "actions of Discrete"),
        ("dqn", {"replay": "nowhere"}, "neither"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm, settings, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record("discrete", 31)
    if settings.get("env") and not isinstance(settings["env"], str):
        algorithm = "sac"
    options = {"env": partial(Line, "discrete"), "num_envs": 2, "replay": "line"} | settings
    own = {"registered": False} if algorithm == "ppo" else {"registered": False, "batch_size": 16}
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        hr.Trainer(algorithm, **options, **own)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rewards", np.nan, "has reward nan, which is not finite"),
        ("actions", 7, r"has the action 7, which Discrete\(3, start=1\) does not have"),
    ],
)
def test_numbers_that_are_none_of_the_environment_are_refused(name, value, words, tmp_path, monkeypatch):
    import h5py

    monkeypatch.chdir(tmp_path)
    folder = record("discrete", 31)
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file[f"episode_1/{name}"][2] = value
    with pytest.raises(ValueError, match=words):
        hr.Trainer("dqn", partial(Line, "discrete"), num_envs=2, replay=folder, **SMALL)


def test_the_command_line_takes_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = hr.train("dqn", "CartPole-v1", num_envs=2, **SMALL, **QUIET)
    main(["record", str(run.path), "--episodes", "3", "--output", "poles"])
    flags = ["--replay", "poles", "--learning-starts", "0", "--total-steps", "50", "--num-envs", "2"]
    main(["train", "dqn", "CartPole-v1", *flags, "--progress", "plain"])
    assert "of poles" in (text := capsys.readouterr().err) or f"of {tmp_path}" in text


class Parts(gymnasium.Env):
    """Actions of several members; the reward tells what each was."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)

    def __init__(self, kind: str) -> None:
        box = spaces.Box(-2, 8, (2, 2), np.float32)
        own = (
            {"a": spaces.Discrete(3, start=5), "b": box}
            if kind == "hybrid"
            else {"b": box, "c": spaces.Box(0, 1, (1,))}
        )
        self.action_space = box if kind == "matrix" else spaces.Dict(own)
        self.kind = kind

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.array([0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        box = action if self.kind == "matrix" else action["b"]
        other = {"hybrid": "a", "boxes": "c"}.get(self.kind)
        reward = 10 * box[0, 1] + box[1, 0] + (0 if other is None else 100 * float(np.ravel(action[other])[0]))
        return np.array([self.time], np.float32), float(reward), False, self.time == 7, {}


@pytest.mark.parametrize(
    ("kind", "algorithm", "weights"),
    [
        ("boxes", "iql", [0, 10, 1, 0, 100]),
        ("matrix", "bc", [0, 10, 1, 0]),
        ("hybrid", "hybrid_sac", [100, 0, 10, 1, 0]),
    ],
)
def test_recorded_actions_of_several_parts_are_vectors(kind, algorithm, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = EpisodeRecorder(Parts(kind), "parts")
    env.action_space.seed(3)
    for _ in range(3):
        env.reset(seed=0)
        while not env.step(env.action_space.sample())[3]:
            pass
    env.close()
    given = {name: x for name, x in SMALL.items() if algorithm == "hybrid_sac" or name != "learning_starts"}
    with closing(hr.Trainer(algorithm, partial(Parts, kind), num_envs=1, replay="parts", **given)) as trainer:
        replay = trainer.algorithm.replay
        rows = torch.arange(24)
        batch = replay.gather(rows[replay.ring.valid.flatten()[rows]], GAMMA)
        assert len(batch.reward) == 21 and batch.action.shape == (21, len(weights))
        torch.testing.assert_close(batch.action @ torch.tensor(weights, dtype=torch.float32), batch.reward)
        trainer.iterate()
