"""Several learners: their sums are those of one with as many shards, and the loss of one ends or restarts all."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers.saved import Drifting

import headrace as hr
from headrace.parallel.actors import Actors
from headrace.parallel.learners import RankLost
from headrace.training import actor_speed
from headrace.training.ranks import Ranks
from headrace.training.trainer import Trainer

forecast, plan = Actors.forecast, Ranks.plan
ROLLOUTS = {"num_envs": 17, "num_steps": 16, "hidden": (16,), "progress": "none"}
REPLAY = ROLLOUTS | {"num_envs": 5, "num_steps": 4, "learning_starts": 60, "buffer_size": 1000, "batch_size": 33}
EPOCHS = ROLLOUTS | {"epochs": 4, "minibatch_size": 68, "target_kl": 0.01}
CASES = {
    "ppo": ("ppo", "CartPole-v1", EPOCHS | {"schedule": "linear", "learning_rate": 1e-3, "total_steps": 10_000}),
    "a2c": ("a2c", "CartPole-v1", ROLLOUTS | {"normalize_advantage": True}),
    "trpo": ("trpo", "CartPole-v1", ROLLOUTS | {"minibatch_size": 64, "critic_epochs": 2}),
    "recurrent": ("ppo", "CartPoleHidden", EPOCHS | {"recurrent": "gru", "rnn_size": 8, "sequence_length": 4}),
    "sac": ("sac", "Pendulum-v1", REPLAY),
    "dqn": ("dqn", "CartPole-v1", REPLAY),
}
MORE = {
    "ppo of Box": ("ppo", "Pendulum-v1", EPOCHS),
    "plain ppo": ("ppo", "CartPole-v1", EPOCHS | {"hidden": (300,)}),
    "inline": ("ppo", "CartPole-v1", EPOCHS | {"backend": "inline"}),
    "appo": ("appo", "CartPole-v1", EPOCHS),
    "impala": ("impala", "CartPole-v1", ROLLOUTS),
    "reinforce": ("reinforce", "CartPole-v1", ROLLOUTS | {"num_steps": 32}),
    "pqn": ("pqn", "CartPole-v1", ROLLOUTS),
    "td3": ("td3", "Pendulum-v1", REPLAY),
    "ddpg": ("ddpg", "Pendulum-v1", REPLAY),
    "tqc": ("tqc", "Pendulum-v1", REPLAY | {"critic_hidden": (8,)}),
    "recurrent dqn": (
        "dqn",
        "CartPoleHidden",
        REPLAY | {"batch_size": 32, "recurrent": "gru", "rnn_size": 8, "sequence_length": 4, "burn_in": 2},
    ),
    "prioritized dqn": ("dqn", "CartPole-v1", REPLAY | {"prioritized": True, "n_steps": 3}),
}


def hash_of(policy) -> str:
    digest = hashlib.sha256()
    for tensor in policy.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def learned(algorithm, env, updates: int = 20, **options):
    """The hash of the weights and normalisers after so many updates, and the results of all."""
    training = Trainer(algorithm, env, **options)
    try:
        results = [training.iterate() for _ in range(updates)]
        return hash_of(training.policy), results
    finally:
        training.close()


def check_equal(case, number):
    algorithm, env, options = case
    expected, results = learned(algorithm, env, **options, shards=number)
    found, others = learned(algorithm, env, **options, learners=number)
    assert found == expected
    assert others == results  # steps, metrics, the returns of episodes in their order
    return results


@pytest.mark.parametrize("name", CASES)
def test_two_learners_are_one_with_two_shards(name):
    results = check_equal(CASES[name], 2)
    assert results[-1].episodes > 0 or name == "sac"
    if name == "ppo":  # the schedule follows the steps of all learners: stable-baselines issue 52
        assert results[-1].metrics["learning_rate"] == pytest.approx(1e-3 * (1 - results[-2].steps / 10_000))


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", MORE)
def test_learners_are_shards_for_every_algorithm(name, number):
    check_equal(MORE[name], number)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_three_learners_are_one_with_three_shards(name):
    check_equal(CASES[name], 3)


@pytest.mark.parametrize("collection", ["sync", "overlapped"])
def test_learners_with_actors_of_their_own_are_shards_too(collection, monkeypatch):
    algorithm, env, options = CASES["ppo"]
    options = options | {"collection": collection}
    expected, _ = learned(algorithm, env, 4, **options, actors=2, shards=2)
    monkeypatch.setattr(actor_speed, "RECENT", 2)  # updates
    monkeypatch.setattr(actor_speed, "LEAST", 0.0)
    asked = []
    monkeypatch.setattr(Actors, "forecast", lambda *arguments: asked.append(forecast(*arguments)) or asked[-1])
    plans = []
    monkeypatch.setattr(Ranks, "plan", lambda *arguments: plans.append(plan(*arguments)) or plans[-1])
    found, results = learned(algorithm, env, 4, **options, actors=2, learners=2)
    assert found == expected
    assert len(plans) == 1 and plans[0].startswith(
        "2 actors with 17 environments, of 2 learners; rank 0 has actors with 8"
    )
    assert len(asked) == 1 and len(asked[0].collect) == 2  # of both learners
    notes = [note for result in results for note in result.notes]
    assert len(notes) == 1 and notes[0].startswith(f"{collection}: ") and "2 collect" in notes[0]
    assert "2 learners learn" in notes[0] if collection == "overlapped" else "then 2 learners learn" in notes[0]


UNSEEDED = """
import torch
from headrace.algorithms.a2c import A2C as Base, A2CConfig

class A2C(Base):
    @classmethod
    def make_policy(cls, config, observation_space, action_space, seed):
        policy = super().make_policy(config, observation_space, action_space, seed)
        torch.seed()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return policy
