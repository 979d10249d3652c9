"""QR-DQN: its loss against the paper's formula in float64, its gradient steps against torch's, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.corridor import Corridor

import headrace as hr
from headrace.algorithms.discrete.qrdqn import QRDQN, QRDQNConfig, qrdqn_loss
from headrace.algorithms.objectives import Learned
from headrace.bindings.compiled.compiled_objectives import why_not
from headrace.core import fused
from headrace.data.spaces import Box, Discrete
from headrace.policies.q_network import QNetwork

ACTIONS, START, QUANTILES, ROWS = 3, 2, 5, 40
SPACES = Box(-np.inf, np.inf, (4,)), Discrete(ACTIONS, start=START)
CONFIG = QRDQNConfig(hidden=(8, 8), quantiles=QUANTILES, batch_size=ROWS, buffer_size=400, learning_starts=50)


def batch():
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(ROWS, *shape, generator=generator)

    action = torch.randint(START, START + ACTIONS, (ROWS,), generator=generator).int()
    columns = {"observation": normal(4), "next_observation": normal(4), "action": action, "reward": 3 * normal()}
    return columns | {"discount": normal().abs().clamp(max=0.99), "weight": normal().abs() / ROWS}


def quantiles_of(network, x):
    """[B, A, M] by matrix products in float64."""
    for layer in network.trunk.layers:
        x = (x @ layer.weight.double().T + layer.bias.double()).clamp(min=0)

    def read(out, x):
        return (x @ out.of_all.weight.double().T + out.of_all.bias.double()).view(ROWS, -1, QUANTILES)

    if network.branch is None:
        return read(network.out, x)
    branches = [
        (x @ branch.layers[0].weight.double().T + branch.layers[0].bias.double()).clamp(min=0)
        for branch in (network.value_branch, network.branch)
    ]
    value, advantage = (read(out, b) for out, b in zip((network.value_out, network.out), branches, strict=True))
    return value + advantage - advantage.mean(1, keepdim=True)


@pytest.mark.parametrize("dueling", [False, True])
def test_the_loss_is_that_of_the_paper(dueling):
    policy, target = (QNetwork(*SPACES, (8, 8), quantiles=QUANTILES, dueling=dueling, seed=seed) for seed in (1, 2))
    given = batch()
    loss, metrics = qrdqn_loss(Learned(policy, target), given, CONFIG)
    observation, following = (given[name].double() for name in ("observation", "next_observation"))
    of_next, expected = quantiles_of(target, following), 0.0
    own = quantiles_of(policy, observation)
    for b in range(ROWS):
        best = max(range(ACTIONS), key=lambda a, b=b: of_next[b, a].mean().item())
        for i in range(QUANTILES):
            fraction = (i + 0.5) / QUANTILES
            for j in range(QUANTILES):
                wanted = given["reward"][b].double() + given["discount"][b].double() * of_next[b, best, j]
                u = wanted - own[b, int(given["action"][b]) - START, i]
                huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                expected += abs(fraction - float(u < 0)) * huber * given["weight"][b] / QUANTILES**2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["loss"].item() == loss.item()


def trainer_of(**options):
    options = {"num_envs": 4, "num_steps": 4, "hidden": (8, 8), "quantiles": QUANTILES, "batch_size": 32} | options
    options |= {"learning_starts": 40, "buffer_size": 400, "target_interval": 3, "registered": False}
    return hr.Trainer("qrdqn", "CartPole-v1", total_steps=2_000, progress="none", **options)


def test_learning_is_compiled_and_equals_plain_torch():
    ends = []
    for plain in (False, True):
        with fused.plain_only(plain):
            trainer = trainer_of()
            for _ in range(12):
                trainer.iterate()
            algorithm = trainer.algorithm
            assert algorithm.updates > 3 and why_not(algorithm.objectives()[0], 32, 1, algorithm.config) is None
            ends.append(torch.cat((algorithm.optimizer.flat, algorithm.buffers["target"])))
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4)
    assert not torch.equal(*ends)  # the compiled one has run


def test_means_of_quantiles_are_the_values_that_it_acts_by():
    policy = QNetwork(*SPACES, (8,), quantiles=QUANTILES, seed=3)
    observation = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    values = policy.outputs(policy.encoder(observation)).mean(1)
    assert torch.equal(values, policy(observation))
    output = policy.act(observation, None, None)
    assert torch.equal(output.action, (values.argmax(0) + START).int())


@pytest.mark.parametrize("quantiles", [1, 7])
def test_a_policy_of_other_quantiles_is_refused(quantiles):
    with pytest.raises(ValueError, match=f"this policy has quantiles={quantiles}, and the algorithm learns 5"):
        QRDQN(QNetwork(*SPACES, quantiles=quantiles), CONFIG)


def test_it_walks_a_corridor():
    options = {"num_steps": 4, "gradient_steps": 8, "hidden": (16,), "gamma": 0.9, "learning_rate": 3e-3}
    options |= {"batch_size": 16, "learning_starts": 64, "buffer_size": 400, "target_interval": 5, "quantiles": 8}
    trainer = hr.Trainer("qrdqn", Corridor(8), total_steps=8_000, exploration_final=0.02, progress="none", **options)
    while not trainer.reason_to_stop():
        trainer.iterate()
    assert trainer.episodes.mean_return() > 0.5  # 0.6 is all there is


@pytest.mark.parametrize("dueling", [False, True])
def test_it_resumes_bit_for_bit_and_exports(tmp_path, dueling):
    options = {"num_envs": 4, "hidden": (16,), "quantiles": 8, "learning_starts": 64, "log_folder": str(tmp_path)}
    options |= {"total_steps": 1_500, "save_freq": 500, "progress": "none", "registered": False, "dueling": dueling}
    run = hr.train("qrdqn", "CartPole-v1", **options)
    again = hr.train(resume=next(run.path.glob("step_5*")), progress="none")
    assert all(map(torch.equal, run.policy.state_dict().values(), again.policy.state_dict().values()))
    hr.export(run, to="numpy", output=tmp_path / "policy.py")  # which compares their outputs
