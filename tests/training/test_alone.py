"""Trainings from recorded data alone: no environment is stepped, gradient steps count, resuming has the same bits."""

from __future__ import annotations

import json
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
from headrace.algorithms.off_policy import learn_from_replay
from headrace.cli.main import main
from headrace.core.fused import kernel_of, plain_only
from headrace.data.rollout import named_tensors
from headrace.evaluation.recording import EpisodeRecorder, read_episodes

pytest.importorskip("h5py")

ALGORITHMS = ("td3_bc", "iql", "bc", "cql", "discrete_cql")
SMALL = {"hidden": (8,), "batch_size": 16, "gradient_steps": 5, "progress": "none"}


class Home(gymnasium.Env):
    """A place on a line; the reward is higher near 0. `steps` counts those that were taken in this process."""

    steps = resets = 0

    def __init__(self, kind: str = "box") -> None:
        seen = spaces.Box(-10, 10, (2,), np.float32)
        self.nested, self.discrete = kind == "dict", kind == "discrete"
        self.observation_space = spaces.Dict(place=seen, odd=spaces.Discrete(2)) if self.nested else seen
        self.action_space = spaces.Discrete(3, start=1) if self.discrete else spaces.Box(-1, 3, (1,), np.float32)

    def _observed(self):
        place = np.array([self.place, self.count / 10], np.float32)
        return {"place": place, "odd": np.int64(self.count % 2)} if self.nested else place

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Home.resets += 1
        self.place, self.count = float(self.np_random.uniform(-2, 2)), 0
        return self._observed(), {}

    def step(self, action):
        Home.steps += 1
        move = (int(action) - 2) / 2 if self.discrete else float(action[0]) - 1
        self.place, self.count = float(np.clip(self.place + move, -10, 10)), self.count + 1
        return self._observed(), -abs(self.place), False, self.count == 10, {}


