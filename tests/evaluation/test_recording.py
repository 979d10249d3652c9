"""Episodes in Minari's format: what is written is what was played, and `minari` itself reads it."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import headrace as hr
from headrace.cli.main import main
from headrace.evaluation.recording import EpisodeRecorder, read_episodes, record, recorded_spaces

h5py = pytest.importorskip("h5py")


class Counting(gymnasium.Env):
    """Observations count the steps; every third one ends an episode."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), float(self.count), self.count == 3, False, {}


SPACES = {
    "box": (spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-2, 2, (1,), np.float32)),
    "discrete": (spaces.Discrete(5), spaces.Discrete(3, start=1)),
    "dict": (spaces.Dict(image=spaces.Box(0, 255, (4, 4, 3), np.uint8), n=spaces.MultiBinary(3)), spaces.Discrete(2)),
    "tuple": (spaces.Box(-1, 1, (2,)), spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 3])))),
}


def played(env: gymnasium.Env, steps: int) -> list[tuple]:
    """A person's script: random actions. Returns what it saw: observation, action, reward."""
    env.action_space.seed(0)
    seen, (observation, _) = [], env.reset(seed=7)
    for _ in range(steps):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation, action, reward))
        observation = env.reset()[0] if terminated or truncated else after
    return seen


def flat(space: gymnasium.Space, value) -> np.ndarray:
    return spaces.flatten(space, value)


def at(value, t: int):
    if isinstance(value, dict):
        return {name: at(member, t) for name, member in value.items()}
    return tuple(at(member, t) for member in value) if isinstance(value, tuple) else value[t]


@pytest.mark.parametrize("kind", SPACES)
def test_a_script_is_recorded_step_by_step(kind, tmp_path):
    env = EpisodeRecorder(Counting(*SPACES[kind]), tmp_path / "data")
    seen = played(env, 8)
    env.close()
    episodes = list(read_episodes(tmp_path / "data"))
    assert [len(episode.rewards) for episode in episodes] == [3, 3, 2] and (env.steps, env.returns) == (8, [6, 6, 3])
    assert [episode.terminations.tolist() for episode in episodes[1:]] == [[False, False, True], [False, False]]
    assert [episode.truncations.tolist() for episode in episodes[1:]] == [[False] * 3, [False, True]]
    for number, (observation, action, reward) in enumerate(seen):
        episode, t = episodes[number // 3], number % 3
        for space, own, column in zip(SPACES[kind], (observation, action), episode[:2], strict=True):
            assert (flat(space, at(column, t)) == flat(space, own)).all()
        assert episode.rewards[t] == reward


@pytest.mark.parametrize("kind", SPACES)
def test_minari_reads_it(kind, tmp_path):
    minari = pytest.importorskip("minari")
    env = EpisodeRecorder(Counting(*SPACES[kind]), tmp_path)
    played(env, 8)
    env.close()
    found = minari.MinariDataset(tmp_path)
    assert (found.total_episodes, found.total_steps) == (3, 8)
    assert (found.observation_space, found.action_space) == SPACES[kind]
    for own, theirs in zip(read_episodes(tmp_path), found.iterate_episodes(), strict=True):
        assert own.rewards.tolist() == theirs.rewards.tolist()
        for t in range(len(own.rewards)):
            same = [
                flat(space, at(x, t)) == flat(space, at(y, t))
                for space, x, y in zip(SPACES[kind], own, theirs_of(theirs), strict=False)
            ]
            assert all(map(np.all, same))


def theirs_of(episode) -> tuple:
    return episode.observations, episode.actions


def test_what_minari_writes_is_read(tmp_path):
    pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    observation, action = SPACES["dict"][0], SPACES["tuple"][1]
    observations = [observation.sample() for _ in range(4)]
    actions = [action.sample() for _ in range(3)]
    ends = {"terminations": [False, False, True], "truncations": [False] * 3}
    columns = {name: np.stack([own[name] for own in observations]) for name in observation}
    of_actions = tuple(np.stack([own[i] for own in actions]) for i in range(2))
    episode = EpisodeBuffer(id=0, observations=columns, actions=of_actions, rewards=[1.0, 2.0, 3.0], **ends)
    storage = MinariStorage.new(tmp_path / "data", observation, action, jpeg_encoding=False)
    storage.update_episodes([episode])
    (found,) = read_episodes(tmp_path / "data")
    assert found.rewards.tolist() == [1, 2, 3] and found.terminations.tolist() == ends["terminations"]
    for space, column, own in ((observation, found[0], observations), (action, found[1], actions)):
        assert all((flat(space, at(column, t)) == flat(space, x)).all() for t, x in enumerate(own))


def test_a_policy_is_recorded_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = hr.train("ppo", "CartPole-v1", total_steps=64, num_envs=2, num_steps=8, backend="torch", progress="none")
    words = ["record", str(run.path), "--episodes", "3", "--seed", "5", "--output", "data", "--stochastic"]
    assert main(words) == 0
    assert "wrote data: 3 episodes" in capsys.readouterr().out
    first = list(read_episodes("data"))
    assert json.loads((tmp_path / "data/metadata.json").read_text())["total_episodes"] == 3
    again = record(run.policy, gymnasium.make("CartPole-v1"), "again", 3, seed=5)
    assert len(again.returns) == 3
    same = [a.rewards.sum() for a in read_episodes("again")]
    assert tuple(same) == again.returns
    for episode in first:
        env = gymnasium.make("CartPole-v1")
        assert episode.observations.shape == (len(episode.rewards) + 1, 4) and episode.actions.dtype == np.int64
        env.close()
    assert main(words) == 2
    assert "data has episodes already" in capsys.readouterr().err


def test_what_cannot_be_recorded_or_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match="episodes of Text are not recorded"):
        EpisodeRecorder(Counting(spaces.Text(3), spaces.Discrete(2)), tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"has no metadata\.json"):
        next(read_episodes(tmp_path))
    (tmp_path / "metadata.json").write_text('{"data_format": "arrow", "total_episodes": 1}')
    with pytest.raises(ValueError, match="format 'arrow', and hdf5 is read"):
        next(read_episodes(tmp_path))
    (tmp_path / "metadata.json").write_text('{"data_format": "hdf5", "total_episodes": 1}')
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["observations"], group["actions"] = np.array([b"jpeg"], object), np.zeros(1)
        group["rewards"] = group["terminations"] = group["truncations"] = np.zeros(1)
    with pytest.raises(ValueError, match="texts or JPEG images"):
        next(read_episodes(tmp_path))
    with pytest.raises(ValueError, match="episodes must be 1 or more, got 0"):
        record(None, "CartPole-v1", tmp_path / "b", 0)


