"""Wrappers that learn statistics: their numbers in evaluations, videos, checkpoints and resumed runs."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import ClipAction, NormalizeObservation, NormalizeReward

import headrace as hr
from headrace.cli.main import main
from headrace.envs.gym import learned
from headrace.envs.gym.learned import Carried, give, learned_of, pooled, statistics_of

FILE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

FIRST = []


class Far(gymnasium.Env):
    observation_space, action_space = Box(-999, 999, (2,)), Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([100, 200], np.float32), {}

    def step(self, action):
        self.count += 1
        seen = np.array([100 + self.count, 200 - self.count], np.float32)
        return seen, 50.0, False, self.count == 4, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


class Mine(NormalizeObservation):
    def reset(self, **given):
        seen, info = super().reset(**given)
        FIRST.append(seen.tolist())
        return seen, info


def made(**given):
    return Mine(NormalizeReward(Far(**given)))
"""
SMALL = {"num_envs": 2, "num_steps": 8, "total_steps": 64, "hidden": (4,), "progress": "none", "seed": 3}


@pytest.fixture
def far(tmp_path, monkeypatch):
    """The module of FILE, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(learned, "_told", set())
    (tmp_path / "far.py").write_text(FILE)
    return hr.envs.entry_of("far.py:made").__globals__


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"eval_freq": 32, "eval_episodes": 1}])
def test_evaluations_and_resumed_runs_have_what_was_learned(far, options):
    run = hr.train("ppo", "far.py:made", **SMALL | options)
    observation, reward = run.policy.wrapper_statistics
    assert observation["wrapper"] == "Mine" and reward["wrapper"] == "NormalizeReward"
    assert 64 < observation["count"] < 90 and 100 < observation["mean"][0] < 103 and 197 < observation["mean"][1] < 200
    saved = hr.load(run.path, which="last")
    assert saved.wrapper_statistics == run.policy.wrapper_statistics
    expected = (np.array([100, 200]) - observation["mean"]) / np.sqrt(np.array(observation["var"]) + 1e-8)
    for policy in (run.policy, saved):
        far["FIRST"].clear()
        returns = hr.evaluate(policy, "far.py:made", 2).returns
        assert np.allclose(far["FIRST"], [expected] * 2, atol=1e-4)
        assert returns == (4 * 50.0,) * 2  # of the environment's own rewards, inside its wrappers
    again = hr.train(resume=run.path, total_steps=80)
    assert again.policy.wrapper_statistics[0]["count"] > observation["count"]


def test_the_commands_have_them_and_say_so(far, capfd):
    run = hr.train("ppo", "far.py:made", **SMALL)
    told = capfd.readouterr().err
    assert told.count("Mine learns in each environment alone") == 1
    assert "normalize_observation=True in its place" in told and "normalize_return=True in its place" in told
    for verb in (["eval", "--episodes", "1"], ["play", "--output", "film.gif"]):
        far["FIRST"].clear()
        learned._told.clear()
        assert main([verb[0], str(run.path), "--load-last", *verb[1:]]) == 0
        assert abs(far["FIRST"][0][0]) > 0.3  # fresh ones give 0, or 100 divided by 1
        assert abs(far["FIRST"][0][0]) < 9
        assert capfd.readouterr().err.count("Mine learns") == 1


def test_a_checkpoint_has_plain_numbers_of_the_policy_that_it_holds(far):
    run = hr.train("ppo", "far.py:made", **SMALL | {"save_freq": 32})
    folders = sorted(run.path.glob("step_*"), key=lambda folder: int(folder.name.removeprefix("step_")))
    counts = [hr.load(folder).wrapper_statistics[0]["count"] for folder in folders]
    assert len(counts) > 1 and counts == sorted(set(counts))
    again = hr.save(run.policy, "copy")
    assert hr.load(again).wrapper_statistics == run.policy.wrapper_statistics


class Averaging(gymnasium.Wrapper):
    def __init__(self, env, **attributes):
        super().__init__(env)
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("attributes", "setting"),
    [
        ({"running_mean": np.zeros(2)}, "normalize_observation"),
        ({"obs_mean": np.zeros(2), "obs_var": np.ones(2), "count": 0}, "normalize_observation"),
        ({"reward_rms": 1.0}, "normalize_return"),
        ({"stats": gymnasium.wrappers.utils.RunningMeanStd(shape=(2,))}, "normalize_observation"),
    ],
)
def test_a_wrapper_of_ones_own_that_looks_as_if_it_learned_is_named(attributes, setting, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(learned, "_told", set())

    def source():
        return ClipAction(Averaging(gymnasium.make("Pendulum-v1"), **attributes))

    run = hr.train("ppo", source, log_folder=str(tmp_path), **SMALL)
    run.evaluate(1)
    told = [line for line in capfd.readouterr().err.splitlines() if "Averaging" in line]
    assert len(told) == 1 and ", ".join(attributes) in told[0] and f"{setting}=True in its place" in told[0]
    assert run.policy.wrapper_statistics == ()


def test_wrappers_with_given_numbers_are_not_named():
    for attributes in ({"mean": np.zeros(2), "std": np.ones(2)}, {"count": 3}, {"returns": 1.0}, {"history": [1.0]}):
        assert learned_of(Averaging(gymnasium.make("Pendulum-v1"), **attributes)) == ()


class Table:
    """Object with moments as methods, as in pandas."""

    mean = count = var = std = lambda self: 0.0


def test_data_and_numbers_of_an_environment_itself_are_no_statistics():
    assert learned_of(Averaging(gymnasium.make("Pendulum-v1"), prices=Table())) == ()
    env = gymnasium.make("Pendulum-v1")
    vars(env.unwrapped).update(moving_average=1.0, mean=0.0, std=1.0, count=3, prices=Table())
    assert learned_of(env) == ()
    env.unwrapped.stats = gymnasium.wrappers.utils.RunningMeanStd(shape=(2,))
    assert learned_of(env) == ()  # it is Gymnasium's, whose environments have none


def test_vector_wrappers_are_named(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(learned, "_told", set())

    def vector(num_envs):
        envs = gymnasium.make_vec("Pendulum-v1", num_envs, vectorization_mode="sync")
        return gymnasium.wrappers.vector.NormalizeObservation(envs)

    hr.train("ppo", vector, log_folder=str(tmp_path), **SMALL)
    told = capfd.readouterr().err
    assert "NormalizeObservation has obs_rms: where that is learned" in told


def test_numbers_of_several_environments_are_those_of_all_their_observations():
    rng = np.random.default_rng(0)
    rows = [rng.normal(5, 2, (50, 3)), rng.normal(-1, 1, (20, 3))]
    each = []
    for values in rows:
        rms = gymnasium.wrappers.utils.RunningMeanStd(epsilon=0, shape=(3,))
        rms.update(values)
        each.append([{"wrapper": "X", "mean": rms.mean, "var": rms.var, "count": rms.count}])
    (together,) = pooled(each)
    everything = np.concatenate(rows)
    assert pooled([[{**each[0][0], "wrapper": "Y"}], each[1]]) == []
    assert together["count"] == 70
    assert np.allclose(together["mean"], everything.mean(0)) and np.allclose(together["var"], everything.var(0))


def test_numbers_are_given_to_the_wrappers_that_they_are_of():
    env, other = (NormalizeObservation(NormalizeReward(gymnasium.make("Pendulum-v1"))) for _ in range(2))
    env.reset(seed=0)
    for _ in range(5):
        env.step(env.action_space.sample())
    kept = Carried(pooled([statistics_of(env)]))(other)
    assert kept is other and not other.update_running_mean and not other.env.update_running_mean
    assert np.allclose(other.obs_rms.mean, env.obs_rms.mean) and other.env.return_rms.var == env.env.return_rms.var
    give(gymnasium.make("Pendulum-v1"), statistics_of(env))  # has no such wrappers
    with pytest.raises(ValueError, match="statistics of NormalizeObservation, NormalizeReward are not for NormalizeOb"):
        give(NormalizeObservation(gymnasium.make("Pendulum-v1")), statistics_of(env))
    with pytest.raises(ValueError, match=r"NormalizeObservation has a mean of shape \(4,\), and what was learned"):
        give(NormalizeObservation(NormalizeReward(gymnasium.make("CartPole-v1"))), statistics_of(env))


def test_one_that_is_made_again_goes_on_with_what_was_learned():
    class Breaks(gymnasium.Env):
        observation_space, action_space = Box(-999, 999, (1,)), Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return np.array([100], np.float32), {}

        def step(self, action):
            self.count += 1
            if self.count == 3:
                raise RuntimeError("broken")
            return np.array([100], np.float32), 1.0, False, False, {}

    env = hr.make(lambda: NormalizeObservation(Breaks()), 1, on_error="restart")
    rollout = env.rollout(3, env.columns())
    env.reset(rollout, 0)
    for t in range(3):
        env.step(rollout, t)
    assert env.restarts == 1 and env.apply(statistics_of)[0][0]["count"] > 3