def record(kind: str, episodes: int = 30, folder: str = "home") -> Path:
    """Random episodes."""
    with closing(EpisodeRecorder(Home(kind), folder)) as env:
        env.action_space.seed(3)
        for seed in range(episodes):
            env.reset(seed=seed)
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                done = terminated or truncated
    return Path(folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tensors(run, name: str = "last") -> dict[str, torch.Tensor]:
    return dict(named_tensors(hr.load(run.path / name).state_dict()))


CASES = [("td3_bc", "box", {}), ("iql", "discrete", {}), ("iql", "dict", {}), ("bc", "discrete", {})]
CASES += [("cql", "box", {"num_samples": 2}), ("discrete_cql", "discrete", {})]


@pytest.mark.parametrize(("algorithm", "kind", "settings"), [*CASES, ("bc", "box", {"deterministic": True})])
def test_no_environment_is_stepped_and_gradient_steps_count(algorithm, kind, settings, here):
    folder = record(kind)
    Home.steps = Home.resets = 0
    run = hr.train(algorithm, partial(Home, kind), replay=folder, total_steps=20, **SMALL, **settings)
    assert (Home.steps, Home.resets) == (0, 0)
    assert run.steps == 20 and run.metrics["n_updates"] == 20 and run.metrics["iteration"] == 4
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["steps"] == 20 and rows[-1]["episodes"] == 0 and rows[-1]["return"] is None
    assert np.isfinite(rows[-1].get("actor_loss", rows[-1].get("loss")))
    policy, seen = hr.load(run.path), [episode.observations for episode in read_episodes(folder)]
    if kind != "dict":
        mean = dict(policy.named_buffers())["encoder.normalizer.statistics.mean"]
        data = np.concatenate([part[:-1] for part in seen])
        np.testing.assert_allclose(mean.numpy(), data.mean(0), rtol=1e-4, atol=1e-5)
    action, _ = policy.predict(Home(kind).reset(seed=0)[0])
    assert Home(kind).action_space.contains(np.asarray(action).astype(Home(kind).action_space.dtype)[()])


class Masked(Home):
    """A choice is forbidden at each step: members of the observation that come as one vector."""

    def __init__(self) -> None:
        super().__init__("discrete")
        mask = spaces.Box(0, 1, (3,), np.int8)
        self.observation_space = spaces.Dict(observation=self.observation_space, action_mask=mask)

    def _observed(self):
        return {"observation": super()._observed(), "action_mask": np.arange(3) != self.count % 3}


@pytest.mark.parametrize("algorithm", ["iql", "bc", "discrete_cql"])
def test_action_masks_are_part_of_the_data(algorithm, here):
    with closing(EpisodeRecorder(Masked(), "masked")) as env:
        env.action_space.seed(1)
        for seed in range(4):
            observation, _ = env.reset(seed=seed)
            for _ in range(10):
                mask = np.asarray(observation["action_mask"], np.int8)
                observation, *_ = env.step(env.action_space.sample(mask))
    run = hr.train(algorithm, Masked, replay="masked", total_steps=10, **SMALL)
    loss = run.metrics.get("actor_loss", run.metrics.get("loss"))
    assert np.isfinite(loss) and loss < 1e3  # no recorded action is forbidden
    for forbidden in range(3):
        seen = {"observation": np.zeros(2, np.float32), "action_mask": (np.arange(3) != forbidden).astype(np.int8)}
        assert run.policy.predict(seen)[0] != forbidden + 1


def test_every_recorded_step_is_drawn_as_it_was(here):
    folder = record("box", 3)
    with closing(hr.Trainer("iql", Home, replay=folder, reward_scale=0.5, gamma=0.9, **SMALL)) as trainer:
        replay = trainer.algorithm.replay
        random = torch.rand(2_000, replay.draws, generator=torch.Generator().manual_seed(0))
        drawn = replay.sample(random, 0.9)
        found = {tuple(x) for x in torch.cat([drawn.observation, drawn.action, drawn.next_observation], 1).tolist()}
        counted = drawn.weight > 0
        assert counted.float().mean() > 0.99
        assert not drawn.discount[counted].sub(0.9).any()  # truncated, never terminated
        wanted, rewards = set(), {}
        for episode in read_episodes(folder):
            for t, action in enumerate(episode.actions):
                wanted.add((*episode.observations[t], *action, *episode.observations[t + 1]))
                rewards[float(episode.observations[t + 1][0])] = episode.rewards[t]
        wanted = {tuple(map(float, row)) for row in wanted}
        assert wanted <= found and len(wanted) == 30
        for place, reward in zip(drawn.next_observation[counted, 0].tolist(), drawn.reward[counted], strict=True):
            assert float(reward) == pytest.approx(0.5 * rewards[place], rel=1e-5)


@pytest.mark.parametrize(("algorithm", "kind", "settings"), [*CASES[:2], ("bc", "box", {})])
def test_learning_is_compiled_and_equal_to_plain_torch(algorithm, kind, settings, here):
    folder, found = record(kind), []

    def learned():
        with closing(hr.Trainer(algorithm, partial(Home, kind), replay=folder, **SMALL, **settings)) as trainer:
            kernels = kernel_of(learn_from_replay, trainer.algorithm, 5)
            found.append(kernels)
            return [trainer.iterate().metrics for _ in range(3)]

    with plain_only():
        slow = learned()
    fast = learned()
    assert found[0] is None and found[1] is not None
    for one, other in zip(fast, slow, strict=True):
        assert one.keys() == other.keys()
        assert all(one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5) for name in one)


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("td3_bc", "box"), ("iql", "discrete"), ("bc", "box"), ("cql", "box"), ("discrete_cql", "discrete")],
)
def test_a_resumed_run_has_the_same_bits_without_the_data(algorithm, kind, here):
    folder, env = record(kind), partial(Home, kind)
    options = {"replay": folder, "schedule": "constant", **SMALL}
    whole = hr.train(algorithm, env, total_steps=35, **options)
    part = hr.train(algorithm, env, total_steps=15, **options)
    shutil.rmtree(folder)
    resumed = hr.train(resume=part.path, env=env, total_steps=35, progress="none")
    assert resumed.steps == 35
    of_both = tensors(whole), tensors(resumed)
    assert all(torch.equal(x, of_both[1][name]) for name, x in of_both[0].items())
    before = (part.path / "config.toml").read_text()
    assert f'replay = "{folder.absolute()}"' in before
    again = hr.train(resume=resumed.path, env=env, total_steps=40, progress="none")
    assert again.steps == 40 and (part.path / "config.toml").read_text().count("replay") == before.count("replay")


