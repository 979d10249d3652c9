"""Acting and the update as two graphs, between which environments step that no graph holds: as step by step.

Without a GPU the graphs are imitated, as in test_cuda_graphs.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers.as_on_a_gpu import as_on_a_gpu, sorted_draws  # noqa: F401
from helpers.fake_graph import record

import headrace as hr
from headrace.algorithms import sac
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.checks import parity
from headrace.core.stopping import Stopped
from headrace.data.rollout import tree_map
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration, GraphedParts
from headrace.training import build

STEPS = 6
PPO_CONFIG = {"num_steps": STEPS, "epochs": 2, "minibatch_size": 8, "hidden": (8,), "schedule": "linear"}
pytestmark = pytest.mark.usefixtures("as_on_a_gpu")


def made(kind=PPO, config=None, name="Pendulum-v1", **options):
    env = hr.make(name, 3, backend="inline", env_kwargs={"max_episode_steps": 9})
    config = config or PPOConfig(**PPO_CONFIG | options)
    algorithm = kind.build(config, env.observation_space, env.action_space, 3, "cpu")
    return InlineCollector(env, algorithm.policy, config.num_steps, algorithm.columns(), 3), algorithm


def graphed_parts(collector, algorithm):
    """Parts whose captures leave no trace, and the numbers of replays of each."""
    counts = []

    def capture(body):
        state = algorithm.state_dict(), tree_map(torch.clone, parts._rnn_state)
        replay, number = record(body), len(counts)
        algorithm.load_state_dict(state[0])
        tree_map(lambda kept, x: kept.copy_(x), parts._rnn_state, state[1])
        counts.append(0)

        def counted():
            counts[number] += 1
            replay()

        return counted

    parts = GraphedParts(collector, algorithm, capture)
    return parts, counts


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Pendulum-v1", {"value_clip": 0.2}),
        ("CartPole-v1", {"target_kl": 1e-4}),
        ("CartPole-v1", {"recurrent": "gru", "rnn_size": 5, "epochs": 1}),
    ],
)
def test_replayed_parts_equal_plain_iterations(name, options):
    (collector, algorithm), (plain_collector, plain) = made(name=name, **options), made(name=name, **options)
    parts, counts = graphed_parts(collector, algorithm)
    for k in range(5):
        metrics = parts.iterate(k / 5)
        assert (metrics is None) == (k == 0) and not parts.refused
        if metrics is None:
            metrics = algorithm.update(collector.collect(), k / 5)
        expected = plain.update(plain_collector.collect(), k / 5)
        for column in ("observation", "reward", "action", "log_prob", "value", "valid", "episode_return"):
            assert torch.equal(getattr(collector.rollout, column), getattr(plain_collector.rollout, column)), column
        assert {key: float(x) for key, x in metrics.items()} == {key: float(x) for key, x in expected.items()}
        assert torch.equal(algorithm.optimizer.flat, plain.optimizer.flat)
        assert (collector.steps, algorithm.iteration) == (plain_collector.steps, plain.iteration)
    assert counts == [4, 4 * STEPS] and not (~collector.rollout.valid).all()


def test_parts_of_an_algorithm_with_a_replay_buffer():
    config = sac.SACConfig(num_steps=4, learning_starts=12, batch_size=8, hidden=(8,), buffer_size=200)
    (collector, algorithm), (plain_collector, plain) = made(sac.SAC, config), made(sac.SAC, config)
    algorithm.prepare(collector.rollout)
    plain.prepare(plain_collector.rollout)
    parts, counts = graphed_parts(collector, algorithm)
    for k in range(6):
        if parts.iterate(k / 6) is None:
            algorithm.update(collector.collect(), k / 6)
        plain.update(plain_collector.collect(), k / 6)
        for mine, other in zip(algorithm.policy.parameters(), plain.policy.parameters(), strict=True):
            assert torch.equal(mine, other)
    assert not parts.refused and counts[0] >= 3


def test_a_changed_policy_is_captured_again():
    collector, algorithm = made()
    parts, counts = graphed_parts(collector, algorithm)
    algorithm.update(collector.collect(), 0.0)
    parts.iterate(0.1)
    algorithm.policy.actor_out.weight.requires_grad_(False)
    assert parts.iterate(0.2) is not None and counts == [1, STEPS, 1, STEPS]


def test_an_act_that_waits_is_not_captured_and_goes_on_step_by_step(monkeypatch, capsys):
    collector, algorithm = made()
    act = hr.ActorCritic.act
    monkeypatch.setattr(hr.ActorCritic, "act", lambda *given: (given[1].sum().item(), act(*given))[1])
    parts, counts = graphed_parts(collector, algorithm)
    for k in range(3):
        assert parts.iterate(k / 3) is None
        algorithm.update(collector.collect(), k / 3)
    assert counts == [] and "item() waits for the device" in parts.refused
    assert capsys.readouterr().err.count("no CUDA graph") == 1


def test_a_stopped_collection_leaves_the_collector_s_own_act():
    collector, algorithm = made()
    parts, _ = graphed_parts(collector, algorithm)
    algorithm.update(collector.collect(), 0.0)
    parts.iterate(0.1)
    collector.stop = lambda: True
    with pytest.raises(Stopped):
        parts.iterate(0.2)
    assert collector.act.__func__ is InlineCollector.act


@pytest.mark.parametrize(
    ("backend", "size", "kind"),
    [("cuda", 1, GraphedIteration), ("vector", 1, GraphedParts), ("vector", 2, None), ("cuda", 2, GraphedIteration)],
)
def test_environments_of_other_libraries_have_parts(backend, size, kind, monkeypatch):
    monkeypatch.setattr(parity, "graphs_trusted", lambda device: True)
    for name in ("GraphedIteration", "GraphedParts"):
        monkeypatch.setattr(build, name, lambda *given, name=name: name)
    env = SimpleNamespace(device=torch.device("cuda"), backend=backend)
    collector, algorithm = InlineCollector.__new__(InlineCollector), SimpleNamespace(reduce=SimpleNamespace(size=size))
    found = build._graph(SimpleNamespace(graphs=True), env, algorithm, collector)
    assert found == (kind and kind.__name__)
    assert build._graph(SimpleNamespace(graphs=False), env, algorithm, collector) is None
