"""Actors give what the learner's own process would: the same bits, for any number of them."""

from __future__ import annotations

import hashlib

import pytest
import torch
from helpers.strict_device import strict_device

from headrace.core.fused import plain_only
from headrace.data.rollout import Column, named_tensors
from headrace.envs.parts import part_maker
from headrace.parallel.actor_env import ActorEnv
from headrace.parallel.actors import Actors
from headrace.policies.actor_critic import ActorCritic
from headrace.runs.progress import line
from headrace.training.trainer import Trainer

CASES = {
    "ppo": ("ppo", "CartPole-v1", 6, {}),
    "normalised": ("ppo", "Pendulum-v1", 4, {"normalize_observation": True, "normalize_return": True}),
    "staggered": ("ppo", "Pendulum-v1", 4, {"stagger": True}),
    "images": ("ppo", "PixelCatch", 2, {"num_envs": 6, "num_steps": 16}),
    "recurrent": ("a2c", "CartPole-v1", 6, {"recurrent": "gru", "sequence_length": 4, "hidden": (16,)}),
    "dqn": ("dqn", "CartPole-v1", 20, {"num_envs": 6, "learning_starts": 200, "exploration_spread": 2.0}),
    "sac": ("sac", "Pendulum-v1", 20, {"num_envs": 6, "num_steps": 1, "learning_starts": 100, "hidden": (16, 16)}),
    "recurrent sac": (
        "sac",
        "Pendulum-v1",
        40,
        {"num_envs": 4, "num_steps": 1, "learning_starts": 100, "recurrent": "gru", "sequence_length": 4, "burn_in": 2},
    ),
    "tqc": ("tqc", "Pendulum-v1", 40, {"num_envs": 6, "num_steps": 1, "learning_starts": 100, "critic_hidden": (8,)}),
    "crossq": (
        "crossq",
        "Pendulum-v1",
        40,
        {"num_envs": 6, "num_steps": 1, "learning_starts": 100, "critic_hidden": (8,), "renorm_warm_up": 20},
    ),
    "bfloat16": ("ppo", "CartPole-v1", 2, {"num_envs": 4, "num_steps": 16, "precision": "bfloat16"}),
    "agents": ("ppo", "Pursuit", 3, {}),
    "gymnasium": ("ppo", "CartPole-v1", 3, {"num_envs": 6, "backend": "inline"}),
}
SLOW = {"tqc", "crossq"}  # as SAC's
MARKED = [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]


def learned(algorithm: str, env: str, iterations: int, **options) -> str:
    """The SHA-256 of the weights after so many updates."""
    trainer = Trainer(algorithm, env, progress="none", **options)
    try:
        for _ in range(iterations):
            trainer.iterate()
        weights = torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])
        return hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    finally:
        trainer.close()


@pytest.mark.parametrize("case", MARKED)
def test_synchronous_actors_give_the_bits_of_one_process(case):
    algorithm, env, iterations, options = CASES[case]
    inline = learned(algorithm, env, iterations, **options)
    assert learned(algorithm, env, iterations, actors=2, **options) == inline


def test_within_plain_only_actors_run_plain_functions_too():
    kernels = learned("ppo", "CartPole-v1", 2, num_envs=8)
    with plain_only():
        inline = learned("ppo", "CartPole-v1", 2, num_envs=8)
        assert learned("ppo", "CartPole-v1", 2, num_envs=8, actors=2) == inline != kernels


@pytest.mark.parametrize("case", MARKED)
def test_overlapped_actors_give_the_same_bits_for_any_number(case):
    algorithm, env, iterations, options = CASES[case]
    one = learned(algorithm, env, iterations, actors=1, collection="overlapped", **options)
    assert learned(algorithm, env, iterations, actors=3, collection="overlapped", **options) == one
    assert learned(algorithm, env, iterations, **options) != one


def test_workers_and_actors_give_the_same_bits():
    options = {"num_envs": 4, "backend": "auto", "seed": 3}
    workers = learned("ppo", "CartPole-v1", 2, workers=2, **options)
    assert learned("ppo", "CartPole-v1", 2, actors=2, **{**options, "backend": "inline"}) == workers


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "reinforce", "trpo", "pqn"])
@pytest.mark.parametrize("collection", ["sync", "overlapped"])
def test_advantages_have_the_same_bits_whoever_computes_them(algorithm, collection):
    if algorithm == "reinforce" and collection == "overlapped":
        pytest.skip("reinforce learns from the newest policy alone")
    options = {"num_envs": 6, "num_steps": 8, "actors": 2, "collection": collection}
    learner = learned(algorithm, "CartPole-v1", 3, **options)
    assert learned(algorithm, "CartPole-v1", 3, advantages="actor", **options) == learner


def test_advantages_are_not_computed_twice():
    def process(rollout):
        raise AssertionError("the actors have done that")

    trainer = Trainer("ppo", "CartPole-v1", num_envs=4, actors=2, advantages="actor", progress="none")
    trainer.algorithm.process = process
    trainer.iterate()
    assert trainer.collector.rollout.advantage.abs().sum() > 0
    trainer.close()


def lags(iterations: int, **options) -> list[float]:
    """The lag of each rollout's columns, which all have the same one."""
    trainer = Trainer("ppo", "CartPole-v1", progress="none", num_envs=8, actors=2, **options)
    found = []
    for _ in range(iterations):
        trainer.iterate()
        lag = trainer.collector.rollout.lag
        assert lag is None or len(lag.unique()) == 1
        found.append(0 if lag is None else lag[0].item())
    shares = trainer.result().fractions
    of_learner = {"waiting for fragments", "gathering", "publishing", "learning", "other"}
    assert of_learner | {"waiting for slots"} <= set(shares) and all(0 < share < 1 for share in shares.values())
    assert sum(shares.values()) - shares["waiting for slots"] == pytest.approx(1)
    assert f"; actors: waiting for slots {shares['waiting for slots']:.0%}" in line(trainer.result())
    trainer.close()
    return found


def test_the_lag_is_0_when_synchronous_and_1_when_overlapped():
    assert lags(4) == [0, 0, 0, 0]
    assert lags(4, collection="overlapped") == [0, 1, 1, 1]


def test_rollouts_reach_the_device_that_learns(monkeypatch):
    """Rollouts come from memory of the CPU by copies alone: anything else raises on this device."""
    made = []
    with strict_device() as device:
        for where in ("cpu", device):
            env = ActorEnv(part_maker("CartPole-v1"), 8, 2, device=where)
            policy = ActorCritic(env.observation_space, env.action_space, hidden=(8,))
            columns = {"log_prob": Column(), "value": Column(bootstrap=True)}
            actors = Actors(env, policy, 4, columns, 0, collection="overlapped")
            actors.warm_up()
            made.append([])
            for number in range(4):
                rollout = actors.collect()
                assert rollout.device == torch.device(where)
                tensors = [x for _, x in named_tensors(rollout)] + [rollout.lag]
                made[-1].append([x.tolist() for x in tensors])
                if number % 2:  # fragments are copied while the device learns
                    while len(actors.schedule.held) < 2:
                        actors.wait()
                with monkeypatch.context() as patch:
                    if number % 2 == 0:  # or they come too late for that, however fast actors are
                        patch.setattr(actors, "_complete", list)
                    actors.publish()
                assert rollout.observation.tolist() == made[-1][-1][0]
                assert bool(actors._gathered) == bool(number % 2 and where != "cpu")
            env.close()
    assert made[0] == made[1] and any(made[0][0][0])