class Reusing(gymnasium.Env):
    """Writes each observation into the same array."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Box(0, 9, (1,), np.float32)
    seen = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen[:] = 0
        return self.seen, {}

    def step(self, action):
        self.seen += 1
        return self.seen, 0.0, bool(self.seen[0] == 3), False, {}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metadata.json", "{", r"metadata.json is damaged, or not of Minari's format: Expecting property name"),
        ("metadata.json", "{}", r"metadata.json is damaged, or not of Minari's format: it has no '"),
        ("main_data.hdf5", "x", r"main_data.hdf5 is damaged, or not of Minari's format: .*file signature not found"),
        ("main_data.hdf5", None, r"main_data.hdf5 is damaged, or not of Minari's format: it has no .*episode_0"),
    ],
)
def test_damaged_files_are_named(name, content, said, tmp_path, capsys):
    env = EpisodeRecorder(gymnasium.make("CartPole-v1"), tmp_path / "data")
    played(env, 20)
    env.close()
    if content is None:
        h5py.File(tmp_path / "data" / name, "w").close()
    else:
        (tmp_path / "data" / name).write_text(content)
    with pytest.raises(ValueError, match=said):
        list(read_episodes(tmp_path / "data"))
    assert main(["train", "bc", "CartPole-v1", "--replay", str(tmp_path / "data"), "--total-steps", "10"]) == 2
    assert f"{name} is damaged" in capsys.readouterr().err


def test_arrays_that_are_written_into_again_are_recorded_as_they_were(tmp_path):
    env, action = EpisodeRecorder(Reusing(), tmp_path / "reused"), np.zeros(1, np.float32)
    env.reset()
    for number in range(3):
        action[:] = number
        env.step(action)
    env.close()
    (episode,) = read_episodes(tmp_path / "reused")
    assert episode.observations.ravel().tolist() == [0, 1, 2, 3]
    assert episode.actions.ravel().tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", SPACES)
def test_spaces_are_read_as_they_were_written(kind, tmp_path):
    env = EpisodeRecorder(Counting(*SPACES[kind]), tmp_path / "data")
    played(env, 3)
    env.close()
    assert recorded_spaces(tmp_path / "data") == SPACES[kind]
