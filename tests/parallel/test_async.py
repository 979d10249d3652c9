"""Asynchronous actors: the lag that is logged is the lag there was, and nothing that was played is thrown away."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from helpers.versions import VersionPolicy, version_envs

import headrace as hr
from headrace.parallel.collection_modes import make_collector
from headrace.parallel.fragments import slots_of
from headrace.parallel.schedule import LOG, RECORD
from headrace.training.config import read_toml
from headrace.training.replay_order import replay_order
from headrace.training.trainer import Trainer


def collected(env, iterations: int, num_steps: int, **options):
    """Rollouts of actors, each with the number of updates before it; the policy counts its updates."""
    policy = VersionPolicy()
    collector = make_collector("async", 0.0, env, policy, num_steps, {}, 0, **options)
    try:
        collector.warm_up()
        for update in range(iterations):
            yield update, collector.collect()
            policy.updates += 1
            collector.publish()
    finally:
        collector.close()
        env.close()


@pytest.mark.parametrize("max_policy_lag", [1, 2, 4])
def test_the_lag_that_is_logged_is_the_one_that_environments_count(max_policy_lag):
    env = version_envs(3, pauses=[2e-3, 2e-4, 2e-4], least=[7, 7, 7])  # one is ten times slower
    largest = 0
    for update, rollout in collected(env, 40, 4, max_policy_lag=max_policy_lag):
        version = rollout.reward.amax(0)  # 0 in masked rows
        counted = update - version
        assert torch.equal(counted, rollout.lag)
        played = rollout.valid[:-1]
        assert torch.equal(rollout.reward[played], version.expand(4, 3)[played])  # of one version
        largest = max(largest, int(counted.max()))
    assert 1 <= largest <= max_policy_lag


def test_lengths_learned_are_the_lengths_played(tmp_path):
    """Long episodes of slow environments would be missing if old fragments were thrown away."""
    env = version_envs(3, pauses=[3e-3, 1e-4, 1e-4], least=[10, 2, 2], folder=tmp_path)
    learned: dict[int, list[int]] = {0: [], 1: [], 2: []}
    seen = dict.fromkeys(learned, 0)  # rows of each environment
    for _, rollout in collected(env, 100, 4, max_policy_lag=4):
        for column, number in enumerate(rollout.env.tolist()):
            ended = ~rollout.valid[:-1, column] & (rollout.episode_length[:, column] > 0)
            learned[number] += rollout.episode_length[ended, column].int().tolist()
            seen[number] += 4
    for number, lengths in learned.items():
        played = [int(line) for line in (tmp_path / f"{number}.txt").read_text().split()]
        assert lengths == played[: len(lengths)]
        rows = sum(played) + len(played)  # a masked row after each episode
        assert rows <= seen[number] + 4 * slots_of("async", 4)  # not yet learned: what is in its slots
    assert seen[1] > seen[0]  # the fast ones do give more
    assert len(learned[0]) > 5
    assert np.mean(learned[0]) > 3 * np.mean(learned[1])


def weights(policy) -> str:
    return hashlib.sha256(torch.cat([p.detach().flatten() for p in policy.parameters()]).numpy().tobytes()).hexdigest()


OPTIONS = {"num_envs": 6, "actors": 3, "collection": "async", "progress": "none", "num_steps": 4}
DQN = {"learning_starts": 100, "batch_size": 16, "hidden": (16,), "prioritized": True, "utd_ratio": 0.1}


def run(tmp_path, **options) -> hr.Run:
    return hr.train("dqn", "CartPole-v1", log_folder=str(tmp_path), **OPTIONS | DQN | {"total_steps": 900} | options)


def test_a_run_is_given_again_bit_for_bit_by_its_log_also_where_either_is_resumed(tmp_path):
    first = run(tmp_path, max_seconds=0.02)
    stopped = first.steps
    first = hr.train(resume=first.path, max_seconds=None)
    assert stopped < first.steps
    log = np.fromfile(first.path / LOG, RECORD)
    updates = json.loads((first.path / "metrics.jsonl").read_text().splitlines()[-1])["iteration"]
    assert len(log) == 3 * updates
    again = run(tmp_path, replay_order=str(first.path))
    assert weights(again.policy) == weights(first.policy)
    assert (again.path / LOG).read_bytes() == (first.path / LOG).read_bytes()
    parts = run(tmp_path, replay_order=str(first.path), max_seconds=0.02)
    parts = hr.train(resume=parts.path, max_seconds=None)
    assert weights(parts.policy) == weights(first.policy)
    assert (parts.path / LOG).read_bytes() == (first.path / LOG).read_bytes()


def test_where_the_log_ends_the_run_goes_on(tmp_path, capsys):
    first = run(tmp_path, target_return=1.0, window=1)
    again = run(tmp_path, replay_order=str(first.path))
    assert "replay_order was followed for" in capsys.readouterr().err
    log = (first.path / LOG).read_bytes()
    assert (again.path / LOG).read_bytes()[: len(log)] == log
    assert again.steps >= 900 > first.steps


def test_other_settings_than_those_of_the_log_are_refused(tmp_path):
    first = run(tmp_path, total_steps=300)
    with pytest.raises(ValueError, match=r"seed is 0 in .* and 1 here: .* so give seed=0"):
        run(tmp_path, total_steps=300, seed=1, replay_order=str(first.path))
    settings = read_toml(first.path / "config.toml")
    assert replay_order(str(first.path), settings).rounds == len(np.fromfile(first.path / LOG, RECORD)) / 3 > 10
    for name, value in {"actors": 2, "max_policy_lag": 4, "gamma": 0.5, "total_steps": 400}.items():
        with pytest.raises(ValueError, match=rf"{name} is .* in .* and {value} here"):
            replay_order(str(first.path), settings | {name: value})
    with pytest.raises(ValueError, match="schedules of this training follow its time"):
        replay_order(str(first.path), settings | {"total_steps": "none", "max_seconds": 10.0})
    with pytest.raises(FileNotFoundError, match=r"there is no .*fragments\.bin"):
        replay_order(str(tmp_path), settings)


def test_every_row_of_metrics_has_the_mean_and_the_largest_lag(tmp_path):
    rows = [json.loads(line) for line in (run(tmp_path).path / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= row["lag"] <= row["lag_max"] <= 2 for row in rows)
    overlapped = hr.train(
        "ppo", "CartPole-v1", log_folder=str(tmp_path), **OPTIONS | {"collection": "overlapped"}, total_steps=300
    )
    assert (overlapped.metrics["lag"], overlapped.metrics["lag_max"]) == (1, 1)


@pytest.fixture(scope="module")
def pool():
    with hr.Workers(2) as workers:
        yield workers


OFF_POLICY = {
    "dqn": ("dqn", "CartPole-v1", {"prioritized": True, "n_steps": 2}),
    "recurrent dqn": (
        "dqn",
        "CartPole-v1",
        {"recurrent": "gru", "sequence_length": 4, "burn_in": 2, "prioritized": False},
    ),
    "ddpg": ("ddpg", "Pendulum-v1", {}),
    "td3": ("td3", "Pendulum-v1", {"utd_ratio": 0.5}),
    "sac": ("sac", "Pendulum-v1", {}),
    "recurrent sac": ("sac", "Pendulum-v1", {"recurrent": "gru", "sequence_length": 4, "burn_in": 2}),
    "tqc": ("tqc", "Pendulum-v1", {"critic_hidden": (8,)}),
    "crossq": ("crossq", "Pendulum-v1", {"critic_hidden": (8,)}),
}
SLOW = {"ddpg", "recurrent sac", "tqc", "crossq"}


@pytest.mark.parametrize("case", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in OFF_POLICY])
def test_after_as_many_rows_there_have_been_as_many_gradient_steps_as_inline(case, pool):
    algorithm, env, options = OFF_POLICY[case]
    settings = {"num_envs": 4, "num_steps": 8, "learning_starts": 100, "batch_size": 8, "hidden": (8,), "rnn_size": 8}
    found = {}
    for mode in ("inline", "sync", "overlapped", "async"):
        given = {} if mode == "inline" else {"actors": pool, "collection": mode}
        trainer = Trainer(algorithm, env, progress="none", **settings | options | given)
        counts = []
        for _ in range(8):
            metrics = trainer.iterate().metrics
            counts.append((trainer.algorithm.rows, metrics["n_updates"], "learning_rate" in metrics))
        found[mode] = counts
        trainer.close()
    assert found["sync"] == found["overlapped"] == found["async"] == found["inline"]
    rows, updates = zip(*[count[:2] for count in found["async"]], strict=True)
    assert rows == tuple(32 * number for number in range(1, 9))
    assert updates[2] == 0 < updates[3] < updates[7]


def refused(algorithm: str, **options) -> str:
    with pytest.raises(ValueError) as raised:
        Trainer(algorithm, "CartPole-v1", progress="none", **{"actors": 2} | options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_algorithms_that_cannot_learn_with_such_a_lag_are_refused():
    assert refused("ppo", collection="async") == (
        "ppo learns from experience at most 1 update old, and does not correct for more, and collection='async' gives "
        "it up to max_policy_lag=2 updates old: use collection='overlapped', or appo"
    )
    assert refused("a2c", collection="async").endswith("use collection='overlapped', or impala")
    assert refused("reinforce", collection="overlapped") == (
        "reinforce learns from experience of its present policy, and collection='overlapped' gives it 1 update old: "
        "use collection='sync', or impala"
    )


def test_unequal_fragments_are_refused():
    assert "64 do not divide by 3: give num_envs=63 or 66, or actors=2 or 4" in refused(
        "dqn", num_envs=64, actors=3, collection="async"
    )
