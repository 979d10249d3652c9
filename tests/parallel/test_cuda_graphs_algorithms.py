"""Every algorithm's iterations, replayed from a graph, equal those run step by step, bit for bit.

The graph is imitated on the CPU; see tests/helpers/fake_graph.py.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from helpers.as_on_a_gpu import as_on_a_gpu, sorted_draws  # noqa: F401
from helpers.fake_graph import put_back

from headrace import envs
from headrace.algorithms.base import ALGORITHMS, MODULES, OFFLINE, algorithm_classes
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration

SMALL = {"num_steps": 4, "hidden": (8,), "learning_starts": 32, "batch_size": 16, "epochs": 1}
SMALL |= {"critic_hidden": (8,), "policy_delay": 2}  # a divisor of the gradient steps of an iteration
CONTINUOUS = ("ddpg", "td3", "sac", "tqc", "crossq")
# TRPO's second derivatives leave tensors behind: it runs step by step; of recorded data alone nothing is collected
GRAPHED = sorted({*ALGORITHMS} - {"trpo", *OFFLINE})
ITERATIONS = 12  # off-policy ones begin to learn on the way


pytestmark = pytest.mark.usefixtures("as_on_a_gpu")


@pytest.fixture(autouse=True)
def waits_for_no_flag(monkeypatch):
    """No algorithm knows a flag without waiting."""
    for name in (MODULES.get(name, name) for name in ALGORITHMS):
        module = importlib.import_module(f"headrace.algorithms.{name}")
        if hasattr(module, "known"):
            monkeypatch.setattr(module, "known", lambda flag: False)


def made(name):
    kind, config = algorithm_classes(name)
    env = envs.make("Pendulum-v1" if name in CONTINUOUS else "CartPole-v1", 8, backend="torch")
    settings = {key: value for key, value in SMALL.items() if key in config.__dataclass_fields__}
    algorithm = kind.build(config(**settings), env.observation_space, env.action_space, 0, "cpu")
    collector = InlineCollector(env, algorithm.policy, algorithm.num_steps, algorithm.columns(), 0)
    algorithm.prepare(collector.rollout)
    return algorithm, collector


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHED)
def test_replayed_iterations_equal_plain_ones(name):
    (algorithm, collector), (plain, plain_collector) = made(name), made(name)

    graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    for k in range(ITERATIONS):
        metrics = graphed.iterate(k / ITERATIONS)
        assert (metrics is not None) == (k > 0), graphed.refused
        if metrics is None:
            metrics = algorithm.update(collector.collect(), k / ITERATIONS)
        expected = plain.update(plain_collector.collect(), k / ITERATIONS)
        ours, theirs = ({key: float(x) for key, x in own.items()} for own in (metrics, expected))
        assert ours.pop("learning_rate") == pytest.approx(theirs.pop("learning_rate"), rel=1e-6)  # a float64 in a graph
        assert ours == theirs
        assert torch.equal(collector.rollout.action, plain_collector.rollout.action)
        for ours, theirs in zip(
            algorithm.policy.state_dict().values(), plain.policy.state_dict().values(), strict=True
        ):
            assert torch.equal(ours, theirs)
        assert (algorithm.iteration, collector.steps) == (plain.iteration, plain_collector.steps)
