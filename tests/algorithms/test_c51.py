"""C51: its projection and loss against algorithm 1 of the paper in float64, Rainbow against torch's steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.discrete.c51 import C51, C51Config, c51_loss, projected
from headrace.algorithms.objectives import TD_ERROR, Learned
from headrace.bindings.compiled.compiled_objectives import why_not
from headrace.core import fused
from headrace.data.priorities import PrioritizedReplay
from headrace.data.spaces import Box, Discrete
from headrace.policies.q_network import QNetwork

ACTIONS, START, ATOMS, ROWS = 3, 2, 5, 12
V_MIN, V_MAX = -1.0, 3.0
SPACES = Box(-np.inf, np.inf, (4,)), Discrete(ACTIONS, start=START)
CONFIG = C51Config(hidden=(8, 8), num_atoms=ATOMS, v_min=V_MIN, v_max=V_MAX, batch_size=ROWS, buffer_size=400)
OF_POLICY = {"hidden": (8, 8), "quantiles": ATOMS, "support": [V_MIN, V_MAX]}
OPTIONS = {"noisy": 0.5, "n_steps": 3, "double": True, "dueling": True, "prioritized": True, "num_atoms": ATOMS}
OPTIONS |= {"num_envs": 4, "hidden": (8,), "batch_size": 32, "learning_starts": 40, "target_interval": 3}
OPTIONS |= {"total_steps": 300, "progress": "none", "registered": False}


def test_mass_is_divided_between_the_nearest_atoms():
    atoms = torch.linspace(0, 2, 3).unsqueeze(1)
    probability = torch.tensor([[0.2, 0.5], [0.3, 0.25], [0.5, 0.25]])
    returns = torch.tensor([[0.0, 0.5], [0.25, 1.0], [2.0, 1.75]])
    # of the second row 0.5 lies half way between the atoms 0 and 1, 0.25 at 1, 0.25 a quarter from 2
    expected = [[0.2 + 0.3 * 0.75, 0.25], [0.3 * 0.25, 0.25 + 0.25 + 0.0625], [0.5, 0.1875]]
    torch.testing.assert_close(projected(probability, returns, atoms), torch.tensor(expected))


def batch():
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(ROWS, *shape, generator=generator)

    action = torch.randint(START, START + ACTIONS, (ROWS,), generator=generator).int()
    columns = {"observation": normal(4), "next_observation": normal(4), "action": action, "reward": 2 * normal()}
    discount = normal().abs().clamp(max=0.99) * (torch.arange(ROWS) > 2)  # of the first rows an episode ended
    return columns | {"discount": discount, "weight": normal().abs() / ROWS}


def probabilities(network, x):
    """[B, A, M] by matrix products in float64."""
    x = x.double().numpy()
    for layer in network.trunk.layers:
        x = np.maximum(x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy(), 0)
    last = network.out.of_all
    logits = x @ last.weight.detach().double().numpy().T + last.bias.detach().double().numpy()
    weights = np.exp(logits.reshape(ROWS, ACTIONS, ATOMS))
    return weights / weights.sum(2, keepdims=True)


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_is_algorithm_1(double):
    policy, target = (QNetwork(*SPACES, **OF_POLICY, seed=seed) for seed in (1, 2))
    with torch.no_grad():
        for network in (policy, target):  # so that distributions are not nearly uniform
            network.out.of_all.weight.mul_(3)
    given, config = batch(), C51Config(num_atoms=ATOMS, v_min=V_MIN, v_max=V_MAX, double=double)
    loss, found = c51_loss(Learned(policy, target), given, config)
    own, of_next = probabilities(policy, given["observation"]), probabilities(target, given["next_observation"])
    chooser = probabilities(policy, given["next_observation"]) if double else of_next
    z = np.linspace(V_MIN, V_MAX, ATOMS)
    spacing, expected, divergences = z[1] - z[0], 0.0, []
    for b in range(ROWS):
        best = int((chooser[b] * z).sum(1).argmax())
        m = np.zeros(ATOMS)
        for j in range(ATOMS):
            moved = min(max(float(given["reward"][b]) + float(given["discount"][b]) * z[j], V_MIN), V_MAX)
            place = (moved - V_MIN) / spacing
            lower, upper = math.floor(place), math.ceil(place)
            m[lower] += of_next[b, best, j] * (upper - place + (lower == upper))
            m[upper] += of_next[b, best, j] * (place - lower)
        p = own[b, int(given["action"][b]) - START]
        expected -= (m * np.log(p)).sum() * float(given["weight"][b])
        divergences.append(sum(m[i] * math.log(m[i] / p[i]) for i in range(ATOMS) if m[i] > 0))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert found[TD_ERROR].tolist() == pytest.approx(divergences, rel=1e-3, abs=1e-5)
    value = (own * z).sum(2)[range(ROWS), given["action"].numpy() - START] @ given["weight"].numpy()
    assert found["q_value"].item() == pytest.approx(value, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(
        policy(given["observation"]).t().double().detach().numpy(), (own * z).sum(2), atol=1e-5, rtol=1e-5
    )


def test_rainbow_is_compiled_and_equals_plain_torch():
    ends = []
    for plain in (False, True):
        with fused.plain_only(plain):
            trainer = hr.Trainer("c51", "CartPole-v1", **OPTIONS)
            while trainer.algorithm.updates < 4:
                trainer.iterate()
            algorithm = trainer.algorithm
            assert why_not(algorithm.objectives()[0], 32, 1, algorithm.config) is None and isinstance(
                algorithm.replay, PrioritizedReplay
            )
            tree = algorithm.replay.tree.float()
            ends.append(torch.cat((algorithm.optimizer.flat, algorithm.buffers["target"], tree)))
            assert algorithm.policy.exploration.item() == 0  # noise alone explores
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4)
    assert not torch.equal(*ends)  # the compiled one has run


def test_a_policy_of_other_atoms_is_refused():
    with pytest.raises(
        ValueError, match=r"the algorithm learns \{'quantiles': 5, 'support': .*\}: make the policy with"
    ):
        C51(QNetwork(*SPACES, quantiles=ATOMS), CONFIG)


@pytest.mark.parametrize(("wrong", "said"), [({"num_atoms": 1}, "num_atoms must be 2"), ({"v_min": 10}, "below v_max")])
def test_settings_out_of_range_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        C51Config(**wrong)


@pytest.mark.parametrize(("to", "file"), [("numpy", "policy.py"), ("c", "policy.h"), ("onnx", "policy.onnx")])
def test_it_exports(tmp_path, to, file):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    policy = QNetwork(*SPACES, **OF_POLICY, dueling=True, noisy=0.5, seed=3)
    hr.export(policy, to=to, output=tmp_path / file)  # which compares their outputs


def test_rainbow_resumes_bit_for_bit(tmp_path):
    run = hr.train("c51", "CartPole-v1", **OPTIONS, save_freq=100, log_folder=str(tmp_path))
    again = hr.train(resume=next(run.path.glob("step_1*")), progress="none")
    assert all(map(torch.equal, run.policy.state_dict().values(), again.policy.state_dict().values()))
