"""Gradients of actors: their sum is that of one process; asynchronous ones are applied as they come."""

from __future__ import annotations

import json
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers.same import all_weights

import headrace as hr
from headrace.algorithms.a2c import A2CConfig
from headrace.core.cores import cores
from headrace.data.finite import NotFinite
from headrace.parallel.gradients import GradientActors
from headrace.parallel.schedule import LOG, Fragment, ReplayOrder, records
from headrace.training.trainer import Trainer

SMALL = {"num_envs": 8, "hidden": (16,), "progress": "none", "exchange": "gradients"}
CASES = {
    "a2c": ("a2c", "CartPole-v1", {}),
    "advantages normalised": ("a2c", "CartPole-v1", {"normalize_advantage": True}),
    "reinforce": ("reinforce", "CartPole-v1", {"num_steps": 32}),
    "no baseline": ("reinforce", "CartPole-v1", {"num_steps": 64, "baseline": False}),
    "recurrent": ("a2c", "CartPole-v1", {"recurrent": "gru", "sequence_length": 4, "hidden": (16,)}),
    "agents": ("a2c", "Pursuit", {}),
}


def trainer(algorithm, env: object, **options) -> Trainer:
    return Trainer(algorithm, env, **SMALL | options)


def learned(algorithm: str, env: str, updates: int, **options) -> tuple[torch.Tensor, dict[str, float]]:
    """Weights after so many updates, and the metrics of the last one."""
    training = trainer(algorithm, env, **options)
    try:
        results = [training.iterate() for _ in range(updates)]
        return all_weights(training), {
            **results[-1].metrics,
            "steps": results[-1].steps,
            "episodes": results[-1].episodes,
        }
    finally:
        training.close()


@pytest.mark.parametrize("case", CASES)
def test_the_sum_of_the_gradients_of_two_actors_is_that_of_one_process(case):
    algorithm, env, options = CASES[case]
    inline, expected = learned(algorithm, env, 1, exchange="experience", **options)
    both, metrics = learned(algorithm, env, 1, actors=2, **options)
    torch.testing.assert_close(both, inline, rtol=0, atol=1e-6)
    assert metrics == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("case", ["advantages normalised", "no baseline", "recurrent"])
def test_one_actor_gives_the_bits_of_one_process_and_two_the_same_bits_again(case):
    algorithm, env, options = CASES[case]
    inline, _ = learned(algorithm, env, 4, exchange="experience", **options)
    one, _ = learned(algorithm, env, 4, actors=1, **options)
    assert torch.equal(one, inline)
    two, again = (learned(algorithm, env, 4, actors=2, **options)[0] for _ in range(2))
    assert torch.equal(two, again)


@pytest.mark.parametrize("name", ["order", "_share"])  # before it collects; where it has asked for its second sum
def test_an_actor_that_is_killed_is_replaced_and_the_bits_stay(monkeypatch, name):
    expected, _ = learned("a2c", "CartPole-v1", 4, actors=3, normalize_advantage=True)
    training = trainer("a2c", "CartPole-v1", actors=3, normalize_advantage=True)
    process = training.env.transport.workers[1].process
    original, calls = getattr(GradientActors, name), []

    def killing(self, *arguments, **named):
        calls.append(name)
        if len(calls) == 2:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        return original(self, *arguments, **named)

    monkeypatch.setattr(GradientActors, name, killing)
    for _ in range(4):
        training.iterate()
    assert training.env.transport.workers[1].process is not process
    assert torch.equal(all_weights(training), expected)
    training.close()


@pytest.mark.parametrize("algorithm", ["a2c", "reinforce"])
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(algorithm):
    first, second = trainer(algorithm, "CartPole-v1", actors=2), trainer(algorithm, "CartPole-v1", actors=2)
    for _ in range(3):
        first.iterate()
    second.load_state_dict(first.state_dict())
    results = [(first.iterate(), second.iterate()) for _ in range(3)]
    assert all(one.metrics == other.metrics for one, other in results)
    assert torch.equal(all_weights(first), all_weights(second))
    first.close()
    second.close()


class Counting(hr.A2C):
    """Counts the updates of its policy in a buffer of it: a gradient reports by which policy it was computed."""

    def gradient(self, rollout, targets):
        return super().gradient(rollout, targets) | {"computed_by": self.policy.updates.clone()}

    def end_update(self, metrics):
        self.policy.updates += 1
        return super().end_update(metrics)


def counting(most: int) -> Trainer:
    """A3C by 3 actors with a lag of at most so many updates."""
    env = hr.make("CartPole-v1", 1)
    policy = hr.ActorCritic(env.observation_space, env.action_space, hidden=(16,))
    policy.register_buffer("updates", torch.zeros(()))
    options = {"num_envs": 6, "actors": 3, "collection": "async", "max_policy_lag": most, "progress": "none"}
    return Trainer(Counting(policy), "CartPole-v1", exchange="gradients", **options)


@pytest.mark.parametrize("most", [1, 2])
def test_the_lag_of_each_gradient_is_counted_and_bounded(most):
    training = counting(most)
    lags, places = [], set()
    for update in range(30):
        result = training.iterate()
        rollout = training.collector.rollout
        assert rollout.num_envs == 2 and set(rollout.columns) == {"valid", "episode_return", "episode_length"}
        lags.append(update - result.metrics["computed_by"])
        places.add(tuple(rollout.env.tolist()))
        assert rollout.lag.tolist() == [lags[-1]] * 2
    assert result.iteration == 30 and result.steps <= 30 * 2 * training.algorithm.num_steps
    assert max(lags) == most
    assert places == {(0, 1), (2, 3), (4, 5)}
    state = training.state_dict()
    training.close()
    resumed = counting(most)
    resumed.load_state_dict(state)
    for update in range(30, 35):
        assert update - resumed.iterate().metrics["computed_by"] <= most
    resumed.close()


