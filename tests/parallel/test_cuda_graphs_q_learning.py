"""Iterations of DQN and PQN are replayed from a graph like any other, with all that moves as the training goes on."""

from __future__ import annotations

import pytest
import torch
from helpers.as_on_a_gpu import sorted_draws  # noqa: F401
from helpers.fake_graph import put_back

from headrace import envs
from headrace.algorithms.dqn import DQN, DQNConfig
from headrace.algorithms.pqn import PQN, PQNConfig
from headrace.core import fused
from headrace.core.device import torch_threads
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration

pytestmark = pytest.mark.usefixtures("sorted_draws")
REPLAYED = {"batch_size": 16, "learning_starts": 40, "buffer_size": 500, "gradient_steps": 3, "target_interval": 4}
SETTINGS = [
    (DQN, DQNConfig(num_steps=2, hidden=(8,), **REPLAYED)),
    (DQN, DQNConfig(num_steps=2, hidden=(8, 8), prioritized=True, dueling=True, n_steps=3, **REPLAYED)),
    (DQN, DQNConfig(num_steps=2, hidden=(8,), exploration_spread=3.0, tau=0.1, double=False, **REPLAYED)),
    (PQN, PQNConfig(num_steps=4, hidden=(8,), minibatch_size=8)),
]


def made(kind, config):
    env = envs.make("CartPole-v1", 8, backend="torch")
    algorithm = kind.build(config, env.observation_space, env.action_space, 3, "cpu")
    collector = InlineCollector(env, algorithm.policy, config.num_steps, algorithm.columns(), 3)
    algorithm.prepare(collector.rollout)
    return collector, algorithm


@pytest.mark.parametrize(("kind", "config"), SETTINGS)
def test_replayed_iterations_equal_plain_ones(kind, config):
    with fused.plain_only(), torch_threads(1):
        collector, algorithm = made(kind, config)
        plain_collector, plain = made(kind, config)
        graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
        replayed = 0
        for step in range(8):
            progress = step / 10
            metrics = graphed.iterate(progress)
            replayed += metrics is not None
            if metrics is None:
                metrics = algorithm.update(collector.collect(), progress)
            expected = plain.update(plain_collector.collect(), progress)
            assert not graphed.refused
            assert torch.equal(collector.rollout.action, plain_collector.rollout.action)
            assert torch.equal(algorithm.optimizer.flat, plain.optimizer.flat)
            for name, value in expected.items():
                assert float(metrics[name]) == pytest.approx(float(value), rel=1e-6), name
        assert replayed >= 5
