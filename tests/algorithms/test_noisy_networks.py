"""Noise on weights: its formula in float64, where it is drawn again, and that it is nowhere but in training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.discrete.qrdqn import QRDQNConfig, qrdqn_loss
from headrace.algorithms.dqn import DQNConfig, dqn_loss
from headrace.algorithms.objectives import Learned
from headrace.bindings.compiled.compiled_objectives import why_not
from headrace.core import fused
from headrace.data.spaces import Box, Discrete
from headrace.policies.q_network import QNetwork

SPACES, ROWS = (Box(-np.inf, np.inf, (4,)), Discrete(3)), 6


def network(**options):
    policy = QNetwork(*SPACES, **{"hidden": (6, 5), "noisy": 0.5, "seed": 1} | options)
    with torch.no_grad():  # deviations differ
        for number, parameter in enumerate(policy.noise.parameters()):
            parameter.mul_(torch.linspace(0.5, 1.5, parameter.numel()).view(parameter.shape) + number)
    return policy


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def in_numpy(policy, observation, random, parts):
    """Values of one row, [A]: each layer with weights that have their noise, eq. 9 to 11 of the paper, in float64."""
    pairs = len(random) // 2
    radius = [math.sqrt(-2 * math.log1p(-float(u))) for u in random[:pairs]]
    angle = [2 * math.pi * float(u) for u in random[pairs:]]
    normals = [r * math.cos(a) for r, a in zip(radius, angle, strict=True)]
    normals += [r * math.sin(a) for r, a in zip(radius, angle, strict=True)]
    noise = np.array([math.copysign(math.sqrt(abs(e)), e) for e in normals])
    deviations = zip(policy.noise.weights, policy.noise.biases, strict=True)

    def dense(layer, x):
        nonlocal noise
        spread, of_bias = (p.detach().double().numpy() for p in next(deviations))
        outputs, inputs = spread.shape
        of_inputs, of_outputs, noise = np.split(noise, [inputs, inputs + outputs])
        weight = layer.weight.detach().double().numpy() + spread * np.outer(of_outputs, of_inputs)
        return weight @ x + layer.bias.detach().double().numpy() + of_bias * of_outputs

    return parts(policy, dense, observation.double().numpy())


def plain(policy, dense, x):
    for layer in policy.trunk.layers:
        x = np.maximum(dense(layer, x), 0)
    return dense(policy.out, x)


def of_dueling(policy, dense, x):
    x = np.maximum(dense(policy.trunk.layers[0], x), 0)
    value = dense(policy.value_out, np.maximum(dense(policy.value_branch.layers[0], x), 0))
    advantage = dense(policy.out, np.maximum(dense(policy.branch.layers[0], x), 0))
    return value + advantage - advantage.mean()


@pytest.mark.parametrize(("dueling", "parts"), [(False, plain), (True, of_dueling)])
def test_weights_have_factorised_noise_of_each_row(dueling, parts):
    policy, observation = network(dueling=dueling), uniform(ROWS, 4)
    random = uniform(ROWS, policy.noise.num_draws, seed=1)
    found = policy(observation, random).t()
    expected = [in_numpy(policy, observation[b], random[b], parts) for b in range(ROWS)]
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_initial_weights_are_those_of_the_paper():
    policy = QNetwork(*SPACES, hidden=(64, 64), noisy=0.5, seed=1)
    for layer, spread, of_bias in zip(
        [*policy.trunk.layers, policy.out], policy.noise.weights, policy.noise.biases, strict=True
    ):
        limit = layer.weight.shape[1] ** -0.5
        assert torch.equal(spread, torch.full_like(spread, 0.5 * limit)) and of_bias[0].item() == spread[0, 0].item()
        assert 0.8 * limit < layer.weight.abs().max() <= limit and layer.bias.abs().max() <= limit


def test_acting_has_noise_and_evaluation_has_none():
    policy, observation = network(), uniform(200, 4)
    means = policy.act(observation, None, None)
    noisy = policy.act(observation, None, uniform(200, policy.num_draws, seed=2))
    assert torch.equal(means.value, policy(observation).amax(0)) and not torch.equal(means.action, noisy.action)
    evaluated = policy.act_without_exploration(observation, None, uniform(200, policy.num_draws, seed=2))
    assert torch.equal(evaluated.action, means.action)
    fewer = policy.act(observation[:5], None, uniform(200, policy.num_draws, seed=2)[:5])
    assert torch.equal(fewer.value, noisy.value[:5])


def batch_of(draws):
    columns = {"observation": uniform(ROWS, 4), "next_observation": uniform(ROWS, 4, seed=1), "random": draws}
    columns |= {"reward": torch.zeros(ROWS), "discount": torch.ones(ROWS), "weight": torch.ones(ROWS) / ROWS}
    return columns | {"action": torch.zeros(ROWS, dtype=torch.int32)}


@pytest.mark.parametrize("kind", ["dqn", "qrdqn"])
def test_the_networks_of_a_loss_have_independent_noise(kind):
    """Section 3.1: of the network, of the target network, and (double) of the network that selects."""
    of_kind = {"quantiles": 4} if kind == "qrdqn" else {}
    policy, target = network(**of_kind), network(seed=2, **of_kind)
    loss, config = (dqn_loss, DQNConfig(double=True)) if kind == "dqn" else (qrdqn_loss, QRDQNConfig(quantiles=4))
    number, width = (3 if kind == "dqn" else 2), policy.noise.num_draws
    draws = uniform(ROWS, number * width, seed=3)
    first = loss(Learned(policy, target), batch_of(draws), config)[1]
    for part in range(number):
        others = draws.clone()
        others[:, part * width : (part + 1) * width] = uniform(ROWS, width, seed=4)
        found = loss(Learned(policy, target), batch_of(others), config)[1]
        assert found["loss"] != first["loss"]
        assert (found["q_value"] != first["q_value"]) == (part == 0)


OPTIONS = {"num_envs": 4, "hidden": (8,), "batch_size": 32, "learning_starts": 40, "noisy": 0.5, "total_steps": 300}
OPTIONS |= {"progress": "none", "registered": False, "double": False}


def test_learning_is_compiled_and_equals_plain_torch():
    ends = []
    for in_torch in (False, True):
        with fused.plain_only(in_torch):
            trainer = hr.Trainer("dqn", "CartPole-v1", **OPTIONS)
            algorithm = trainer.algorithm
            before = torch.cat([x.flatten() for x in algorithm.policy.noise.parameters()])
            while algorithm.updates < 40:
                trainer.iterate()
            assert why_not(algorithm.objectives()[0], 32, 1, algorithm.config) is None
            after = torch.cat([x.flatten() for x in algorithm.policy.noise.parameters()])
            assert (before != after).float().mean() > 0.9  # deviations are learned
            ends.append(algorithm.optimizer.flat)
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4) and not torch.equal(*ends)


def test_it_resumes_bit_for_bit_and_exports_the_means(tmp_path):
    run = hr.train("dqn", "CartPole-v1", **OPTIONS, save_freq=100, log_folder=str(tmp_path))
    again = hr.train(resume=next(run.path.glob("step_1*")), progress="none")
    assert all(map(torch.equal, run.policy.state_dict().values(), again.policy.state_dict().values()))
    hr.export(run, to="numpy", output=tmp_path / "policy.py")  # which compares their outputs


class OfOneArgument(QNetwork):
    """A network of a user's whose method takes the observation alone."""

    def forward(self, observation):
        return super().forward(observation) * 2


class OfFeatures(QNetwork):
    """The same, of encoded observations."""

    def values(self, features):
        return super().values(features) * 2


@pytest.mark.parametrize("kind", [OfOneArgument, OfFeatures])
def test_networks_whose_methods_know_no_noise_are_learned(kind):
    trainer = hr.Trainer(
        "dqn", "CartPole-v1", policy=kind, learning_starts=64, num_steps=64, train_freq=8, hidden=(16,)
    )
    before = trainer.policy.state_dict()["out.bias"].clone()
    trainer.iterate()
    trainer.iterate()
    assert not torch.equal(trainer.policy.state_dict()["out.bias"], before)