def test_evaluations_choose_the_best_policy_and_end_the_training(here, capsys):
    folder = record("box")
    options = {"replay": folder, "eval_freq": 10, "eval_episodes": 3} | SMALL | {"progress": "plain"}
    run = hr.train("bc", Home, total_steps=1_000, target_return=-1e6, **options)
    assert (run.reason, run.steps) == ("target_return", 10)
    text = capsys.readouterr().out
    assert "10 gradient steps: return" in text and "ended by target_return: 10 gradient steps" in text
    assert "(last 100 episodes)" not in text
    run = hr.train("bc", Home, total_steps=30, target_return=1e6, **options)
    assert (run.reason, run.steps) == ("total_steps", 30)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    scores = {row["steps"]: row["eval_return"] for row in rows if "eval_return" in row}
    best = json.loads((run.path / "best" / "manifest.json").read_text())
    assert best["score"] == max(scores.values()) and scores[best["steps"]] == best["score"]
    assert tensors(run, "best")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"replay": None}, "iql learns from recorded data alone: give replay"),
        ({"num_envs": 4}, "takes no steps of environments: leave out num_envs=4"),
        ({"actors": 2, "collection": "overlapped"}, "leave out actors=2, collection='overlapped'"),
        ({"workers": 2}, "leave out workers=2"),
        ({"learners": 2}, "leave out learners=2"),
        ({"shards": 2}, "leave out shards=2"),
        ({"stagger": True}, "leave out stagger=True"),
        ({"max_episodes": 3}, "leave out max_episodes=3"),
        ({"target_return": 0.0}, "is that of an evaluation.*give eval_freq"),
        (
            {"algorithm": "td3_bc", "env": partial(Home, "discrete")},
            "td3_bc supports Box actions.*: use iql, bc, discrete_cql$",
        ),
        ({"env": partial(Home, "discrete")}, "actions of Box.* and those of the environment are Discrete"),
    ],
)
def test_what_does_not_go_with_recorded_data_is_refused(settings, words, here):
    options = {"algorithm": "iql", "env": Home, "replay": record("box", 2)} | settings
    with pytest.raises(ValueError, match=words):
        hr.Trainer(**options)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    "name", ["learning_starts", "buffer_size", "utd_ratio", "exploration", "num_steps", "recurrent"]
)
def test_settings_of_collecting_are_none_of_these_algorithms(name, here):
    for algorithm in ALGORITHMS:
        with pytest.raises(TypeError, match=f"there is no setting '{name}'"):
            hr.Trainer(algorithm, Home, replay="home", **{name: 1})


def test_there_is_nothing_to_tune(here):
    with pytest.raises(ValueError, match="how environments are stepped, and bc steps none"):
        hr.tune("bc", Home, replay=record("box", 2))


def test_data_without_steps_are_refused(here):
    import h5py

    run = hr.train("sac", Home, total_steps=1, num_envs=1, registered=False, **SMALL | {"gradient_steps": 1})
    with closing(hr.Trainer("iql", Home, replay=run.path, **SMALL)) as trainer:
        trainer.iterate()  # of a single row
    with h5py.File(record("box", 1) / "main_data.hdf5", "a") as file:
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            kept = file[f"episode_0/{name}"][: name == "observations"]
            del file[f"episode_0/{name}"]
            file[f"episode_0/{name}"] = kept
    with pytest.raises(ValueError, match="home has no steps: record some"):
        hr.Trainer("iql", Home, replay="home", **SMALL)


def test_algorithms_made_by_the_user_and_environments_that_exist(here):
    folder = record("box")
    env = hr.make(Home, 3)
    policy = hr.ActorCritic(env.observation_space, env.action_space, hidden=(8,))
    algorithm = hr.IQL(policy, hr.IQLConfig(gradient_steps=5, batch_size=16))
    with closing(env):
        run = hr.train(algorithm, env, replay=folder, total_steps=10, progress="none")
    assert run.steps == 10
    with pytest.raises(ValueError, match="iql learns from recorded data alone: give replay"):
        algorithm.replay = None
        algorithm.update(hr.Rollout(1, 1, {}), 0.0)


def test_td3_bc_begins_with_a_cloned_policy(here):
    folder = record("box")
    cloned = hr.train("bc", Home, replay=folder, deterministic=True, total_steps=10, **SMALL)
    with closing(hr.Trainer("td3_bc", Home, replay=folder, init_from=cloned.path, **SMALL)) as trainer:
        before = cloned.policy.actor_parameters()
        assert all(map(torch.equal, trainer.policy.actor_parameters(), before))


def test_the_command_line_trains_plays_evaluates_records_and_exports(here, capsys):
    data = hr.train("sac", "Pendulum-v1", total_steps=300, num_envs=1, registered=False, hidden=(8,), progress="none")
    flags = ["--replay", str(data.path), "--total-steps", "10", "--gradient-steps", "5", "--hidden", "8"]
    main(["train", "iql", "Pendulum-v1", *flags, "--final-episodes", "2", "--progress", "plain"])
    assert "10 gradient steps" in (text := capsys.readouterr().out) and "evaluated last/" in text
    run = next((here / "runs" / "iql").iterdir())
    main(["eval", str(run), "--episodes", "2"])
    main(["record", str(run), "--episodes", "1", "--output", "played"])
    main(["export", str(run)])
    main(["runs"])
    assert "iql" in capsys.readouterr().out
    assert len(list(read_episodes(here / "played"))) == 1
    main(["train", "bc", "Pendulum-v1", "--replay", "played", *flags[2:], "--seeds", "0-1", "--final-episodes", "0"])
    assert len(list((here / "runs" / "bc").iterdir())) == 2
