"""Iterations that learn from a replay, once they learn, are replayed from a graph like any other."""

from __future__ import annotations

import pytest
import torch
from helpers.fake_graph import put_back

from headrace import envs
from headrace.algorithms.ddpg import DDPG, DDPGConfig
from headrace.algorithms.sac import SAC, SACConfig
from headrace.algorithms.td3 import TD3, TD3Config
from headrace.core import fused
from headrace.core.device import torch_threads
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration

CONFIG = {"hidden": (8,), "batch_size": 16, "learning_starts": 40, "buffer_size": 500, "num_steps": 2}


@pytest.fixture(autouse=True)
def as_on_a_gpu():
    """No kernel of the CPU serves."""
    with fused.plain_only(), torch_threads(1):
        yield


def made(kind, config):
    env = envs.make("Pendulum-v1", 8, backend="torch")
    algorithm = kind.build(config(**CONFIG, utd_ratio=0.25), env.observation_space, env.action_space, 3, "cpu")
    collector = InlineCollector(env, algorithm.policy, 2, algorithm.columns(), 3)
    algorithm.prepare(collector.rollout)
    return collector, algorithm


@pytest.mark.parametrize(("kind", "config"), [(SAC, SACConfig), (TD3, TD3Config), (DDPG, DDPGConfig)])
def test_replayed_iterations_equal_plain_ones(kind, config):
    collector, algorithm = made(kind, config)
    plain_collector, plain = made(kind, config)
    graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    replayed = []
    for _ in range(7):
        metrics = graphed.iterate(0.0)
        replayed.append(metrics is not None)
        if metrics is None:
            metrics = algorithm.update(collector.collect(), 0.0)
        expected = plain.update(plain_collector.collect(), 0.0)
        assert not graphed.refused
        assert torch.equal(collector.rollout.action, plain_collector.rollout.action)
        assert {k: float(v) for k, v in metrics.items()} == {k: float(v) for k, v in expected.items()}
        assert torch.equal(algorithm.optimizers["critics"].flat, plain.optimizers["critics"].flat)
        assert (algorithm.iteration, algorithm.updates) == (plain.iteration, plain.updates)
    assert replayed == [False, False, True, True, True, True, True]  # the first two fill the replay
    assert algorithm.updates == 5 * 4