def test_an_asynchronous_run_is_given_again_from_its_log(tmp_path):
    options = {**SMALL, "num_envs": 6, "actors": 3, "collection": "async", "log_folder": str(tmp_path / "runs")}
    options |= {"total_steps": 1000, "target_return": None}
    run = hr.train("a2c", "CartPole-v1", **options)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows and all(0 <= row["lag"] == row["lag_max"] <= 2 for row in rows)
    again = hr.train("a2c", "CartPole-v1", replay_order=str(run.path), **options)
    same = zip(run.policy.parameters(), again.policy.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


def in_turns(path, actors: int, updates: int) -> ReplayOrder:
    """The order in which actors of equal speed give gradients: each is applied once the others have given one since."""
    fragments = [Fragment(max(0, update + 1 - actors), update // actors, update % actors) for update in range(updates)]
    path.write_bytes(records(fragments))
    return ReplayOrder(path, actors, count=1)


def test_a3c_learns_cartpole(tmp_path):
    options = {"actors": 2, "collection": "async", "target_return": 195, "total_steps": 200_000, "num_envs": 32}
    training = Trainer("a2c", "CartPole-v1", exchange="gradients", progress="none", **options)
    # whoever is first decides what is learned: here the seed alone does
    order = training.collector.schedule.replay = in_turns(tmp_path / LOG, 2, 5000)
    while not training.reason_to_stop():
        training.iterate()
    training.close()
    assert training.reason_to_stop() == "target_return"
    assert training.collector.schedule.rounds <= order.rounds


def test_asynchronous_gradients_take_smaller_steps_without_momentum():
    options = {"exchange": "gradients", "num_envs": 4, "progress": "none"}

    def made(**mode) -> tuple[float, float]:
        training = Trainer("a2c", "CartPole-v1", **options, **mode)
        training.close()
        return float(training.algorithm.optimizer.learning_rate), training.algorithm.optimizer.beta1

    rate = A2CConfig().learning_rate
    assert made(actors=4, collection="async") == (pytest.approx(rate / 2), 0.0)
    assert made(actors=4, collection="async", learning_rate=0.01) == (pytest.approx(0.01), 0.0)
    assert made(actors=4, collection="async", scale=False) == (pytest.approx(rate), 0.0)
    assert made(actors=4) == made(actors=1, collection="async") == (pytest.approx(rate), 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("actors", [2, 4])
@pytest.mark.parametrize("seed", [1, 2])
def test_a3c_solves_cartpole(seed, actors):
    options = {"actors": actors, "collection": "async", "max_policy_lag": actors - 1, "seed": seed}
    options |= {"total_steps": 1_000_000, "progress": "none"}  # one of 38 had not got there after 500,000
    training = Trainer("a2c", "CartPole-v1", exchange="gradients", **options)
    while not training.reason_to_stop():
        training.iterate()
    training.close()
    assert training.reason_to_stop() == "target_return" and training.config.target_return == 475


REFUSED = [
    ("ppo", {}, "is for algorithms that take one gradient step on each rollout, and ppo does not: use a2c"),
    ("dqn", {"num_envs": 4}, "and dqn does not"),
    ("a2c", {"collection": "overlapped"}, "use 'sync' or 'async'"),
    ("a2c", {"collection": "double_buffered"}, "use 'sync' or 'async'"),
    ("reinforce", {"collection": "async"}, "use collection='sync', or a2c"),
    ("reinforce", {"collection": "overlapped"}, "use 'sync'$"),
    ("a2c", {"actors": None, "workers": 2}, "give actors=2 in place of workers=2"),
    ("a2c", {"actors": 3, "collection": "async"}, "give num_envs=6 or 9"),
    ("a2c", {"group_by": "agents", "env": "Pursuit"}, "is for agents of one group"),
]


@pytest.mark.parametrize(("algorithm", "options", "words"), REFUSED)
def test_what_does_not_go_together_is_refused(algorithm, options, words):
    options = {"env": "CartPole-v1", "actors": 2} | options
    with pytest.raises(ValueError, match=words):
        trainer(algorithm, **options)


def test_it_starts_actors_on_all_cores(capfd):
    for collection in ("sync", "async"):
        training = trainer("a2c", "CartPole-v1", num_envs=4, collection=collection)
        training.close()
        assert training.config.actors == min(cores(), 4)
        assert "all of which compute gradients" in capfd.readouterr().err


def test_it_says_how_many_actors_are_at_work(capfd):
    trainer("a2c", "CartPole-v1", actors=4, collection="async").close()
    assert "3 of 4 actors are at work at a time: give max_policy_lag=3" in capfd.readouterr().err


def test_statistics_of_a_policy_of_ones_own_are_refused():
    class Own(hr.ActorCritic):
        def update_statistics(self, rollout, returns):
            """Do an update that cannot be merged."""

    env = hr.make("CartPole-v1", 1)
    policy = Own(env.observation_space, env.action_space, hidden=(16,))
    with pytest.raises(TypeError, match=r"which Own.update_statistics\(\) does not give"):
        Trainer(hr.A2C(policy), "CartPole-v1", exchange="gradients", actors=2, num_envs=4, progress="none")


class Broken(gym.Env):
    """Environment whose rewards are NaN."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float("nan"), False, False, {}


def test_nan_in_an_actor_is_an_error_that_says_where():
    training = trainer("a2c", Broken, num_envs=4, actors=2)
    where = r"reward is nan in env [02] at row 0 of the rollout: step 0 of that env\. Look"
    with pytest.raises(NotFinite, match=where):
        training.iterate()
    training.close()