"""


def test_all_begin_with_the_weights_of_rank_0_and_differing_ones_are_found(tmp_path):  # CleanRL issue 476
    (tmp_path / "unseeded.py").write_text(UNSEEDED)
    options = ROLLOUTS | {"num_envs": 4, "num_steps": 2, "learners": 2, "total_steps": None, "max_seconds": 100}
    training = Trainer(f"{tmp_path / 'unseeded.py'}:A2C", "CartPole-v1", **options)
    try:
        for _ in range(199):
            training.iterate()  # the 100th compares
        with torch.no_grad():
            next(training.policy.parameters()).view(-1)[0] += 1e-6
        with pytest.raises(RuntimeError, match="after 200 updates rank 1 has other weights than rank 0"):
            training.iterate()
    finally:
        training.close()


class Failing(gym.Env):
    """Fails, or hangs, in the fifth step in any process but the learner's."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def __init__(self, learner: int, hangs: bool) -> None:
        self.elsewhere, self.hangs, self.steps = os.getpid() != learner, hangs, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.elsewhere and self.steps == 5:
            if self.hangs:
                time.sleep(100)
            raise ZeroDivisionError("the fifth step")
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("hangs", [False, True])
def test_a_learner_that_fails_or_hangs_ends_all_and_is_named(hangs):
    here = os.getpid()
    options = ROLLOUTS | {"num_envs": 2, "learners": 2, "step_timeout": 1.0}
    training = Trainer("a2c", lambda: Failing(here, hangs), **options)
    try:
        if hangs:
            with pytest.raises(RankLost, match="rank 1 has made no step for 1"):
                training.iterate()
        else:
            with pytest.raises(ZeroDivisionError, match="the fifth step") as caught:
                training.iterate()
            notes = "\n".join(caught.value.__notes__)
            assert "raised by rank 1 (envs 1 to 1)" in notes
            assert "in step" in notes  # the traceback there
    finally:
        training.close()


def test_a_learner_that_is_killed_is_named():
    training = Trainer("a2c", "CartPole-v1", **ROLLOUTS, learners=2)
    try:
        training.iterate()
        process = training._ranks.processes[0].process
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RankLost, match=r"rank 1 \(envs 8 to 16\) was ended by SIGKILL"):
            for _ in range(3):
                training.iterate()
    finally:
        training.close()
    assert not process.is_alive()


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_training_that_loses_a_learner_goes_on_from_its_checkpoint_with_the_same_bits(name, tmp_path, monkeypatch):
    algorithm, env, options = CASES[name]
    options = options | {"learners": 2, "total_steps": 3_000 if name == "ppo" else 300, "log_folder": str(tmp_path)}
    if name == "sac":  # its default rollouts, within which one learner would learn
        del options["num_steps"]
    whole = hr.train(algorithm, env, **options)
    iterate, killed = Trainer.iterate, []

    def killing(self, stop=None):
        if len(killed) < 2 and self.algorithm.iteration == 7 + 2 * len(killed):
            killed.append(self._ranks.processes[0].process.pid)
            os.kill(killed[-1], signal.SIGKILL)
        return iterate(self, stop)

    monkeypatch.setattr(Trainer, "iterate", killing)
    run = hr.train(algorithm, env, **options, save_freq=400 if name == "ppo" else 40)
    assert len(killed) == 2
    assert (run.steps, hash_of(run.policy)) == (whole.steps, hash_of(whole.policy))


@pytest.mark.parametrize("env", [Drifting, pytest.param("CartPole-v1", marks=pytest.mark.slow)])
def test_a_signal_to_any_learner_ends_all_and_saves_once(env, tmp_path, monkeypatch):
    iterate = Trainer.iterate  # of environments in Python, a rollout is given up
    options = ROLLOUTS | {"learners": 2, "registered": False, "log_folder": str(tmp_path)}

    def interrupting(self, stop=None):
        if self.algorithm.iteration == 3:
            os.kill(self._ranks.processes[0].process.pid, signal.SIGINT)
            time.sleep(0.2)
        return iterate(self, stop)

    monkeypatch.setattr(Trainer, "iterate", interrupting)
    run = hr.train("a2c", env, **options, on_interrupt="return")
    assert run.reason == "SIGINT"
    monkeypatch.undo()
    resumed = hr.train(resume=run.path, env=env, total_steps=2_000)
    whole = hr.train("a2c", env, **options, total_steps=2_000)
    assert hash_of(resumed.policy) == hash_of(whole.policy)
    one = hr.train(resume=run.path, env=env, learners=1, total_steps=3_000)  # with new episodes
    assert one.steps >= 3_000 and one.metrics["iteration"] > resumed.metrics["iteration"]


@pytest.mark.slow
def test_torchrun_trains_one_run_and_resumes_it(tmp_path):
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    launch += ["--master-port", str(free_port()), "-m", "headrace", "train"]
    quiet = ["--progress", "none", "--final-episodes", "0"]
    options = ["--num-envs", "17", "--num-steps", "16", "--log-folder", str(tmp_path), *quiet]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}

    def torchrun(*arguments):
        command = [sys.executable, *launch, *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    torchrun("sac", "Pendulum-v1", *options, "--learning-starts", "600", "--total-steps", "1000")
    run = tmp_path / "sac" / "Pendulum-v1_1"
    torchrun("--resume", str(run), "--total-steps", "1500", *quiet)
    torchrun("sac", "Pendulum-v1", *options, "--learning-starts", "600", "--total-steps", "1500")
    assert sorted(path.name for path in (tmp_path / "sac").iterdir()) == ["Pendulum-v1_1", "Pendulum-v1_2"]
    assert hash_of(hr.load(run, which="last")) == hash_of(hr.load(tmp_path / "sac" / "Pendulum-v1_2", which="last"))


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
