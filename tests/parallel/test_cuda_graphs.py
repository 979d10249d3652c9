"""Iterations replayed from a graph equal those run step by step; what no graph can hold is refused and named.

Without a GPU the graph is imitated (recorder.py): operations run again on the same tensors, Python does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.as_on_a_gpu import as_on_a_gpu, sorted_draws  # noqa: F401
from helpers.fake_graph import put_back, record

from headrace import envs
from headrace.algorithms import ppo
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration
from headrace.parallel.stagger import Stagger

CONFIG = {"num_steps": 4, "epochs": 2, "minibatch_size": 16, "hidden": (8,), "schedule": "linear"}
pytestmark = pytest.mark.usefixtures("as_on_a_gpu")


def made(name, device="cpu", **options):
    env = envs.make(name, 8, backend="torch", device=device)
    config = PPOConfig(**CONFIG | options)
    algorithm = PPO.build(config, env.observation_space, env.action_space, 3, device)
    return InlineCollector(env, algorithm.policy, config.num_steps, algorithm.columns(), 3), algorithm


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CartPole-v1", {"target_kl": 1e-4, "value_clip": 0.2}),
        ("Pendulum-v1", {"distribution": "squashed", "entropy_coef": 0.01}),
        ("MountainCarContinuous-v0", {"shared": True, "learning_rate": 3e-3}),
        ("CartPole-v1", {"recurrent": "lstm", "rnn_size": 5, "epochs": 1}),
    ],
)
def test_replayed_iterations_equal_plain_ones(name, options):
    collector, algorithm = made(name, **options)
    plain_collector, plain = made(name, **options)
    graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    replayed = 0
    for k in range(4):
        metrics = graphed.iterate(k / 4)
        replayed += metrics is not None
        if metrics is None:
            metrics = algorithm.update(collector.collect(), k / 4)
        expected = plain.update(plain_collector.collect(), k / 4)
        assert not graphed.refused
        for column in ("observation", "reward", "action", "log_prob", "value", "valid", "episode_return"):
            assert torch.equal(getattr(collector.rollout, column), getattr(plain_collector.rollout, column)), column
        assert {k: float(v) for k, v in metrics.items()} == {k: float(v) for k, v in expected.items()}
        assert torch.equal(algorithm.optimizer.flat, plain.optimizer.flat)
        assert (collector.steps, algorithm.iteration) == (plain_collector.steps, plain.iteration)
    assert replayed == 3 and not graphed.refused


def test_a_graph_is_captured_anew_where_the_policy_changed():
    collector, algorithm = made("CartPole-v1")
    graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    algorithm.update(collector.collect(), 0.0)
    graphed.iterate(0.1)
    frozen = algorithm.policy.actor_out.weight.requires_grad_(False)
    before = frozen.clone(), algorithm.policy.critic_out.weight.detach().clone()
    assert graphed.iterate(0.2) is not None
    assert torch.equal(frozen, before[0]) and not torch.equal(algorithm.policy.critic_out.weight, before[1])


def test_a_resumed_run_goes_on_from_its_counters():
    collector, algorithm = made("CartPole-v1")
    graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    algorithm.update(collector.collect(), 0.0)
    graphed.iterate(0.1)
    saved = algorithm.state_dict(), collector.state_dict()
    graphed.iterate(0.2)
    expected = algorithm.optimizer.flat.clone()
    graphed.iterate(0.3)
    algorithm.load_state_dict(saved[0])
    collector.load_state_dict(saved[1])
    graphed.iterate(0.2)
    assert torch.equal(algorithm.optimizer.flat, expected)


def test_what_cannot_be_captured_goes_on_step_by_step(monkeypatch, capsys):
    collector, algorithm = made("CartPole-v1")
    plain_collector, plain = made("CartPole-v1")
    loss = ppo.ppo_loss
    monkeypatch.setattr(ppo, "ppo_loss", lambda *args: (loss(*args)[0].item(), loss(*args))[1])
    graphed = GraphedIteration(collector, algorithm, record)
    for _ in range(3):
        assert graphed.iterate(0.0) is None
        algorithm.update(collector.collect(), 0.0)
        plain.update(plain_collector.collect(), 0.0)
    assert torch.equal(algorithm.optimizer.flat, plain.optimizer.flat)
    assert algorithm.iteration == plain.iteration == 3
    said = capsys.readouterr().err
    assert said.count("no CUDA graph") == 1 and "test_cuda_graphs.py" in said and "item() waits for the device" in said


def test_a_counter_on_the_host_is_refused(monkeypatch):
    collector, algorithm = made("CartPole-v1")
    step = collector.env.step

    def counted(rollout, t):
        collector.env.taken = getattr(collector.env, "taken", 0) + 1
        step(rollout, t)

    collector.env.taken = 0
    collector.env.step = counted
    graphed = GraphedIteration(collector, algorithm, record)
    collector.collect()
    assert graphed.iterate(0.0) is None
    assert graphed.refused == "the environment counts taken on the host, which a graph does not: use a tensor"


def test_tensors_left_for_the_next_iteration_are_refused():
    collector, algorithm = made("CartPole-v1")
    step = collector.env.step

    def keeping(rollout, t):
        step(rollout, t)
        collector.env.last = rollout.reward[t] * 2  # rebound to a new tensor at every step

    collector.env.step = keeping
    graphed = GraphedIteration(collector, algorithm, record)
    collector.collect()
    assert graphed.iterate(0.0) is None
    assert "keeps 32 bytes of new tensors" in graphed.refused


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_gpu_graphs_equal_plain_iterations(backend, monkeypatch):
    runs = []
    for graph in (True, False):
        env = envs.make("CartPole-v1", 256, backend=backend, device="cuda")
        algorithm = PPO.build(
            PPOConfig(**CONFIG | {"minibatch_size": 512}), env.observation_space, env.action_space, 3, "cuda"
        )
        collector = InlineCollector(env, algorithm.policy, 4, algorithm.columns(), 3)
        graphed = GraphedIteration(collector, algorithm)
        for k in range(5):
            metrics = graphed.iterate(k / 5) if graph else None
            assert (metrics is not None) == (graph and k > 0), graphed.refused
            if metrics is None:
                algorithm.update(collector.collect(), k / 5)
        runs.append((algorithm.optimizer.flat.clone(), collector.rollout.reward.clone()))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=1e-4, atol=1e-6)
    assert torch.equal(runs[0][1], runs[1][1])


def test_worlds_are_brought_out_of_step_between_replays_too():
    (collector, algorithm), (plain_collector, plain) = made("Pendulum-v1"), made("Pendulum-v1")
    graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    staggers = [Stagger(one.rollout, collector.env.max_steps) for one in (collector, plain_collector)]
    cut = 0
    for k in range(5):
        for stagger in staggers:
            stagger.before(collector.steps)
        if graphed.iterate(k / 5) is None:
            algorithm.update(collector.collect(), k / 5)
        plain.update(plain_collector.collect(), k / 5)
        for stagger in staggers:
            stagger.after()
        cut += int((~collector.rollout.valid[0]).sum())
        assert not graphed.refused and torch.equal(collector.rollout.valid, plain_collector.rollout.valid)
        assert torch.equal(collector.rollout.observation, plain_collector.rollout.observation)
        assert torch.equal(algorithm.optimizer.flat, plain.optimizer.flat)
    assert cut == 4  # one world before each rollout but the first


CHANGES = {
    "config": lambda algorithm: setattr(algorithm, "config", replace(algorithm.config, clip=0.9, entropy_coef=0.3)),
    "epsilon": lambda algorithm: setattr(algorithm.optimizer, "eps", 0.1),
    "beta": lambda algorithm: setattr(algorithm.optimizer, "beta1", 0.2),
    "learning rate": lambda algorithm: setattr(algorithm.optimizer, "learning_rate", torch.tensor(0.05)),
    "epochs": lambda algorithm: setattr(algorithm, "config", replace(algorithm.config, epochs=5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_are_changed_take_effect(change):
    """Each of these is a number of the host, which a graph has as it was captured."""
    ends = []
    for use_graph in (True, False):
        collector, algorithm = made("CartPole-v1", schedule="constant")
        graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
        for k in range(6):
            if k == 3:
                CHANGES[change](algorithm)
            metrics = graphed.iterate(k / 6) if use_graph else None
            assert (metrics is None) == (not use_graph or k == 0)
            if metrics is None:
                algorithm.update(collector.collect(), k / 6)
        ends.append(algorithm.optimizer.flat)
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("options", "refused"),
    [({"schedule": "warmup:0.1+cosine"}, False), ({"schedules": {"clip": "linear:0.1"}}, True)],
)
def test_a_learning_rate_is_scheduled_in_the_graph_and_other_settings_have_none(options, refused):
    collector, algorithm = made("CartPole-v1", **options)
    graphed = GraphedIteration(collector, algorithm, put_back(collector, algorithm))
    algorithm.update(collector.collect(), 0.0)
    metrics = graphed.iterate(0.5)
    assert bool(graphed.refused) == refused and (metrics is None) == refused
    if metrics is not None:
        wanted = 0.5 * algorithm.config.learning_rate * (1 + math.cos(math.pi * 4 / 9))
        assert float(metrics["learning_rate"]) == pytest.approx(wanted)


def test_nothing_is_captured_again_where_nothing_was_changed():
    collector, algorithm = made("CartPole-v1")
    captures, capture = [], put_back(collector, algorithm)
    graphed = GraphedIteration(collector, algorithm, lambda body: (captures.append(body), capture(body))[1])
    algorithm.update(collector.collect(), 0.0)
    for k in range(1, 5):
        assert graphed.iterate(k / 5) is not None
    assert len(captures) == 1


def test_a_capture_that_cuda_refuses_is_named_and_changes_nothing(capsys):
    collector, algorithm = made("CartPole-v1")
    plain_collector, plain = made("CartPole-v1")

    def refuse(body):
        body()
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")

    graphed = GraphedIteration(collector, algorithm, refuse)
    for k in range(3):
        assert graphed.iterate(k / 3) is None
        algorithm.update(collector.collect(), k / 3)
        plain.update(plain_collector.collect(), k / 3)
        assert torch.equal(algorithm.optimizer.flat, plain.optimizer.flat)
    said = capsys.readouterr().err
    assert said.count("no CUDA graph, going on step by step: CUDA refused the capture (CUDA error: operation not") == 1
    assert "more lines" not in said
